//! The simulator: every kernel on the processor, compiled from the same source as on a GPU.
//!
//! Start with [`SimBackend`]. A list runs level by level, the launches of one level in an order that the seed chooses,
//! since nothing may depend on it; so may nothing on the order of lanes, which can be turned round. Two builds of the
//! kernels exist: the fast one is part of this crate ([`Simulator::built_in`]), the checked one ([`checked`]) is
//! compiled when a test asks for it and names races, stray and unset memory, and divergence with the kernel's line.

mod api;
pub mod checked;
mod compile;
mod launch;

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use lily_model::{Bytes, ModelError};

pub use api::{BufferParameter, KernelTable, Simulator};

use crate::backend::{Backend, Prepared};
use crate::commands::{BufferId, CommandList, View};

/// Offsets and addresses of imported bytes, for the widest vector.
const ALIGNMENT: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Host threads for the threadgroups of a launch; the checked build always uses one.
    pub threads: usize,
    /// Lanes and threadgroups from the last to the first.
    pub reverse_lanes: bool,
    /// Chooses the order of the launches of a level; `None` leaves the list's own.
    pub shuffle_seed: Option<u64>,
    /// Threadgroup memory starts as NaNs, so that what is read before it is written shows.
    pub poison_threadgroup: bool,
    /// Buffers start as NaNs instead of zeros; the checked build also names reads of what nobody has written.
    pub poison_buffers: bool,
    /// The kernels of `kernels/cuda` run too, as on a GPU of compute capability 9.0; else only what every device runs.
    pub native: bool,
    /// Seconds that one launch may take; 0 for no limit. With one thread only.
    pub timeout_s: u32,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions {
            threads: 1,
            reverse_lanes: false,
            shuffle_seed: Some(1),
            poison_threadgroup: true,
            poison_buffers: false,
            native: false,
            timeout_s: 0,
        }
    }
}

/// A [`Backend`] on the processor. Work runs at once; a fault is kept for the next waiting call, as on a GPU, and until
/// then further work is left undone.
pub struct SimBackend {
    device: api::Device,
    options: SimOptions,
    checked: bool,
    kernels: HashMap<String, Arc<KernelTable>>,
    /// Once kernels have been prepared: only those may be launched, as on a GPU, which has compiled no others.
    ready: Option<HashSet<&'static str>>,
    buffers: Vec<Buffer>,
    prepared: Vec<CommandList>,
    shuffle: u64,
    fault: Option<String>,
}

struct Buffer {
    what: String,
    at: NonNull<u8>,
    bytes: usize,
    /// Imported bytes, kept alive; never written.
    imported: Option<Bytes>,
}

// SAFETY: a buffer's memory belongs to the device of the same backend, or to the bytes that it keeps.
unsafe impl Send for Buffer {}

impl SimBackend {
    /// # Errors
    /// A processor that the simulator was not compiled for.
    pub fn new(simulator: Simulator, options: SimOptions) -> Result<Self, ModelError> {
        let device = api::Device::open(simulator, &options).map_err(ModelError::Device)?;
        let kernels = simulator.kernels().into_iter().map(|kernel| (kernel.name.clone(), Arc::new(kernel))).collect();
        let shuffle = options.shuffle_seed.unwrap_or_default();
        let checked = simulator.checked();
        Ok(SimBackend { device, options, checked, kernels, ready: None, buffers: Vec::new(), prepared: Vec::new(), shuffle, fault: None })
    }

    fn buffer(&self, view: &View) -> &Buffer {
        let buffer = &self.buffers[view.buffer.0 as usize];
        let end = view.offset + view.bytes;
        assert!(end <= buffer.bytes, "bytes {}..{end} of {}, which has {}", view.offset, buffer.what, buffer.bytes);
        buffer
    }

    /// Where a view starts.
    ///
    /// # Panics
    /// If it is not inside its buffer.
    fn address(&self, view: &View) -> *mut u8 {
        // SAFETY: the offset is inside the buffer.
        unsafe { self.buffer(view).at.as_ptr().add(view.offset) }
    }

    /// Where the host may write. Imported bytes belong to a checkpoint.
    fn target(&self, view: &View) -> *mut u8 {
        let buffer = self.buffer(view);
        assert!(buffer.imported.is_none(), "{} is read only", buffer.what);
        self.address(view)
    }

    fn result(&mut self) -> Result<(), ModelError> {
        match self.fault.take() {
            Some(fault) => Err(ModelError::Device(fault)),
            None => Ok(()),
        }
    }
}

impl Backend for SimBackend {
    fn name(&self) -> String {
        let build = if self.checked { ", checked" } else { "" };
        let threads = self.options.threads.max(1);
        format!("simulator ({threads} thread{}{build})", if threads == 1 { "" } else { "s" })
    }

    fn has_mma(&self) -> bool {
        self.options.native
    }

    fn has_wgmma(&self) -> bool {
        self.options.native
    }

    /// So few that the small matrices of tests have both enough threadgroups for the widest tiles and too few.
    fn multiprocessors(&self) -> usize {
        8
    }

    fn memory(&self) -> Option<usize> {
        None
    }

    fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        let at = self.device.allocate(what, bytes).ok_or_else(|| ModelError::Device(format!("no memory for {what}: {bytes} bytes")))?;
        self.buffers.push(Buffer { what: what.to_owned(), at, bytes, imported: None });
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    fn import(&mut self, bytes: &Bytes, what: &str) -> Result<View, ModelError> {
        let buffer = BufferId(self.buffers.len() as u32);
        let view = View { buffer, offset: 0, bytes: bytes.len() };
        if !bytes.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            self.allocate(bytes.len(), what)?;
            self.write(view, bytes);
            return Ok(view);
        }
        // SAFETY: the buffer keeps the bytes, and buffers are dropped after the device, whose field comes first.
        unsafe { self.device.import(what, bytes) };
        let at = NonNull::from(&**bytes).cast();
        self.buffers.push(Buffer { what: what.to_owned(), at, bytes: bytes.len(), imported: Some(bytes.clone()) });
        Ok(view)
    }

    fn prepare_kernels(&mut self, entries: &[&'static str]) -> Result<(), ModelError> {
        let unknown: Vec<&str> = entries.iter().copied().filter(|entry| !self.kernels.contains_key(*entry)).collect();
        if unknown.is_empty() {
            self.ready.get_or_insert_default().extend(entries);
            return Ok(());
        }
        Err(ModelError::Device(format!("no kernel of this name: {}", unknown.join(", "))))
    }

    fn write(&mut self, to: View, bytes: &[u8]) {
        assert_eq!(to.bytes, bytes.len(), "a view of another length");
        let target = self.target(&to);
        // SAFETY: the view is inside its buffer, which belongs to the device alone.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.device.written(target, to.bytes);
    }

    fn copy(&mut self, from: View, to: View) {
        assert_eq!(from.bytes, to.bytes, "views of different lengths");
        assert!(!from.overlaps(&to), "views that overlap");
        let (source, target) = (self.address(&from), self.target(&to));
        // SAFETY: both are inside their buffers and do not overlap.
        unsafe { target.copy_from_nonoverlapping(source, from.bytes) };
        self.device.written(target, to.bytes);
    }

    fn clear(&mut self, view: View) {
        let target = self.target(&view);
        // SAFETY: the view is inside its buffer.
        unsafe { target.write_bytes(0, view.bytes) };
        self.device.written(target, view.bytes);
    }

    fn run(&mut self, list: &CommandList) -> Result<(), ModelError> {
        self.check(list)?;
        self.run_list(list);
        Ok(())
    }

    fn prepare(&mut self, list: &CommandList) -> Result<Prepared, ModelError> {
        self.check(list)?;
        self.prepared.push(list.clone());
        Ok(Prepared(self.prepared.len() as u32 - 1))
    }

    fn replay(&mut self, prepared: Prepared) -> Result<(), ModelError> {
        let at = prepared.0 as usize;
        let list = std::mem::take(&mut self.prepared[at]);
        self.run_list(&list);
        self.prepared[at] = list;
        Ok(())
    }

    fn read(&mut self, from: View, bytes: &mut [u8]) -> Result<(), ModelError> {
        assert_eq!(from.bytes, bytes.len(), "a view of another length");
        self.result()?;
        let source = self.address(&from);
        // SAFETY: the view is inside its buffer; the host's bytes are not the device's.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn wait(&mut self) -> Result<(), ModelError> {
        self.result()
    }
}
