//! The exponential over vectors.

use super::Simd;

/// `e^x` as `2^n * e^r` with `n` the nearest integer to `x / ln 2` and `|r| <= ln(2) / 2`; `e^r` by a polynomial of
/// degree 7 (the coefficients of Cephes' `expf`). `ln 2` is split in two, so that `r` keeps its low bits.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.clamp(x, -87.3, 88.3);
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.neg_mul_add(n, s.splat(0.693_359_4), x);
    let r = s.neg_mul_add(n, s.splat(-2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.mul_add(p, r, s.splat(coefficient));
    }
    let p = s.mul_add(p, s.mul(r, r), s.add(r, s.splat(1.0)));
    s.mul(p, s.pow2(n))
}
