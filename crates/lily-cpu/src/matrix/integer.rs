//! Products of 4-bit weights with quantised activations: which loop serves which call.
//!
//! Start with [`multiply`]. Loops of one instruction set share a file; all compute, per group of 64,
//! `scale * x_scale * sum(code * x) + bias * x_sum` with the inner sum exact, so they differ only in the
//! order of the f32 sum over groups (relative 1e-6 or less).

use std::ops::Range;

use super::workspace::LoopScratch;
use super::View;
use crate::isa::Isa;
use crate::quantise::{Activations, Quantised};

/// Up to so many rows of activations the weights stream through a matrix-vector loop; above, panels of
/// them are repacked in cache.
pub const GEMV_ROWS: usize = 4;

/// Whether the integer loops take the matrix.
pub fn serves(isa: Isa, view: &View<'_>, activations: Activations) -> bool {
    let loops = match isa {
        Isa::Portable | Isa::Neon | Isa::NeonDot | Isa::Avx2 | Isa::Avx512 => false,
    };
    loops && activations != Activations::F32 && view.is_integer()
}

/// `out[n, r] = w[range.start + r] . x[index[n]]`.
pub fn multiply(
    isa: Isa,
    view: &View<'_>,
    range: Range<usize>,
    x: &Quantised,
    index: &[u32],
    out: &mut [f32],
    scratch: &mut LoopScratch,
) {
    let _ = (isa, view, range, x, index, out, scratch);
    unreachable!("no instruction set is served");
}
