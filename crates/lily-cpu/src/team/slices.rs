//! Memory that several members of a region write: [`Disjoint`] borrows a slice, [`Cells`] is a buffer.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;

/// A slice that members of a region write at disjoint places.
pub struct Disjoint<'a, T> {
    start: *mut T,
    length: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice` alone, whose caller promises disjoint ranges.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), length: slice.len(), life: PhantomData }
    }

    /// Elements `range`, exclusively.
    ///
    /// # Safety
    /// While the returned slice lives, no other slice of this `Disjoint` may overlap it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "range {range:?} outside 0..{}", self.length);
        // SAFETY: in bounds by the check, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

/// A buffer that members of a region fill in one phase and read in the next.
pub struct Cells<T> {
    cells: Vec<UnsafeCell<T>>,
}

impl<T> Default for Cells<T> {
    fn default() -> Cells<T> {
        Cells { cells: Vec::new() }
    }
}

// SAFETY: shared access goes through `slice` and `slice_mut`, whose callers keep the phases apart.
unsafe impl<T: Send + Sync> Sync for Cells<T> {}

impl<T: Clone> Cells<T> {
    /// Makes the buffer at least `length` long, keeping what it has.
    pub fn grow(&mut self, length: usize, value: T) {
        if self.cells.len() < length {
            self.cells.resize_with(length, || UnsafeCell::new(value.clone()));
        }
    }

    fn check(&self, range: &Range<usize>) {
        let length = self.cells.len();
        assert!(range.start <= range.end && range.end <= length, "range {range:?} outside 0..{length}");
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// While the returned slice lives, no `slice_mut` overlaps it.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[T] {
        self.check(&range);
        // SAFETY: in bounds; `UnsafeCell<T>` is laid out as `T`; unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.cells.as_ptr().add(range.start).cast(), range.len()) }
    }

    /// Elements `range`, exclusively.
    ///
    /// # Safety
    /// While the returned slice lives, no other slice overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        self.check(&range);
        let start = UnsafeCell::raw_get(self.cells.as_ptr());
        // SAFETY: in bounds; `UnsafeCell<T>` is laid out as `T`; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) }
    }
}
