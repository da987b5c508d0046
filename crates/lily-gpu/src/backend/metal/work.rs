//! What is queued: command buffers, of which two are in flight while the host makes the next.
//!
//! [`Work::run`] encodes a pass and commits it; copies gather before it in the same command buffer. Resources are untracked,
//! so that one fence, which every encoder waits for and then updates, keeps the order between encoders. Within a pass the
//! levels do.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use block2::RcBlock;
use lily_model::ModelError;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLComputeCommandEncoder, MTLDevice, MTLDispatchType, MTLFence,
};

use super::device::{Device, fault, message};
use super::memory::{Arena, MetalBuffer};
use super::pass::{Dispatch, Pass};
use super::pipelines::Pipelines;
use crate::commands::View;

const IN_FLIGHT: u64 = 2;
/// Those, and the one that is being made.
const SLOTS: u64 = IN_FLIGHT + 1;
/// Bytes that one command buffer takes from the host.
const STAGING: usize = 1 << 20;
/// Copies on the device are whole words.
const WORD: usize = 4;

type Compute = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

pub struct Work {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    fence: Retained<ProtocolObject<dyn MTLFence>>,
    /// An encoder has updated the fence, so that the next must wait for it.
    fenced: bool,
    /// One for each command buffer that can be under way.
    staging: Vec<MetalBuffer>,
    open: Option<Open>,
    committed: u64,
    flight: Arc<Flight>,
}

/// The command buffer that is being made.
struct Open {
    commands: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    copies: Option<Copies>,
    /// Bytes of its staging buffer that are taken.
    staged: usize,
}

/// An encoder of copies that may run at once.
struct Copies {
    encoder: Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>,
    touched: Vec<View>,
}

// SAFETY: command buffers and encoders may move between threads as long as one thread at a time uses them, and they are only
// reached through `&mut Work`.
unsafe impl Send for Open {}

/// What the device has done, told by its own thread.
#[derive(Default)]
struct Flight {
    state: Mutex<Done>,
    changed: Condvar,
}

#[derive(Default)]
struct Done {
    /// Command buffers that have ended.
    ended: u64,
    /// The first error that has not been reported.
    fault: Option<String>,
}

impl Work {
    pub fn new(device: &Device) -> Result<Self, ModelError> {
        let none = |what: &str| fault(format!("Metal made no {what}"));
        let staging = || MetalBuffer::new(device, STAGING).ok_or_else(|| none("staging buffer"));
        Ok(Work {
            queue: device.metal.newCommandQueue().ok_or_else(|| none("command queue"))?,
            fence: device.metal.newFence().ok_or_else(|| none("fence"))?,
            fenced: false,
            staging: (0..SLOTS).map(|_| staging()).collect::<Result<_, _>>()?,
            open: None,
            committed: 0,
            flight: Arc::default(),
        })
    }

    /// Queues a pass, and sends it off with all that was queued before.
    pub fn run(&mut self, pass: &Pass, pipelines: &Pipelines, arena: &Arena) -> Result<(), ModelError> {
        let encoder = self.compute()?;
        let mut pipeline = None;
        for (at, level) in pass.levels.iter().enumerate() {
            if at > 0 {
                encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            for dispatch in level {
                if pipeline.replace(dispatch.pipeline) != Some(dispatch.pipeline) {
                    encoder.setComputePipelineState(pipelines.state(dispatch.pipeline));
                }
                encode(&encoder, dispatch, arena);
            }
        }
        encoder.updateFence(&self.fence);
        encoder.endEncoding();
        self.fenced = true;
        self.commit();
        Ok(())
    }

    /// Queues a copy from the host; the bytes are taken.
    pub fn write(&mut self, arena: &Arena, to: View, bytes: &[u8]) -> Result<(), ModelError> {
        let to = View { bytes: bytes.len(), ..to };
        if bytes.is_empty() {
            return Ok(());
        }
        if self.is_idle() || bytes.len() > STAGING || !is_words(&to) {
            self.finish();
            return arena.write_idle(to, bytes);
        }
        arena.check_writable(&to)?;
        if self.open.as_ref().is_some_and(|open| open.staged + bytes.len() > STAGING) {
            self.commit();
        }
        let from = self.open()?.staged;
        let staging = self.staging[(self.committed % SLOTS) as usize].clone();
        let target = staging.contents().cast::<u8>();
        // SAFETY: the range is inside the staging buffer, and the command buffer that last used it has ended.
        unsafe { target.add(from).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.open()?.staged += bytes.len();
        let encoder = self.copies(&[to])?;
        // SAFETY: both ranges are inside their buffers.
        unsafe {
            encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                &staging,
                from,
                arena.metal(to.buffer),
                to.offset,
                to.bytes,
            );
        }
        Ok(())
    }

    /// Queues a copy on the device.
    pub fn copy(&mut self, arena: &Arena, from: View, to: View) -> Result<(), ModelError> {
        if from.bytes != to.bytes {
            return Err(fault(format!("expected a copy between views of one length, found {} and {} bytes", from.bytes, to.bytes)));
        }
        if from.bytes == 0 {
            return Ok(());
        }
        if self.is_idle() || !is_words(&from) || !is_words(&to) {
            self.finish();
            return arena.copy_idle(from, to);
        }
        arena.check(&from)?;
        arena.check_writable(&to)?;
        let encoder = self.copies(&[from, to])?;
        let (source, target) = (arena.metal(from.buffer), arena.metal(to.buffer));
        // SAFETY: both ranges are inside their buffers.
        unsafe { encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(source, from.offset, target, to.offset, to.bytes) };
        Ok(())
    }

    /// Queues zeros.
    pub fn clear(&mut self, arena: &Arena, view: View) -> Result<(), ModelError> {
        if view.bytes == 0 {
            return Ok(());
        }
        if self.is_idle() || !is_words(&view) {
            self.finish();
            return arena.clear_idle(view);
        }
        arena.check_writable(&view)?;
        let encoder = self.copies(&[view])?;
        encoder.fillBuffer_range_value(arena.metal(view.buffer), NSRange::new(view.offset, view.bytes), 0);
        Ok(())
    }

    /// Waits for all that is queued, and reports the first error of it.
    pub fn wait(&mut self) -> Result<(), ModelError> {
        self.finish();
        match self.flight.lock().fault.take() {
            Some(what) => Err(fault(what)),
            None => Ok(()),
        }
    }

    fn finish(&mut self) {
        self.commit();
        self.flight.wait_for(self.committed);
    }

    /// Whether the device has nothing to do and nothing to come.
    fn is_idle(&self) -> bool {
        self.open.is_none() && self.flight.lock().ended == self.committed
    }

    /// The command buffer that is being made; a new one waits until there is room for it.
    fn open(&mut self) -> Result<&mut Open, ModelError> {
        if self.open.is_none() {
            self.flight.wait_for(self.committed.saturating_sub(IN_FLIGHT));
            // Buffers and pipelines outlive the work, whose end waits.
            let commands = self.queue.commandBufferWithUnretainedReferences();
            let commands = commands.ok_or_else(|| fault("Metal made no command buffer"))?;
            self.open = Some(Open { commands, copies: None, staged: 0 });
        }
        self.open.as_mut().ok_or_else(|| fault("there is no command buffer"))
    }

    /// An encoder for a pass, after all copies so far.
    fn compute(&mut self) -> Result<Compute, ModelError> {
        self.end_copies();
        let commands = &self.open()?.commands;
        let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = encoder.ok_or_else(|| fault("Metal made no compute encoder"))?;
        if self.fenced {
            encoder.waitForFence(&self.fence);
        }
        Ok(encoder)
    }

    /// An encoder for a copy that touches these views.
    fn copies(&mut self, views: &[View]) -> Result<Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>, ModelError> {
        let touches = |copies: &Copies| copies.touched.iter().any(|touched| views.iter().any(|view| view.overlaps(touched)));
        if self.open()?.copies.as_ref().is_some_and(touches) {
            self.end_copies();
        }
        let fence = self.fenced.then(|| self.fence.clone());
        let open = self.open()?;
        let copies = match &mut open.copies {
            Some(copies) => copies,
            none => {
                let encoder = open.commands.blitCommandEncoder().ok_or_else(|| fault("Metal made no encoder of copies"))?;
                if let Some(fence) = &fence {
                    encoder.waitForFence(fence);
                }
                none.insert(Copies { encoder, touched: Vec::new() })
            }
        };
        copies.touched.extend_from_slice(views);
        Ok(copies.encoder.clone())
    }

    fn end_copies(&mut self) {
        if let Some(copies) = self.open.as_mut().and_then(|open| open.copies.take()) {
            copies.encoder.updateFence(&self.fence);
            copies.encoder.endEncoding();
            self.fenced = true;
        }
    }

    /// Sends off what is being made, if there is any.
    fn commit(&mut self) {
        self.end_copies();
        let Some(open) = self.open.take() else { return };
        let flight = self.flight.clone();
        let ended = RcBlock::new(move |commands: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            // SAFETY: Metal hands over the command buffer that has ended.
            flight.end(unsafe { commands.as_ref() });
        });
        // SAFETY: the block is a valid one; Metal copies it.
        unsafe { open.commands.addCompletedHandler(RcBlock::as_ptr(&ended)) };
        open.commands.commit();
        self.committed += 1;
    }
}

impl Drop for Work {
    /// The device may use buffers, and an encoder may not be dropped before its end.
    fn drop(&mut self) {
        objc2::rc::autoreleasepool(|_| self.finish());
    }
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, Done> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, ended: u64) {
        let mut state = self.lock();
        while state.ended < ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) {
        let mut state = self.lock();
        if commands.status() == MTLCommandBufferStatus::Error {
            let what = commands.error().map_or_else(|| "no reason given".to_owned(), |error| message(&error));
            state.fault.get_or_insert_with(|| format!("the GPU gave up: {what}"));
        }
        state.ended += 1;
        self.changed.notify_all();
    }
}

fn encode(encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>, dispatch: &Dispatch, arena: &Arena) {
    for (index, &(buffer, offset)) in dispatch.buffers.iter().enumerate() {
        // SAFETY: the view that this comes from is inside the buffer, and the kernel has a buffer of this index.
        unsafe { encoder.setBuffer_offset_atIndex(Some(arena.metal(buffer)), offset, index) };
    }
    if !dispatch.args.is_empty() {
        let args = NonNull::from(dispatch.args.as_slice()).cast::<c_void>();
        // SAFETY: Metal copies the bytes before it returns.
        unsafe { encoder.setBytes_length_atIndex(args, dispatch.args.len(), dispatch.buffers.len()) };
    }
    encoder.dispatchThreadgroups_threadsPerThreadgroup(dispatch.grid, dispatch.threads);
}

fn is_words(view: &View) -> bool {
    view.offset.is_multiple_of(WORD) && view.bytes.is_multiple_of(WORD)
}
