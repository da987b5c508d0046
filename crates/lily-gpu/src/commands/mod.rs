//! Command lists: what a pass launches, and what must wait for what.
//!
//! A list is independent of any device. Launchers push [`Launch`]es in program order; the list derives the true
//! dependencies from the views that each reads and writes, and from them **levels**: launches of one level may run in
//! any order, or at once. Metal puts a barrier between levels, CUDA takes the edges, the simulator shuffles levels.

mod list;

pub use list::{CommandList, Plan};

/// A buffer of the device's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A range of bytes of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub buffer: BufferId,
    pub offset: usize,
    pub bytes: usize,
}

impl View {
    /// Whether two views share a byte.
    pub fn overlaps(&self, other: &View) -> bool {
        self.buffer == other.buffer && self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }

    /// `bytes` bytes, `offset` bytes after this view's start.
    ///
    /// # Panics
    /// If they are not inside this view.
    pub fn part(&self, offset: usize, bytes: usize) -> View {
        assert!(offset + bytes <= self.bytes, "bytes {offset}..{} of a view of {}", offset + bytes, self.bytes);
        View { buffer: self.buffer, offset: self.offset + offset, bytes }
    }
}

/// What a launch does with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Writes, or reads and writes.
    Write,
}

/// Bytes of a kernel's argument struct, at most.
pub const ARGS_MAX: usize = 128;

/// One kernel launch. `bindings[n]` is `[[buffer(n)]]`; the argument struct is the buffer after the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Entry name in the kernel source, such as `project_q4_2`.
    pub kernel: &'static str,
    /// The step, for profiles and traces.
    pub stage: &'static str,
    pub bindings: Vec<(View, Access)>,
    /// The argument struct, as the kernel lays it out.
    pub args: Vec<u8>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup, a multiple of 32.
    pub threads: u32,
}
