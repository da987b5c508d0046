//! The partial results of one decoded row and one query head, put together.

use super::{AttentionDims, BLOCKS_MAX};
use crate::simd::{Kernel, Simd};

/// Sums the blocks in their order, scaled to the common maximum, and applies the gate.
pub(crate) struct Combine<'a> {
    pub dims: AttentionDims,
    /// `[blocks, partial]`
    pub partials: &'a [f32],
    /// `[head_dim]`
    pub gate: &'a [f32],
    /// `[head_dim]`
    pub out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (size, dim) = (self.dims.partial(), self.dims.head_dim);
        let blocks = || self.partials.chunks_exact(size);
        let max = blocks().map(|partial| partial[0]).fold(f32::NEG_INFINITY, f32::max);
        let mut weights = [0.0f32; BLOCKS_MAX];
        let mut total = 0.0;
        for (weight, partial) in weights.iter_mut().zip(blocks()) {
            *weight = (partial[0] - max).exp();
            total += partial[1] * *weight;
        }
        let (gate, out) = (&self.gate[..dim], &mut self.out[..dim]);
        for at in (0..dim).step_by(S::LANES) {
            let left = dim - at;
            let mut sum = s.zero();
            for (partial, &weight) in blocks().zip(&weights) {
                // SAFETY: a partial has `16 + stride` values, and `stride` is `dim` rounded up to whole vectors.
                let values = unsafe { s.load(partial.as_ptr().add(16 + at)) };
                sum = s.mul_add(values, s.splat(weight), sum);
            }
            // SAFETY: `left` values follow `at` in `gate` and `out`.
            unsafe {
                let gate = s.sigmoid(s.load_some(gate.as_ptr().add(at), left));
                s.store_some(out.as_mut_ptr().add(at), left, s.mul(s.div(sum, s.splat(total)), gate));
            }
        }
    }
}
