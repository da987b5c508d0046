//! Before attention: norm and rotation of queries and keys, keys and values into the cache.

use super::AttentionDims;
use crate::kv::StoreHalf;
use crate::norm::sum_of_squares;
use crate::rope::rotate;
use crate::simd::{Kernel, Simd};

/// One row and one key/value head, with the query heads that share it.
pub(crate) struct PrepareHead<'a> {
    pub dims: AttentionDims,
    /// The group's queries and gates, `[group, 2 * head_dim]`; queries change in place.
    pub queries: &'a mut [f32],
    /// `[head_dim]`; changes in place.
    pub key: &'a mut [f32],
    pub value: &'a [f32],
    pub query_gain: &'a [f32],
    pub key_gain: &'a [f32],
    /// Cosines and sines of the row's position.
    pub angles: (&'a [f32], &'a [f32]),
    /// The position's rows of the cache, `[stride]`.
    pub cached_key: &'a mut [u16],
    pub cached_value: &'a mut [u16],
}

impl Kernel for PrepareHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.dims.head_dim;
        for head in self.queries.chunks_exact_mut(2 * dim) {
            norm_in_place(s, &mut head[..dim], self.query_gain, self.dims.eps);
            rotate(&mut head[..dim], self.angles);
        }
        norm_in_place(s, self.key, self.key_gain, self.dims.eps);
        rotate(self.key, self.angles);
        StoreHalf { x: self.key, out: self.cached_key }.run(s);
        StoreHalf { x: self.value, out: self.cached_value }.run(s);
    }
}

#[inline(always)]
fn norm_in_place<S: Simd>(s: S, x: &mut [f32], gain: &[f32], eps: f32) {
    let gain = &gain[..x.len()];
    let factor = s.splat(1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt());
    for at in (0..x.len()).step_by(S::LANES) {
        let left = x.len() - at;
        // SAFETY: `left` values follow `at` in both slices.
        unsafe {
            let place = x.as_mut_ptr().add(at);
            let normed = s.mul(s.load_some(place, left), factor);
            s.store_some(place, left, s.mul(normed, s.load_some(gain.as_ptr().add(at), left)));
        }
    }
}
