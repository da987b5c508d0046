//! AVX2: a group's 64 codes are one vector load; unsigned codes meet signed bytes in `maddubs`.
//!
//! A pair of products is at most 2 * 15 * 128 in magnitude, so that 16-bit sums of eight pairs are exact;
//! the high plane enters with weight 256 in the `madd` that widens to 32 bits.

// Register tiles are indexed in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{AHEAD_GROUPS, Panel, PanelLoops, ROWS_MAX, Tile};
use super::{Input, Later, Weights, later};
use crate::quantise::BLOCK;

/// Panels of two vectors of rows and tiles of four: eight sums, two weights and an input in sixteen registers.
pub(super) const LOOPS: PanelLoops = PanelLoops { rows: ROWS, tile_rows: 4, repack, tile };
/// Weight rows of a panel.
const ROWS: usize = 16;

/// Groups whose scales are converted together.
const CHUNK: usize = 8;

/// `out[n, r] = w[range.start + r] . x[n]`; at most [`super::GEMV_ROWS`] inputs.
///
/// # Safety
/// The machine has AVX2 and FMA; weights, inputs and `out` have the shapes that `range` asks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn gemv(
    planes: usize,
    weights: &Weights,
    range: Range<usize>,
    next: (&Weights, usize),
    inputs: &[Input],
    out: &mut [f32],
) {
    // SAFETY: passed on.
    unsafe {
        match (planes, inputs) {
            (1, &[a]) => streams::<1, 4, 1>(weights, range, next, [a], out),
            (1, &[a, b]) => streams::<1, 2, 2>(weights, range, next, [a, b], out),
            (1, &[a, b, c]) => streams::<1, 2, 3>(weights, range, next, [a, b, c], out),
            (1, &[a, b, c, d]) => streams::<1, 2, 4>(weights, range, next, [a, b, c, d], out),
            (_, &[a]) => streams::<2, 4, 1>(weights, range, next, [a], out),
            (_, &[a, b]) => streams::<2, 2, 2>(weights, range, next, [a, b], out),
            (_, &[a, b, c]) => streams::<2, 2, 3>(weights, range, next, [a, b, c], out),
            (_, &[a, b, c, d]) => streams::<2, 2, 4>(weights, range, next, [a, b, c, d], out),
            _ => unreachable!("a matrix-vector loop takes one to four rows"),
        }
    }
}

/// Row `i` of each of `S` equal parts of the range at once, then what the parts leave over.
///
/// # Safety
/// As [`gemv`].
#[target_feature(enable = "avx2,fma")]
unsafe fn streams<const P: usize, const S: usize, const T: usize>(
    weights: &Weights,
    range: Range<usize>,
    next: (&Weights, usize),
    inputs: [Input; T],
    out: &mut [f32],
) {
    let width = range.len();
    let part = width / S;
    for i in 0..part {
        let rows: [usize; S] = std::array::from_fn(|s| s * part + i);
        let later = later(weights, range.start, next, part, i);
        // SAFETY: passed on.
        unsafe { dots::<P, S, T>(weights, rows.map(|row| range.start + row), later, &inputs, |s, t, y| out[t * width + rows[s]] = y) };
    }
    for row in S * part..width {
        // SAFETY: passed on.
        unsafe {
            dots::<P, 1, T>(weights, [range.start + row], [weights.row(range.start + row)], &inputs, |_, t, y| out[t * width + row] = y)
        };
    }
}

/// Products of `S` weight rows with `T` inputs; `later` are prefetched meanwhile.
///
/// # Safety
/// As [`gemv`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn dots<const P: usize, const S: usize, const T: usize>(
    weights: &Weights,
    rows: [usize; S],
    later: [Later; S],
    inputs: &[Input; T],
    mut store: impl FnMut(usize, usize, f32),
) {
    let mut sums = [[_mm256_setzero_ps(); T]; S];
    let mut factors = [[0f32; CHUNK]; T];
    for first in (0..weights.groups).step_by(CHUNK) {
        let count = CHUNK.min(weights.groups - first);
        for s in 0..S {
            let at = rows[s] * weights.groups + first;
            // SAFETY: groups `first..first + count` are the row's; prefetches may name any address.
            let (scales, biases, codes) = unsafe {
                prefetch_once_a_line(later[s].scales.wrapping_add(2 * first));
                prefetch_once_a_line(later[s].biases.wrapping_add(2 * first));
                let codes = weights.codes.add((rows[s] * weights.cols) / 2 + 32 * first);
                (eight_bf16(weights.scales.add(2 * at), count), eight_bf16(weights.biases.add(2 * at), count), codes)
            };
            for t in 0..T {
                // SAFETY: an input's scales and sums are readable past its last group.
                unsafe {
                    let x_scales = _mm256_loadu_ps(inputs[t].scales.add(first));
                    _mm256_storeu_ps(factors[t].as_mut_ptr(), _mm256_mul_ps(scales, x_scales));
                    let x_sums = _mm256_loadu_ps(inputs[t].sums.add(first));
                    sums[s][t] = _mm256_fmadd_ps(biases, x_sums, sums[s][t]);
                }
            }
            // Two sums by turns: one alone would wait for the latency of its own additions.
            let mut turns = [[_mm256_setzero_ps(); T]; 2];
            for g in 0..count {
                // SAFETY: 32 bytes of codes are one group.
                let codes = unsafe {
                    let at = codes.add(32 * g);
                    if g % 2 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(later[s].codes.wrapping_add(32 * (first + g)).cast());
                    }
                    _mm256_loadu_si256(at.cast())
                };
                let low = _mm256_and_si256(codes, _mm256_set1_epi8(15));
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), _mm256_set1_epi8(15));
                for t in 0..T {
                    let group = first + g;
                    // SAFETY: the input has this group.
                    let dot = unsafe { group_dot::<P>(low, high, inputs[t].codes.add(group / 2 * BLOCK * P + group % 2 * 32)) };
                    let factor = _mm256_set1_ps(factors[t][g]);
                    turns[g % 2][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), factor, turns[g % 2][t]);
                }
            }
            for t in 0..T {
                sums[s][t] = _mm256_add_ps(sums[s][t], _mm256_add_ps(turns[0][t], turns[1][t]));
            }
        }
    }
    for s in 0..S {
        for t in 0..T {
            store(s, t, lane_sum(sums[s][t]));
        }
    }
}

/// Eight partial sums of code times input over a group. `x`: 32 even inputs, 64 bytes on 32 odd ones; the
/// low plane a block further.
///
/// # Safety
/// `x` has those bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn group_dot<const P: usize>(low: __m256i, high: __m256i, x: *const i8) -> __m256i {
    let plane = |at: *const i8| {
        // SAFETY: by the caller's promise.
        let (even, odd) = unsafe { (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(64).cast())) };
        _mm256_add_epi16(_mm256_maddubs_epi16(low, even), _mm256_maddubs_epi16(high, odd))
    };
    if P == 1 {
        return _mm256_madd_epi16(plane(x), _mm256_set1_epi16(1));
    }
    let (first, second) = (plane(x), plane(x.wrapping_add(BLOCK)));
    _mm256_add_epi32(_mm256_madd_epi16(first, _mm256_set1_epi16(256)), _mm256_madd_epi16(second, _mm256_set1_epi16(1)))
}

/// The first `count` of eight bf16 as f32; zero after.
///
/// # Safety
/// `count` values are readable at `at`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn eight_bf16(at: *const u8, count: usize) -> __m256 {
    let halves = if count == CHUNK {
        // SAFETY: eight are readable.
        unsafe { _mm_loadu_si128(at.cast()) }
    } else {
        let mut whole = [0u8; 16];
        // SAFETY: `count` are readable, and fewer than eight.
        unsafe {
            std::ptr::copy_nonoverlapping(at, whole.as_mut_ptr(), 2 * count);
            _mm_loadu_si128(whole.as_ptr().cast())
        }
    };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

/// Prefetches scales if `at` is among the first 16 bytes of its cache line.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn prefetch_once_a_line(at: *const u8) {
    if at.addr() % 64 < 2 * CHUNK {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn lane_sum(sums: __m256) -> f32 {
    let sums = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let sums = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
    _mm_cvtss_f32(_mm_add_ss(sums, _mm_movehdup_ps(sums)))
}

/// # Safety
/// As [`PanelLoops::repack`].
#[target_feature(enable = "avx2,fma")]
unsafe fn repack(panel: &mut Panel, weights: &Weights, rows: &[usize], groups: Range<usize>) {
    let codes = panel.codes_mut();
    let mask = _mm256_set1_epi8(15);
    for (half, rows) in rows.as_chunks::<8>().0.iter().enumerate() {
        for group in groups.clone() {
            // SAFETY: the group's 32 bytes of eight rows.
            let words = unsafe { rows.map(|row| _mm256_loadu_si256(weights.codes.add(row * weights.cols / 2 + 32 * group).cast())) };
            for (word, codes_of) in transpose(words).into_iter().enumerate() {
                let quad = 16 * (group - groups.start) + 2 * word;
                // SAFETY: a panel holds 4 * ROWS bytes for every quad of inputs.
                unsafe {
                    let at = codes.add(4 * ROWS * quad + 32 * half);
                    _mm256_store_si256(at.cast(), _mm256_and_si256(codes_of, mask));
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes_of), mask);
                    _mm256_store_si256(at.add(4 * ROWS).cast(), high);
                }
            }
        }
        for first in groups.clone().step_by(CHUNK) {
            let count = CHUNK.min(groups.end - first);
            for (from, to) in [(weights.scales, &mut panel.scales), (weights.biases, &mut panel.biases)] {
                // SAFETY: `count` groups of eight rows.
                let values = unsafe { rows.map(|row| eight_bf16(from.add(2 * (row * weights.groups + first)), count)) };
                let columns = transpose(values.map(|values| _mm256_castps_si256(values)));
                for (group, column) in columns.into_iter().take(count).enumerate() {
                    let to = &mut to[(first - groups.start + group) * ROWS + 8 * half..][..8];
                    // SAFETY: eight values.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm256_castsi256_ps(column)) };
                }
            }
        }
    }
}

/// Rows and columns of eight by eight 32-bit values exchanged.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let pairs = |a: __m256i, b: __m256i| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
    let fours = |[a, b]: [__m256i; 2], [c, d]: [__m256i; 2]| {
        [_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)]
    };
    let top = fours(pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
    let bottom = fours(pairs(rows[4], rows[5]), pairs(rows[6], rows[7]));
    let low = |i: usize| _mm256_permute2x128_si256::<0x20>(top[i], bottom[i]);
    let high = |i: usize| _mm256_permute2x128_si256::<0x31>(top[i], bottom[i]);
    [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
}

/// # Safety
/// As [`PanelLoops::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile(tile: Tile<'_>) {
    // SAFETY: passed on.
    unsafe {
        match (tile.planes, tile.inputs) {
            (1, &[a]) => tile_of::<1, 1>(tile, [a]),
            (1, &[a, b]) => tile_of::<1, 2>(tile, [a, b]),
            (1, &[a, b, c]) => tile_of::<1, 3>(tile, [a, b, c]),
            (1, &[a, b, c, d]) => tile_of::<1, 4>(tile, [a, b, c, d]),
            (_, &[a]) => tile_of::<2, 1>(tile, [a]),
            (_, &[a, b]) => tile_of::<2, 2>(tile, [a, b]),
            (_, &[a, b, c]) => tile_of::<2, 3>(tile, [a, b, c]),
            (_, &[a, b, c, d]) => tile_of::<2, 4>(tile, [a, b, c, d]),
            _ => unreachable!("a tile has one to four rows"),
        }
    }
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_of<const P: usize, const T: usize>(tile: Tile<'_>, inputs: [Input; T]) {
    let Tile { panel, first, groups, sums, ahead, .. } = tile;
    assert!(sums.len() >= (T - 1) * ROWS_MAX + ROWS && panel.scales.len() >= groups * ROWS);
    let sums = sums.as_mut_ptr();
    for g in 0..groups {
        if g % AHEAD_GROUPS == 0 {
            ahead.advance(|line| _mm_prefetch::<_MM_HINT_T1>(line.cast()));
        }
        let group = first + g;
        let inputs_of = inputs.map(|input| input.codes.wrapping_add(group / 2 * BLOCK * P + group % 2 * 32));
        // SAFETY: the panel and the inputs have this group.
        let dots = unsafe { group_dots::<P, T>(panel.codes().add(64 * ROWS * g), inputs_of) };
        for half in 0..2 {
            // SAFETY: the panel has scales and biases of this group, the inputs theirs, `sums` the rows.
            unsafe {
                let scales = _mm256_loadu_ps(panel.scales.as_ptr().add(g * ROWS + 8 * half));
                let biases = _mm256_loadu_ps(panel.biases.as_ptr().add(g * ROWS + 8 * half));
                for t in 0..T {
                    let at = sums.add(t * ROWS_MAX + 8 * half);
                    let scale = _mm256_mul_ps(scales, _mm256_broadcast_ss(&*inputs[t].scales.add(group)));
                    let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[half][t]), scale, _mm256_loadu_ps(at));
                    let sum = _mm256_fmadd_ps(biases, _mm256_broadcast_ss(&*inputs[t].sums.add(group)), sum);
                    _mm256_storeu_ps(at, sum);
                }
            }
        }
    }
}

/// No instruction, but a point that the value's computation may not be moved across. Without, the compiler
/// reorders an unrolled loop by output row, and its sums no longer fit the registers: a third of the speed.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn keep_order(value: &mut __m256i) {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) * value, options(nomem, nostack, preserves_flags)) };
}

/// Exact sums of code times input over a group: sixteen rows by `T` inputs.
///
/// # Safety
/// `codes` has the group of a panel, each of `inputs` as [`group_dot`] asks.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn group_dots<const P: usize, const T: usize>(codes: *const u8, inputs: [*const i8; T]) -> [[__m256i; T]; 2] {
    let mut dots = [[_mm256_setzero_si256(); T]; 2];
    // 16-bit sums hold eight products of pairs: half a group.
    for half in 0..2 {
        for plane in 0..P {
            let mut pairs = [[_mm256_setzero_si256(); T]; 2];
            for word in 4 * half..4 * half + 4 {
                for odd in 0..2 {
                    // SAFETY: by the caller's promise.
                    unsafe {
                        let at = codes.add(4 * ROWS * (2 * word + odd));
                        let (low, high) = (_mm256_load_si256(at.cast()), _mm256_load_si256(at.add(32).cast()));
                        for t in 0..T {
                            let four = inputs[t].add(BLOCK * plane + 64 * odd + 4 * word).cast::<i32>().read_unaligned();
                            let four = _mm256_set1_epi32(four);
                            pairs[0][t] = _mm256_add_epi16(pairs[0][t], _mm256_maddubs_epi16(low, four));
                            pairs[1][t] = _mm256_add_epi16(pairs[1][t], _mm256_maddubs_epi16(high, four));
                        }
                        pairs.as_flattened_mut().iter_mut().for_each(|pair| keep_order(pair));
                    }
                }
            }
            let weight = _mm256_set1_epi16(if P == 2 && plane == 0 { 256 } else { 1 });
            for rows in 0..2 {
                for t in 0..T {
                    dots[rows][t] = _mm256_add_epi32(dots[rows][t], _mm256_madd_epi16(pairs[rows][t], weight));
                }
            }
        }
    }
    dots
}
