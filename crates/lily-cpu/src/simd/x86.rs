//! AVX2 with FMA and F16C (eight lanes), and AVX-512F (sixteen).

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Holding one means that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Holding one means that the machine has AVX-512F.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// # Safety
/// The machine has AVX-512F, and AVX2, FMA and F16C as any such machine.
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Methods that are one intrinsic each. All are safe to call: the token proves the instructions.
macro_rules! intrinsics {
    ($vector:ty: $($name:ident($($arg:ident),*) = $body:expr;)*) => {
        $(#[inline(always)]
        fn $name(self, $($arg: $vector),*) -> $vector {
            // SAFETY: the token proves that the machine has the instructions.
            unsafe { $body }
        })*
    };
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    intrinsics! { __m256:
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
        neg_mul_add(a, b, c) = _mm256_fnmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
        round(x) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        pow2(x) = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127))));
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: the token proves that the machine has the instructions.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m256 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_loadu_ps(at) }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, x: __m256) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_storeu_ps(at, x) }
    }
    #[inline(always)]
    unsafe fn load_half(self, at: *const u16) -> __m256 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u16, x: __m256) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm_storeu_si128(at.cast(), _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x)) }
    }
    #[inline(always)]
    fn clamp(self, x: __m256, low: f32, high: f32) -> __m256 {
        // Both return their second operand where one is NaN.
        // SAFETY: the token proves that the machine has the instructions.
        unsafe { _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x)) }
    }
    #[inline(always)]
    fn sum(self, x: __m256) -> f32 {
        // SAFETY: the token proves that the machine has the instructions.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn max_lane(self, x: __m256) -> f32 {
        // SAFETY: the token proves that the machine has the instructions.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    intrinsics! { __m512:
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
        neg_mul_add(a, b, c) = _mm512_fnmadd_ps(a, b, c);
        max(a, b) = _mm512_max_ps(a, b);
        round(x) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        pow2(x) = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127))));
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: the token proves that the machine has the instructions.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m512 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_loadu_ps(at) }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, x: __m512) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_storeu_ps(at, x) }
    }
    #[inline(always)]
    unsafe fn load_half(self, at: *const u16) -> __m512 {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
    #[inline(always)]
    unsafe fn store_half(self, at: *mut u16, x: __m512) {
        // SAFETY: the caller's promise, and the token.
        unsafe { _mm256_storeu_si256(at.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(x)) }
    }
    #[inline(always)]
    fn clamp(self, x: __m512, low: f32, high: f32) -> __m512 {
        // Both return their second operand where one is NaN.
        // SAFETY: the token proves that the machine has the instructions.
        unsafe { _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x)) }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        // SAFETY: the token proves that the machine has the instructions.
        unsafe { _mm512_reduce_add_ps(x) }
    }
    #[inline(always)]
    fn max_lane(self, x: __m512) -> f32 {
        // SAFETY: the token proves that the machine has the instructions.
        unsafe { _mm512_reduce_max_ps(x) }
    }
}
