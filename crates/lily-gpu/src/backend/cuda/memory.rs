//! Memory: the device's buffers and the pinned host memory through which all bytes pass. Start with [`Arena`] for what a
//! view means on the device, and with [`Ring`] for how bytes get there without waiting.

use std::sync::Arc;

use cudarc::driver::sys;
use lily_model::ModelError;

use super::driver::{Driver, check, fault};
use crate::backend::{PENDING_BYTES, PENDING_MAX};
use crate::commands::{BufferId, View};

/// Kept free for what the driver takes on its own: modules, graphs, local memory of the kernels.
const RESERVE: usize = 512 << 20;
/// Bytes that are worth a thread of their own when they are copied from or into pinned memory.
const COPY_SHARE: usize = 1 << 20;
const COPY_THREADS_MAX: usize = 16;

/// All buffers of a device.
pub(super) struct Arena {
    driver: Arc<Driver>,
    buffers: Vec<Buffer>,
    /// What they may take together: what was free at the start, less a reserve.
    pub budget: usize,
    taken: usize,
}

struct Buffer {
    address: sys::CUdeviceptr,
    bytes: usize,
    what: String,
}

impl Arena {
    pub fn new(driver: Arc<Driver>) -> Result<Self, ModelError> {
        let (free, _) = driver.memory()?;
        Ok(Arena { driver, buffers: Vec::new(), budget: free.saturating_sub(RESERVE), taken: 0 })
    }

    /// A buffer with undefined contents.
    pub fn allocate(&mut self, bytes: usize, what: &str) -> Result<BufferId, ModelError> {
        let short = |free: usize, total: usize, taken: usize| {
            fault(format!(
                "{what}: expected {} of free memory, found {} of {} on {}, with {} taken by this model",
                size(bytes),
                size(free),
                size(total),
                self.driver.name,
                size(taken)
            ))
        };
        let (free, total) = self.driver.memory()?;
        if bytes > free {
            return Err(short(free, total, self.taken));
        }
        let mut address = 0;
        // SAFETY: `address` outlives the call. No buffer is empty for the driver.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(short(free, total, self.taken));
        }
        check(result, || format!("{what}: a buffer of {}", size(bytes)))?;
        self.taken += bytes;
        self.buffers.push(Buffer { address, bytes, what: what.to_owned() });
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    /// Where a view is.
    ///
    /// # Errors
    /// If it is no part of a buffer: a bug of the caller, which must not reach the device.
    pub fn address(&self, view: View) -> Result<sys::CUdeviceptr, ModelError> {
        let Some(buffer) = self.buffers.get(view.buffer.0 as usize) else {
            return Err(fault(format!("expected a buffer below {}, found number {}", self.buffers.len(), view.buffer.0)));
        };
        if view.offset.checked_add(view.bytes).is_none_or(|end| end > buffer.bytes) {
            let View { offset, bytes, .. } = view;
            return Err(fault(format!("{}: expected a view inside {} bytes, found {bytes} bytes at {offset}", buffer.what, buffer.bytes)));
        }
        Ok(buffer.address + view.offset as u64)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.driver.enter().is_ok() {
            for buffer in &self.buffers {
                // SAFETY: allocated above, freed once; the driver waits for work that uses it.
                let _ = unsafe { sys::cuMemFree_v2(buffer.address) };
            }
        }
    }
}

/// `19.5 GB`, for messages.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A point in the stream that the host can wait for.
pub(super) struct Event {
    driver: Arc<Driver>,
    pub handle: sys::CUevent,
}

impl Event {
    /// `timed`: two of them tell the time between. Others are cheaper.
    pub fn new(driver: &Arc<Driver>, timed: bool) -> Result<Self, ModelError> {
        let flags = if timed { sys::CUevent_flags_enum::CU_EVENT_DEFAULT } else { sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        check(unsafe { sys::cuEventCreate(&mut handle, flags as u32) }, || "an event".into())?;
        Ok(Event { driver: driver.clone(), handle })
    }

    /// Puts it at the end of the stream.
    fn record(&self) -> Result<(), ModelError> {
        // SAFETY: event and stream live.
        check(unsafe { sys::cuEventRecord(self.handle, self.driver.stream) }, || "marking the queue".into())
    }

    /// Waits until the stream has come past it.
    fn wait(&self) -> Result<(), ModelError> {
        // SAFETY: the event lives.
        check(unsafe { sys::cuEventSynchronize(self.handle) }, || "running the queued work".into())
    }

    /// Microseconds from `start` to this one, both past.
    pub fn since(&self, start: &Event) -> Result<f32, ModelError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events live.
        check(unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.handle, self.handle) }, || "reading the device's clock".into())?;
        Ok(milliseconds * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: destroyed once; the driver keeps it until it is past.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// Host memory that the device reads and writes by itself.
struct Pinned {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pinned {}
// SAFETY: as for `Driver`: an event's calls may come from any thread.
unsafe impl Send for Event {}

impl Pinned {
    fn new(bytes: usize) -> Result<Self, ModelError> {
        let mut start = std::ptr::null_mut();
        // SAFETY: `start` outlives the call.
        check(unsafe { sys::cuMemHostAlloc(&mut start, bytes, 0) }, || format!("{} of pinned host memory", size(bytes)))?;
        // SAFETY: just allocated. Set, so that it may be seen as a slice.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        Ok(Pinned { start: start.cast(), bytes })
    }

    /// # Safety
    /// The device does not use the memory until the slice is gone.
    unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated and set in `new`; the caller keeps the device away.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once; the driver waits for copies under way.
        let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

/// Slots of pinned memory used in turn: bytes are queued as soon as they are in one, and a slot is used again once the
/// device is done with it. Several small writes share a slot.
pub(super) struct Ring {
    driver: Arc<Driver>,
    slots: Vec<(Pinned, Event)>,
    slot_bytes: usize,
    current: usize,
    /// Bytes of the current slot that are used.
    used: usize,
}

impl Ring {
    pub fn new(driver: &Arc<Driver>, slots: usize, slot_bytes: usize) -> Result<Self, ModelError> {
        let slot = |_| Ok((Pinned::new(slot_bytes)?, Event::new(driver, false)?));
        let slots = (0..slots).map(slot).collect::<Result<_, ModelError>>()?;
        Ok(Ring { driver: driver.clone(), slots, slot_bytes, current: 0, used: 0 })
    }

    /// Queues a copy to the device; `bytes` are taken when it returns.
    pub fn write(&mut self, mut to: sys::CUdeviceptr, mut bytes: &[u8]) -> Result<(), ModelError> {
        while !bytes.is_empty() {
            if self.used == self.slot_bytes {
                self.turn()?;
            }
            let count = bytes.len().min(self.slot_bytes - self.used);
            // SAFETY: the rest of the slot is not in use: the device is done with what was in it before the turn.
            let room = unsafe { &mut self.slots[self.current].0.bytes()[self.used..self.used + count] };
            copy(room, &bytes[..count]);
            // SAFETY: the room stays as it is until the slot's event, and the target is inside a buffer.
            let queued = unsafe { sys::cuMemcpyHtoDAsync_v2(to, room.as_ptr().cast(), count, self.driver.stream) };
            check(queued, || format!("copying {} to the device", size(count)))?;
            (to, bytes, self.used) = (to + count as u64, &bytes[count..], self.used + count);
        }
        Ok(())
    }

    /// Reads from the device, waiting for all that is queued. The host copies one slot while the device fills another.
    pub fn read(&mut self, from: sys::CUdeviceptr, bytes: &mut [u8]) -> Result<(), ModelError> {
        if bytes.len() <= self.slot_bytes {
            return self.read_one(from, bytes);
        }
        let slots = self.slots.len();
        let mut parts: Vec<&mut [u8]> = bytes.chunks_mut(self.slot_bytes).collect();
        for step in 0..parts.len() + slots {
            if let Some(part) = step.checked_sub(slots).and_then(|done| parts.get_mut(done)) {
                let (slot, event) = &mut self.slots[step % slots];
                event.wait()?;
                // SAFETY: the event says that the device is done with the slot.
                copy(part, unsafe { &slot.bytes()[..part.len()] });
            }
            if let Some(part) = parts.get(step) {
                let (slot, event) = &self.slots[step % slots];
                let from = from + (step * self.slot_bytes) as u64;
                // SAFETY: the source is inside a buffer; no one looks at the slot before its event.
                let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(slot.start.cast(), from, part.len(), self.driver.stream) };
                check(queued, || format!("copying {} from the device", size(part.len())))?;
                event.record()?;
            }
        }
        Ok(())
    }

    /// What fits a slot, without an event: the shortest way to a few bytes.
    fn read_one(&mut self, from: sys::CUdeviceptr, bytes: &mut [u8]) -> Result<(), ModelError> {
        let slot = &mut self.slots[0].0;
        // SAFETY: the source is inside a buffer, the slot is large enough, and the wait is right below.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(slot.start.cast(), from, bytes.len(), self.driver.stream) };
        check(queued, || format!("copying {} from the device", size(bytes.len())))?;
        self.driver.wait()?;
        // SAFETY: the device is done.
        copy(bytes, unsafe { &slot.bytes()[..bytes.len()] });
        Ok(())
    }

    /// Ends the current slot and waits for the next one to be free.
    fn turn(&mut self) -> Result<(), ModelError> {
        self.slots[self.current].1.record()?;
        self.current = (self.current + 1) % self.slots.len();
        self.used = 0;
        self.slots[self.current].1.wait()
    }
}

/// Reads of a few bytes that the host comes back for, in slots of pinned memory used in turn.
pub(super) struct Returns {
    driver: Arc<Driver>,
    slots: Vec<(Pinned, Event)>,
    begun: u64,
}

impl Returns {
    pub fn new(driver: &Arc<Driver>) -> Result<Self, ModelError> {
        let slot = |_| Ok((Pinned::new(PENDING_BYTES)?, Event::new(driver, false)?));
        let slots = (0..PENDING_MAX).map(slot).collect::<Result<_, ModelError>>()?;
        Ok(Returns { driver: driver.clone(), slots, begun: 0 })
    }

    /// Queues a read; the number is for [`Returns::end`].
    pub fn begin(&mut self, from: sys::CUdeviceptr, bytes: usize) -> Result<u64, ModelError> {
        if bytes > PENDING_BYTES {
            return Err(fault(format!("expected a read of at most {PENDING_BYTES} bytes, found {bytes}")));
        }
        let (slot, event) = &self.slots[self.begun as usize % PENDING_MAX];
        // SAFETY: the source is inside a buffer and fits the slot, which nobody looks at before its event. A read that was
        // never ended wrote before this one does: they are in one stream.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(slot.start.cast(), from, bytes, self.driver.stream) };
        check(queued, || format!("copying {} from the device", size(bytes)))?;
        event.record()?;
        self.begun += 1;
        Ok(self.begun - 1)
    }

    /// Waits for a read.
    pub fn end(&mut self, number: u64, bytes: usize) -> Result<Box<[u8]>, ModelError> {
        if number >= self.begun || self.begun - number > PENDING_MAX as u64 || bytes > PENDING_BYTES {
            return Err(fault(format!("expected one of the last {PENDING_MAX} of {} reads, found number {number}", self.begun)));
        }
        let (slot, event) = &mut self.slots[number as usize % PENDING_MAX];
        event.wait()?;
        // SAFETY: the event says that the device is done with the slot.
        Ok(unsafe { slot.bytes()[..bytes].into() })
    }
}

/// One thread alone does not reach the speed of the bus.
fn copy(to: &mut [u8], from: &[u8]) {
    let threads = (to.len() / COPY_SHARE).min(COPY_THREADS_MAX).min(std::thread::available_parallelism().map_or(1, |count| count.get()));
    if threads < 2 {
        return to.copy_from_slice(from);
    }
    let share = to.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_are_shared_and_whole() {
        let from: Vec<u8> = (0..5 * COPY_SHARE + 7).map(|n| (n % 251) as u8).collect();
        let mut to = vec![0; from.len()];
        copy(&mut to, &from);
        assert!(to == from);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1_500_000), "1.5 MB");
        assert_eq!(size(19_500_000_000), "19.5 GB");
    }
}
