//! A group's quantisation in AVX2; bit for bit what the portable loop computes.

use std::arch::x86_64::*;

use super::{GROUP, Line};

/// Scale and `scale * sum` of one group, whose bytes enter `codes` from byte `at` of every line on.
#[target_feature(enable = "avx2")]
pub(super) fn group(inputs: &[f32; GROUP], at: usize, codes: &mut [Line]) -> (f32, f32) {
    // SAFETY: eight times eight inputs.
    let x: [__m256; 8] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(inputs.as_ptr().add(8 * i)) });
    // Magnitudes compare as integers: NaN counts as largest and spreads.
    let magnitude = |x: __m256| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff));
    let largest = x.iter().fold(_mm256_setzero_si256(), |largest, x| _mm256_max_epu32(largest, magnitude(*x)));
    let (scale, inverse) = super::scale(f32::from_bits(fold(largest, |a, b| _mm_max_epu32(a, b)) as u32), codes.len() / 2);
    let integers = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
    let sum = integers.iter().fold(_mm256_setzero_si256(), |sum, integer| _mm256_add_epi32(sum, *integer));
    let sum = fold(sum, |a, b| _mm_add_epi32(a, b));
    let planes = codes.as_chunks_mut::<2>().0;
    if planes.len() == 2 {
        store(integers.map(|i| _mm256_srai_epi32::<8>(_mm256_add_epi32(i, _mm256_set1_epi32(128)))), at, &mut planes[0]);
        store(integers, at, &mut planes[1]);
    } else {
        store(integers, at, &mut planes[0]);
    }
    (scale, scale * sum as f32)
}

/// Low bytes of 64 integers: those with even index to the first line, the others to the second.
#[inline]
#[target_feature(enable = "avx2")]
fn store(integers: [__m256i; 8], at: usize, lines: &mut [Line; 2]) {
    let bytes = integers.map(|i| _mm256_and_si256(i, _mm256_set1_epi32(255)));
    let in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let even_first =
        _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (half, four) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let (a, b) = (_mm256_packus_epi32(four[0], four[1]), _mm256_packus_epi32(four[2], four[3]));
        let ordered = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), in_order);
        let parted = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(ordered, even_first));
        let at = at + 16 * half;
        // SAFETY: sixteen bytes of each line; the slices check it.
        unsafe {
            _mm_storeu_si128(lines[0].0[at..at + 16].as_mut_ptr().cast(), _mm256_castsi256_si128(parted));
            _mm_storeu_si128(lines[1].0[at..at + 16].as_mut_ptr().cast(), _mm256_extracti128_si256::<1>(parted));
        }
    }
}

/// The eight values folded onto each other.
#[inline]
#[target_feature(enable = "avx2")]
fn fold(values: __m256i, join: impl Fn(__m128i, __m128i) -> __m128i) -> i32 {
    let four = join(_mm256_castsi256_si128(values), _mm256_extracti128_si256::<1>(values));
    let two = join(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(join(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
}
