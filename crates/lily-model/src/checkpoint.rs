//! A checkpoint directory, opened and memory-mapped: tensors by name, no meaning attached.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Element types that occur in the checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    U32,
}

/// One shard's bytes: memory-mapped from disk, or part of the program.
#[derive(Debug)]
pub(crate) enum Shard {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
}

/// A range of a shard; cheap to clone, keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Bytes {
    shard: Arc<Shard>,
    range: Range<usize>,
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.shard {
            Shard::Mapped(map) => map,
            Shard::Static(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}
