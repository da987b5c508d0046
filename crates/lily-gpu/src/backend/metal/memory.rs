//! Buffers, in memory that host and device share; weights stay in the file's mapping where its layout allows.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;

use lily_model::{Bytes, ModelError};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};

use super::device::{Device, fault};
use crate::commands::{BufferId, View};

/// Of the host's memory on every Apple chip: a buffer over a mapping begins and ends with a page.
const PAGE: usize = 16 << 10;
/// Offsets of views, for the widest vector.
const ALIGNMENT: usize = 16;
const MEGABYTE: usize = 1 << 20;

#[derive(Clone)]
pub struct MetalBuffer(Retained<ProtocolObject<dyn MTLBuffer>>);

// SAFETY: a buffer may be used from any thread; who touches its contents when is the backend's affair, which is one
// owner's at a time.
unsafe impl Send for MetalBuffer {}

impl MetalBuffer {
    /// A zeroed one; `None` where there is no memory for it.
    pub fn new(device: &Device, bytes: usize) -> Option<Self> {
        device.metal.newBufferWithLength_options(bytes, options()).map(MetalBuffer)
    }
}

impl Deref for MetalBuffer {
    type Target = ProtocolObject<dyn MTLBuffer>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Shared, and untracked: what waits for what is known from command lists.
fn options() -> MTLResourceOptions {
    MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked
}

pub struct Arena {
    device: Device,
    buffers: Vec<Buffer>,
    /// Buffers over mapped files, by the mapping's address.
    mapped: HashMap<usize, BufferId>,
    /// Of all buffers.
    bytes: usize,
}

struct Buffer {
    metal: MetalBuffer,
    bytes: usize,
    what: String,
    /// Keeps the mapping that the buffer is over.
    file: Option<Bytes>,
}

impl Arena {
    pub fn new(device: &Device) -> Self {
        Arena { device: device.clone(), buffers: Vec::new(), mapped: HashMap::new(), bytes: 0 }
    }

    /// A zeroed buffer.
    pub fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        self.check_budget(bytes, what)?;
        // Metal makes no empty buffers; those that it makes are zeroed.
        let metal = MetalBuffer::new(&self.device, bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT));
        let metal = metal.ok_or_else(|| fault(format!("no memory for {what}: {bytes} bytes")))?;
        Ok(self.keep(Buffer { metal, bytes, what: what.to_owned(), file: None }))
    }

    /// A read-only view of a tensor's bytes: in its file's mapping, else in a buffer of its own.
    pub fn import(&mut self, bytes: &Bytes, what: &str) -> Result<View, ModelError> {
        if let Some(view) = self.view_of_file(bytes, what)? {
            return Ok(view);
        }
        let buffer = self.allocate(bytes.len(), what)?;
        let view = View { buffer, offset: 0, bytes: bytes.len() };
        // Nothing uses a new buffer yet.
        self.write_idle(view, bytes)?;
        Ok(view)
    }

    /// `None` where the tensor is not in a mapped file, where it is not aligned in it, or where Metal will not have it.
    fn view_of_file(&mut self, bytes: &Bytes, what: &str) -> Result<Option<View>, ModelError> {
        let Some(file) = bytes.mapping() else { return Ok(None) };
        let offset = bytes.as_ptr().addr() - file.as_ptr().addr();
        // What lies behind a file's end in its last page is zero and can be read.
        let length = file.len().next_multiple_of(PAGE);
        let start = NonNull::from(file).cast::<c_void>();
        let aligned = offset.is_multiple_of(ALIGNMENT) && start.addr().get().is_multiple_of(PAGE);
        if !aligned || length > self.device.metal.maxBufferLength() {
            return Ok(None);
        }
        let view = |buffer| View { buffer, offset, bytes: bytes.len() };
        if let Some(&buffer) = self.mapped.get(&start.addr().get()) {
            return Ok(Some(view(buffer)));
        }
        self.check_budget(length, what)?;
        // SAFETY: these are whole pages of a mapping, which the buffer's `file` keeps. They can only be read; nothing
        // writes to a view of an imported tensor.
        let metal = unsafe { self.device.metal.newBufferWithBytesNoCopy_length_options_deallocator(start, length, options(), None) };
        let Some(metal) = metal.map(MetalBuffer) else { return Ok(None) };
        let buffer = self.keep(Buffer { metal, bytes: length, what: format!("the file of {what}"), file: Some(bytes.clone()) });
        self.mapped.insert(start.addr().get(), buffer);
        Ok(Some(view(buffer)))
    }

    fn keep(&mut self, buffer: Buffer) -> BufferId {
        self.bytes += buffer.bytes;
        self.buffers.push(buffer);
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn check_budget(&self, bytes: usize, what: &str) -> Result<(), ModelError> {
        let (needed, budget) = (self.bytes + bytes, self.device.budget());
        if needed <= budget {
            return Ok(());
        }
        let megabytes = |bytes: usize| bytes.div_ceil(MEGABYTE);
        let wanted = megabytes(needed + needed / 16);
        Err(fault(format!(
            "{what} needs {} MB where {} MB are in use: expected at most {} MB, which is what this Mac lets its GPU have. Where its \
             memory is larger, `sudo sysctl iogpu.wired_limit_mb={wanted}` raises the limit until it is started again",
            megabytes(bytes),
            megabytes(self.bytes),
            megabytes(budget)
        )))
    }

    pub fn metal(&self, buffer: BufferId) -> &ProtocolObject<dyn MTLBuffer> {
        &self.buffers[buffer.0 as usize].metal
    }

    /// Fails where a view is not inside its buffer.
    pub fn check(&self, view: &View) -> Result<(), ModelError> {
        let buffer = self.buffers.get(view.buffer.0 as usize);
        let buffer = buffer.ok_or_else(|| fault(format!("expected a buffer below {}, found {:?}", self.buffers.len(), view.buffer)))?;
        let end = view.offset.saturating_add(view.bytes);
        if end <= buffer.bytes {
            return Ok(());
        }
        Err(fault(format!("expected a view of the {} bytes of {}, found bytes {}..{end}", buffer.bytes, buffer.what, view.offset)))
    }

    /// As [`Arena::check`]; a view that is written to is not of a file either.
    pub fn check_writable(&self, view: &View) -> Result<(), ModelError> {
        self.check(view)?;
        let buffer = &self.buffers[view.buffer.0 as usize];
        if buffer.file.is_some() { Err(fault(format!("{} is read only", buffer.what))) } else { Ok(()) }
    }

    /// Host to view, now. The caller knows that the device is idle.
    pub fn write_idle(&self, to: View, bytes: &[u8]) -> Result<(), ModelError> {
        let to = View { bytes: bytes.len(), ..to };
        self.check_writable(&to)?;
        // SAFETY: the range is inside the buffer, whose memory the device does not use now.
        unsafe { self.address(&to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// View to view on the host, as [`Arena::write_idle`].
    pub fn copy_idle(&self, from: View, to: View) -> Result<(), ModelError> {
        self.check(&from)?;
        self.check_writable(&to)?;
        // SAFETY: both ranges are inside buffers that the device does not use now.
        unsafe { self.address(&to).copy_from(self.address(&from), from.bytes) };
        Ok(())
    }

    /// Zeros, as [`Arena::write_idle`].
    pub fn clear_idle(&self, view: View) -> Result<(), ModelError> {
        self.check_writable(&view)?;
        // SAFETY: the range is inside a buffer that the device does not use now.
        unsafe { self.address(&view).write_bytes(0, view.bytes) };
        Ok(())
    }

    /// View to host, as [`Arena::write_idle`].
    pub fn read_idle(&self, from: View, bytes: &mut [u8]) -> Result<(), ModelError> {
        let from = View { bytes: bytes.len(), ..from };
        self.check(&from)?;
        // SAFETY: the range is inside a buffer that the device does not use now.
        unsafe { self.address(&from).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn address(&self, view: &View) -> *mut u8 {
        let start = self.metal(view.buffer).contents().cast::<u8>();
        // SAFETY: the offset is inside the buffer, as the callers have checked.
        unsafe { start.add(view.offset).as_ptr() }
    }
}
