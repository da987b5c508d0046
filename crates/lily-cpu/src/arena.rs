//! Memory allocated at load and only written later: zeroed, page-aligned, resident once touched.
//!
//! An arena asks the system for an anonymous mapping, so that room for a long context or for many sequences costs
//! address space, not memory, until it is used.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use lily_model::ModelError;
use memmap2::MmapMut;

/// Element types for which all-zero bytes are a value, without padding.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}
impl Plain for f32 {}
impl Plain for u16 {}

/// A fixed number of values, zero at first.
pub(crate) struct Arena<T> {
    map: MmapMut,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Plain> Arena<T> {
    /// `what` names the arena in the error of a machine that has no room for it.
    pub fn new(length: usize, what: &str) -> Result<Self, ModelError> {
        let bytes = length.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        let mapped = bytes.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory));
        let map = mapped.and_then(|bytes| MmapMut::map_anon(bytes.max(1)));
        let map =
            map.map_err(|error| ModelError::Device(format!("{what}: no room for {length} values of {} bytes: {error}", size_of::<T>())))?;
        // Large pages save address translation in the state and activation loops; where there are none, small ones do.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Arena { map, length, element: PhantomData })
    }
}

impl<T: Plain> Deref for Arena<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `length` values of `T`, page-aligned, and any bytes are a value of a `Plain` type.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.length) }
    }
}

impl<T: Plain> DerefMut for Arena<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the exclusive borrow of the arena covers the mapping.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.length) }
    }
}

/// Bytes of values, for copies outside the arena.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: a `Plain` type has no padding; the length is that of the slice in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Overwrites values by bytes of the same length.
pub(crate) fn copy_bytes<T: Plain>(values: &mut [T], bytes: &[u8]) {
    assert_eq!(size_of_val(values), bytes.len(), "copy of another length");
    // SAFETY: lengths agree, the slices cannot overlap as one is exclusive, and any bytes are a value of a `Plain` type.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), bytes.len()) }
}
