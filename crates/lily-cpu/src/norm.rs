//! The root-mean-square norms of rows.

use crate::simd::{Kernel, Simd};

/// `out = x * gain / sqrt(mean(x^2) + eps)` for each row of `x [rows, gain.len()]`.
pub(crate) struct RmsNorm<'a> {
    pub x: &'a [f32],
    pub gain: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.gain.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let scale = s.splat(1.0 / (sum_of_squares(s, x) / width as f32 + self.eps).sqrt());
            for at in (0..width).step_by(S::LANES) {
                let count = width - at;
                // SAFETY: `count` values follow `at` in all three slices of length `width`.
                unsafe {
                    let x = s.load_some(x.as_ptr().add(at), count);
                    let gain = s.load_some(self.gain.as_ptr().add(at), count);
                    s.store_some(out.as_mut_ptr().add(at), count, s.mul(s.mul(x, scale), gain));
                }
            }
        }
    }
}

/// `sum(x^2)` in four vectors of partial sums.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.zero(); 4];
    let mut at = 0;
    while at + 4 * S::LANES <= x.len() {
        for (lane, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `4 * LANES` values follow `at`.
            let x = unsafe { s.load(x.as_ptr().add(at + lane * S::LANES)) };
            *sum = s.mul_add(x, x, *sum);
        }
        at += 4 * S::LANES;
    }
    while at < x.len() {
        // SAFETY: `len - at` values follow `at`.
        let rest = unsafe { s.load_some(x.as_ptr().add(at), x.len() - at) };
        sums[0] = s.mul_add(rest, rest, sums[0]);
        at += S::LANES;
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Scales `x` in place.
#[inline(always)]
pub(crate) fn scale<S: Simd>(s: S, x: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    for at in (0..x.len()).step_by(S::LANES) {
        let count = x.len() - at;
        // SAFETY: `count` values follow `at`.
        unsafe {
            let place = x.as_mut_ptr().add(at);
            s.store_some(place, count, s.mul(s.load_some(place, count), factor));
        }
    }
}
