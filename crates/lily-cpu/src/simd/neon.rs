//! NEON: four lanes, on every aarch64 machine.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    pub(super) fn new() -> Self {
        // Every aarch64 target that Rust names has NEON.
        Neon(())
    }
}

/// Methods that are one intrinsic each.
macro_rules! intrinsics {
    ($($name:ident($($arg:ident),*) = $body:expr;)*) => {
        $(#[inline(always)]
        fn $name(self, $($arg: float32x4_t),*) -> float32x4_t {
            // SAFETY: every aarch64 machine has NEON.
            unsafe { $body }
        })*
    };
}

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const REGISTERS: usize = 32;

    intrinsics! {
        add(a, b) = vaddq_f32(a, b);
        sub(a, b) = vsubq_f32(a, b);
        mul(a, b) = vmulq_f32(a, b);
        div(a, b) = vdivq_f32(a, b);
        mul_add(a, b, c) = vfmaq_f32(c, a, b);
        neg_mul_add(a, b, c) = vfmsq_f32(c, a, b);
        max(a, b) = vmaxq_f32(a, b);
        round(x) = vrndnq_f32(x);
        pow2(x) = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(127))));
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: every aarch64 machine has NEON.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_f32(at) }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, x: float32x4_t) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(at, x) }
    }
    #[inline(always)]
    unsafe fn load_half(self, at: *const u16) -> float32x4_t {
        // The intrinsics for half floats ask for a type that older compilers lack; the instruction is in every NEON.
        // SAFETY: four values are readable, by the caller's promise; the instruction touches its two registers only.
        unsafe {
            let bits = vld1_u16(at);
            let wide: float32x4_t;
            asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = out(vreg) wide, bits = in(vreg) bits, options(pure, nomem, nostack));
            wide
        }
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u16, x: float32x4_t) {
        // SAFETY: as in `load_half`.
        unsafe {
            let bits: uint16x4_t;
            asm!("fcvtn {bits:v}.4h, {wide:v}.4s", wide = in(vreg) x, bits = out(vreg) bits, options(pure, nomem, nostack));
            vst1_u16(at, bits)
        }
    }
    #[inline(always)]
    fn clamp(self, x: float32x4_t, low: f32, high: f32) -> float32x4_t {
        // These give NaN where one operand is NaN.
        // SAFETY: every aarch64 machine has NEON.
        unsafe { vminq_f32(vmaxq_f32(x, vdupq_n_f32(low)), vdupq_n_f32(high)) }
    }
    #[inline(always)]
    fn sum(self, x: float32x4_t) -> f32 {
        // SAFETY: every aarch64 machine has NEON.
        unsafe { vaddvq_f32(x) }
    }
    #[inline(always)]
    fn max_lane(self, x: float32x4_t) -> f32 {
        // SAFETY: every aarch64 machine has NEON.
        unsafe { vmaxvq_f32(x) }
    }
}
