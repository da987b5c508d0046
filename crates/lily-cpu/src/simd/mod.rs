//! Vectors of f32 for the loops that are not matrix products: one source, compiled once per instruction set.
//!
//! A loop is a [`Kernel`]: a struct of its operands with a `run` that is generic over [`Simd`]. [`Kernel::on`] picks the
//! instruction set at run time. A `Simd` value is a token: holding one means that the machine has the instructions, so
//! arithmetic through it is safe; only memory access is not, as it takes pointers.
//!
//! Results may differ between instruction sets by rounding (the order of sums follows the lane count), never between
//! thread counts.

mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::Isa;

/// One instruction set's vectors.
pub(crate) trait Simd: Copy {
    /// [`Simd::LANES`] values.
    type V: Copy;
    const LANES: usize;
    /// Vectors that the machine holds: 16 or 32.
    const REGISTERS: usize;

    /// Asks for the cache line at any address, which need not be readable.
    fn prefetch<T>(self, at: *const T);
    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `LANES` values are readable at `at`; no alignment is asked.
    unsafe fn load(self, at: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` values are writable at `at`; no alignment is asked.
    unsafe fn store(self, at: *mut f32, x: Self::V);
    /// Widens IEEE half floats.
    /// # Safety
    /// `LANES` values are readable at `at`.
    unsafe fn load_half(self, at: *const u16) -> Self::V;
    /// Narrows to IEEE half floats, rounding to nearest even; what the caller has not clamped may become infinite.
    /// # Safety
    /// `LANES` values are writable at `at`.
    unsafe fn store_half(self, at: *mut u16, x: Self::V);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`
    fn neg_mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Clamps to `low..=high`; NaN stays NaN.
    fn clamp(self, x: Self::V, low: f32, high: f32) -> Self::V;
    /// The larger of each pair; unspecified where one is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn round(self, x: Self::V) -> Self::V;
    /// `2^x` for integral `x` in -126..=127.
    fn pow2(self, x: Self::V) -> Self::V;
    /// Sum of the lanes.
    fn sum(self, x: Self::V) -> f32;
    /// Largest lane; unspecified where one is NaN.
    fn max_lane(self, x: Self::V) -> f32;

    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// Loads the first `count` values; the other lanes are zero.
    /// # Safety
    /// `min(count, LANES)` values are readable at `at`.
    #[inline(always)]
    unsafe fn load_some(self, at: *const f32, count: usize) -> Self::V {
        if count >= Self::LANES {
            // SAFETY: the caller's promise.
            return unsafe { self.load(at) };
        }
        let mut lanes = [0.0f32; 16];
        // SAFETY: `count < LANES <= 16` values, by the caller's promise; `lanes` holds 16.
        unsafe {
            std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), count);
            self.load(lanes.as_ptr())
        }
    }

    /// Stores the first `count` lanes.
    /// # Safety
    /// `min(count, LANES)` values are writable at `at`.
    #[inline(always)]
    unsafe fn store_some(self, at: *mut f32, count: usize, x: Self::V) {
        if count >= Self::LANES {
            // SAFETY: the caller's promise.
            return unsafe { self.store(at, x) };
        }
        let mut lanes = [0.0f32; 16];
        // SAFETY: `lanes` holds 16 >= LANES; `count` values are writable by the caller's promise.
        unsafe {
            self.store(lanes.as_mut_ptr(), x);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, count);
        }
    }

    /// `e^x`, relative error below 3e-7 for `x` in -87.3..=88.3, clamped outside. See `math`.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        math::exp(self, x)
    }

    /// `1 / (1 + e^-x)`
    #[inline(always)]
    fn sigmoid(self, x: Self::V) -> Self::V {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.zero(), x))))
    }

    /// `x * sigmoid(x)`
    #[inline(always)]
    fn silu(self, x: Self::V) -> Self::V {
        self.div(x, self.add(self.splat(1.0), self.exp(self.sub(self.zero(), x))))
    }
}

/// A loop over vectors, with its operands.
pub(crate) trait Kernel: Sized {
    type Output;

    /// The loop. Implementations are `#[inline(always)]`, so that they are compiled with the instructions of the caller
    /// in [`Kernel::on`].
    fn run<S: Simd>(self, simd: S) -> Self::Output;

    /// Runs the loop with the instructions of `isa`.
    #[inline]
    fn on(self, isa: Isa) -> Self::Output {
        match isa {
            // SAFETY: an `Isa` is only made for a machine that has it (`Isa::is_available`).
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { x86::run_avx512(self) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::run_avx2(self) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => self.run(neon::Neon::new()),
            _ => self.run(portable::Portable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apply<'a> {
        x: &'a mut [f32],
        silu: bool,
    }

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for at in (0..self.x.len()).step_by(S::LANES) {
                let count = self.x.len() - at;
                let place = self.x[at..].as_mut_ptr();
                // SAFETY: `count` values follow `at`.
                unsafe {
                    let x = s.load_some(place, count);
                    s.store_some(place, count, if self.silu { s.silu(x) } else { s.exp(x) });
                }
            }
        }
    }

    #[test]
    fn exp_and_silu_are_close_to_f64() {
        for isa in Isa::available() {
            let inputs: Vec<f32> = (-87_000..88_003).map(|i| i as f32 * 1e-3).collect();
            for silu in [false, true] {
                let mut x = inputs.clone();
                Apply { x: &mut x, silu }.on(isa);
                for (&x, &found) in inputs.iter().zip(&x) {
                    let exact = f64::from(x);
                    let exact = if silu { exact / (1.0 + (-exact).exp()) } else { exact.exp() };
                    let error = (f64::from(found) - exact).abs();
                    assert!(error <= 4e-7 * exact.abs() + 1e-37, "{isa}: {x}: expected {exact}, found {found}");
                }
            }
        }
    }

    #[test]
    fn nan_stays_nan_and_infinities_saturate() {
        for isa in Isa::available() {
            let mut x = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 0.0, 1.0];
            Apply { x: &mut x, silu: false }.on(isa);
            assert!(x[0].is_nan() && x[1] < 2e-38 && x[2] > 1e38 && x[3] == 1.0, "{isa}: {x:?}");
        }
    }

    struct Halves<'a>(&'a [f32; 16], &'a mut [u16; 16], &'a mut [f32; 16]);

    impl Kernel for Halves<'_> {
        type Output = (f32, f32);

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> (f32, f32) {
            let (mut sum, mut max) = (s.zero(), s.splat(f32::NEG_INFINITY));
            for at in (0..16).step_by(S::LANES) {
                // SAFETY: 16 is a multiple of every lane count.
                unsafe {
                    let x = s.load(self.0.as_ptr().add(at));
                    s.store_half(self.1.as_mut_ptr().add(at), s.clamp(x, -65504.0, 65504.0));
                    let back = s.load_half(self.1.as_ptr().add(at));
                    s.store(self.2.as_mut_ptr().add(at), back);
                    sum = s.add(sum, x);
                    max = s.max(max, x);
                }
            }
            (s.sum(sum), s.max_lane(max))
        }
    }

    #[test]
    fn halves_round_trip_and_lanes_reduce() {
        for isa in Isa::available() {
            let x: [f32; 16] = std::array::from_fn(|i| (i as f32 - 3.3) * [1.0, 1e-6, 1e4, 1e-3][i % 4]);
            let (mut bits, mut back) = ([0; 16], [0.0; 16]);
            let (sum, max) = Halves(&x, &mut bits, &mut back).on(isa);
            for (i, &x) in x.iter().enumerate() {
                let expected = half::f16::from_f32(x.clamp(-65504.0, 65504.0));
                assert_eq!(bits[i], expected.to_bits(), "{isa}: {x}");
                assert_eq!(back[i], expected.to_f32(), "{isa}: {x}");
            }
            assert!((sum - x.iter().sum::<f32>()).abs() < 0.05, "{isa}: {sum}");
            assert_eq!(max, x.iter().copied().fold(f32::NEG_INFINITY, f32::max), "{isa}");
        }
    }
}
