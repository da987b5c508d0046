//! AVX-512 with VNNI: `vpdpbusd` multiplies four unsigned codes with four signed bytes and adds, exactly.
//!
//! A vector of codes is a block of 128 inputs: two groups, one in each half of the lanes.

// Register tiles are indexed in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{AHEAD_GROUPS, Panel, PanelLoops, ROWS_MAX, Tile};
use super::{Input, Later, Weights, later};
use crate::quantise::BLOCK;

/// Panels of two vectors of rows and tiles of eight: sixteen sums and two weights in 32 registers.
pub(super) const LOOPS: PanelLoops = PanelLoops { rows: ROWS, tile_rows: 8, repack, tile };
/// Weight rows of a panel.
const ROWS: usize = 32;
/// Groups whose scales are converted together.
const CHUNK: usize = 16;

/// `out[n, r] = w[range.start + r] . x[n]`; at most [`super::GEMV_ROWS`] inputs.
///
/// # Safety
/// The machine has AVX-512 F, BW, DQ, VL and VNNI; weights, inputs and `out` have the shapes that `range`
/// asks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
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
        match (weights.bits, planes, inputs) {
            (4, 1, &[a]) => streams::<4, 1, 4, 1>(weights, range, next, [a], out),
            (4, 1, &[a, b]) => streams::<4, 1, 2, 2>(weights, range, next, [a, b], out),
            (4, 1, &[a, b, c]) => streams::<4, 1, 2, 3>(weights, range, next, [a, b, c], out),
            (4, 1, &[a, b, c, d]) => streams::<4, 1, 2, 4>(weights, range, next, [a, b, c, d], out),
            (4, 2, &[a]) => streams::<4, 2, 4, 1>(weights, range, next, [a], out),
            (4, 2, &[a, b]) => streams::<4, 2, 2, 2>(weights, range, next, [a, b], out),
            (4, 2, &[a, b, c]) => streams::<4, 2, 2, 3>(weights, range, next, [a, b, c], out),
            (4, 2, &[a, b, c, d]) => streams::<4, 2, 2, 4>(weights, range, next, [a, b, c, d], out),
            (8, 2, &[a]) => streams::<8, 2, 4, 1>(weights, range, next, [a], out),
            (8, 2, &[a, b]) => streams::<8, 2, 2, 2>(weights, range, next, [a, b], out),
            (8, 2, &[a, b, c]) => streams::<8, 2, 2, 3>(weights, range, next, [a, b, c], out),
            (8, 2, &[a, b, c, d]) => streams::<8, 2, 2, 4>(weights, range, next, [a, b, c, d], out),
            _ => unreachable!("a matrix-vector loop takes one to four rows, and 8-bit codes two planes"),
        }
    }
}

/// Row `i` of each of `S` equal parts of the range at once, then what the parts leave over.
///
/// # Safety
/// As [`gemv`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn streams<const BITS: usize, const P: usize, const S: usize, const T: usize>(
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
        unsafe {
            dots::<BITS, P, S, T>(weights, rows.map(|row| range.start + row), later, &inputs, |s, t, y| out[t * width + rows[s]] = y)
        };
    }
    for row in S * part..width {
        // SAFETY: passed on.
        unsafe {
            dots::<BITS, P, 1, T>(weights, [range.start + row], [weights.row(range.start + row)], &inputs, |_, t, y| {
                out[t * width + row] = y
            })
        };
    }
}

/// Products of `S` weight rows with `T` inputs; `later` are prefetched meanwhile.
///
/// # Safety
/// As [`gemv`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn dots<const BITS: usize, const P: usize, const S: usize, const T: usize>(
    weights: &Weights,
    rows: [usize; S],
    later: [Later; S],
    inputs: &[Input; T],
    mut store: impl FnMut(usize, usize, f32),
) {
    let halves = halves();
    let mut sums = [[_mm512_setzero_ps(); T]; S];
    for first in (0..weights.groups).step_by(CHUNK) {
        let count = CHUNK.min(weights.groups - first);
        let live = ((1u32 << count) - 1) as u16;
        let mut factors = [[_mm512_setzero_ps(); T]; S];
        for s in 0..S {
            let at = 2 * (rows[s] * weights.groups + first);
            let (scales, biases) = (weights.scales.wrapping_add(at), weights.biases.wrapping_add(at));
            prefetch_once_a_line(later[s].scales.wrapping_add(2 * first));
            prefetch_once_a_line(later[s].biases.wrapping_add(2 * first));
            for t in 0..T {
                // SAFETY: `count` groups are the row's; an input's scales and sums are readable past its last.
                unsafe {
                    factors[s][t] = _mm512_mul_ps(bf16(scales, live), _mm512_loadu_ps(inputs[t].scales.add(first)));
                    let x_sums = _mm512_maskz_loadu_ps(live, inputs[t].sums.add(first));
                    sums[s][t] = _mm512_fmadd_ps(bf16(biases, live), x_sums, sums[s][t]);
                }
            }
        }
        // Whole chunks and half ones have loops of constant length, which unroll.
        let blocks = count.div_ceil(2);
        for block in 0..if blocks > 4 { 8 } else { 4 } {
            if block >= blocks {
                break;
            }
            let whole = 2 * block + 1 < count;
            for s in 0..S {
                // SAFETY: a block's codes, or half of it at the end of the row; prefetches may name any address.
                let codes = unsafe {
                    let along = 8 * BITS * (first + 2 * block);
                    for line in (0..16 * BITS).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(later[s].codes.wrapping_add(along + line).cast());
                    }
                    let at = weights.codes.add(rows[s] * weights.row_codes + along);
                    if BITS == 4 { nibbles(at, whole) } else { bytes(at, whole) }
                };
                for t in 0..T {
                    // SAFETY: the input has this block.
                    let dot = unsafe { block_dot::<P>(codes, inputs[t].codes.add((first / 2 + block) * BLOCK * P)) };
                    let factor = _mm512_permutexvar_ps(halves[block], factors[s][t]);
                    sums[s][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sums[s][t]);
                }
            }
        }
    }
    for s in 0..S {
        for t in 0..T {
            store(s, t, _mm512_reduce_add_ps(sums[s][t]));
        }
    }
}

/// Per block of a chunk: the lanes of its first group, then of its second.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves() -> [__m512i; CHUNK / 2] {
    std::array::from_fn(|block| {
        let first = 2 * block as i32;
        _mm512_inserti64x4::<1>(_mm512_set1_epi32(first), _mm256_set1_epi32(first + 1))
    })
}

/// A block of 4-bit codes: those with even index, those with odd; half of it is zero if it is not whole.
///
/// # Safety
/// 64 bytes are readable at `at`, or 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn nibbles(at: *const u8, whole: bool) -> [__m512i; 2] {
    // SAFETY: the mask leaves out what is past the row.
    let codes = unsafe { _mm512_maskz_loadu_epi8(if whole { !0 } else { 0xffff_ffff }, at.cast()) };
    let mask = _mm512_set1_epi8(15);
    [_mm512_and_si512(codes, mask), _mm512_and_si512(_mm512_srli_epi32::<4>(codes), mask)]
}

/// A block of 8-bit codes in the same way.
///
/// # Safety
/// 128 bytes are readable at `at`, or 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn bytes(at: *const u8, whole: bool) -> [__m512i; 2] {
    // SAFETY: as in `nibbles`.
    let [a, b] =
        unsafe { [_mm512_loadu_si512(at.cast()), _mm512_maskz_loadu_epi8(if whole { !0 } else { 0 }, at.wrapping_add(64).cast())] };
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    let low = |x: __m512i| _mm512_and_si512(x, _mm512_set1_epi16(255));
    let even = _mm512_packus_epi16(low(a), low(b));
    let odd = _mm512_packus_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
    [_mm512_permutexvar_epi64(order, even), _mm512_permutexvar_epi64(order, odd)]
}

/// Sixteen partial sums of code times input over a block. `x`: 64 even inputs, 64 odd ones; the low plane
/// after the high one.
///
/// # Safety
/// `x` has those bytes, on a cache-line boundary.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn block_dot<const P: usize>([even, odd]: [__m512i; 2], x: *const i8) -> __m512i {
    let x: *const __m512i = x.cast();
    // SAFETY: by the caller's promise.
    unsafe {
        let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, *x);
        let dot = _mm512_dpbusd_epi32(dot, odd, *x.add(1));
        if P == 1 {
            return dot;
        }
        let dot = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(dot), even, *x.add(2));
        _mm512_dpbusd_epi32(dot, odd, *x.add(3))
    }
}

/// Sixteen bf16 as f32; zero where `live` has no bit.
///
/// # Safety
/// The live ones are readable at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn bf16(at: *const u8, live: u16) -> __m512 {
    // SAFETY: by the caller's promise.
    let halves = unsafe { _mm256_maskz_loadu_epi16(live, at.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
}

/// Prefetches scales if `at` is in the first half of its cache line: a chunk's 32 bytes are half one.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch_once_a_line(at: *const u8) {
    if at.addr() % 64 < 2 * CHUNK {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

/// # Safety
/// As [`PanelLoops::repack`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn repack(panel: &mut Panel, weights: &Weights, rows: &[usize], groups: Range<usize>) {
    let codes = panel.codes_mut();
    let mask = _mm512_set1_epi8(15);
    for (half, rows) in rows.as_chunks::<16>().0.iter().enumerate() {
        // Sixteen bytes of each of sixteen rows at a time: half a group, or a quarter of one.
        let bits = weights.bits;
        for part in groups.start * bits / 2..groups.end * bits / 2 {
            // SAFETY: 16 bytes of the row.
            let words = unsafe { transpose(rows, |row| _mm_loadu_si128(weights.codes.add(row * weights.row_codes + 16 * part).cast())) };
            let pairs: &[[__m512i; 2]] = if bits == 4 {
                &words.map(|word| [_mm512_and_si512(word, mask), _mm512_and_si512(_mm512_srli_epi32::<4>(word), mask)])
            } else {
                &[part_words(words[0], words[1]), part_words(words[2], words[3])]
            };
            for (pair, codes_of) in pairs.iter().enumerate() {
                let quad = 2 * ((part - groups.start * bits / 2) * pairs.len() + pair);
                // SAFETY: a panel holds 4 * ROWS bytes for every quad of inputs.
                unsafe {
                    let at = codes.add(4 * ROWS * quad + 64 * half);
                    _mm512_store_si512(at.cast(), codes_of[0]);
                    _mm512_store_si512(at.add(4 * ROWS).cast(), codes_of[1]);
                }
            }
        }
        for (from, to) in [(weights.scales, &mut panel.scales), (weights.biases, &mut panel.biases)] {
            // SAFETY: passed on.
            unsafe { scales(&mut to[16 * half..], ROWS, from, weights.groups, rows, groups.clone()) };
        }
    }
}

/// Eight 8-bit codes of every row, four in each vector: the four with even index, the four with odd.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn part_words(a: __m512i, b: __m512i) -> [__m512i; 2] {
    let order = _mm512_set1_epi32(i32::from_le_bytes([0, 2, 1, 3]));
    let lanes = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    let order = _mm512_add_epi8(order, lanes);
    let (a, b) = (_mm512_shuffle_epi8(a, order), _mm512_shuffle_epi8(b, order));
    let low = _mm512_set1_epi32(0xffff);
    [
        _mm512_or_si512(_mm512_and_si512(a, low), _mm512_slli_epi32::<16>(b)),
        _mm512_or_si512(_mm512_srli_epi32::<16>(a), _mm512_andnot_si512(low, b)),
    ]
}

/// Scales or biases of sixteen rows as f32, `[groups][stride]`.
///
/// # Safety
/// `from` has the groups of the rows, `row_groups` bf16 each; the machine has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn scales(to: &mut [f32], stride: usize, from: *const u8, row_groups: usize, rows: &[usize; 16], groups: Range<usize>) {
    for first in groups.clone().step_by(8) {
        let count = 8.min(groups.end - first);
        let live = ((1u32 << count) - 1) as u8;
        // SAFETY: the mask leaves out what is past the row.
        let pairs = unsafe { transpose(rows, |row| _mm_maskz_loadu_epi16(live, from.add(2 * (row * row_groups + first)).cast())) };
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let columns = pairs.into_iter().flat_map(|pair| [_mm512_slli_epi32::<16>(pair), _mm512_and_si512(pair, upper)]);
        for (group, column) in columns.take(count).enumerate() {
            let to = &mut to[(first - groups.start + group) * stride..][..16];
            // SAFETY: sixteen values.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), _mm512_castsi512_ps(column)) };
        }
    }
}

/// Four 32-bit values of each of sixteen rows: vector `i` has value `i` of every row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn transpose(rows: &[usize; 16], load: impl Fn(usize) -> __m128i) -> [__m512i; 4] {
    // Rows i, 4 + i, 8 + i and 12 + i side by side, then a four by four transpose in every quarter.
    let side: [__m512i; 4] = std::array::from_fn(|i| {
        let v = _mm512_castsi128_si512(load(rows[i]));
        let v = _mm512_inserti32x4::<1>(v, load(rows[4 + i]));
        let v = _mm512_inserti32x4::<2>(v, load(rows[8 + i]));
        _mm512_inserti32x4::<3>(v, load(rows[12 + i]))
    });
    let (a, b) = (_mm512_unpacklo_epi32(side[0], side[1]), _mm512_unpackhi_epi32(side[0], side[1]));
    let (c, d) = (_mm512_unpacklo_epi32(side[2], side[3]), _mm512_unpackhi_epi32(side[2], side[3]));
    [_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)]
}

/// # Safety
/// As [`PanelLoops::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile(tile: Tile<'_>) {
    macro_rules! sized {
        ($($rows:literal)*) => {
            match (tile.planes, tile.inputs.len()) {
                // SAFETY: passed on.
                $((1, $rows) => unsafe { tile_of::<1, $rows>(tile) },
                // SAFETY: passed on.
                (_, $rows) => unsafe { tile_of::<2, $rows>(tile) },)*
                _ => unreachable!("a tile has one to eight rows"),
            }
        };
    }
    sized!(1 2 3 4 5 6 7 8);
}

/// # Safety
/// As [`tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile_of<const P: usize, const T: usize>(tile: Tile<'_>) {
    let Tile { panel, first, groups, inputs, sums, ahead, .. } = tile;
    let inputs: &[Input; T] = inputs.try_into().expect("`T` inputs");
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
                let scales = _mm512_loadu_ps(panel.scales.as_ptr().add(g * ROWS + 16 * half));
                let biases = _mm512_loadu_ps(panel.biases.as_ptr().add(g * ROWS + 16 * half));
                for t in 0..T {
                    let at = sums.add(t * ROWS_MAX + 16 * half);
                    let scale = _mm512_mul_ps(scales, _mm512_set1_ps(*inputs[t].scales.add(group)));
                    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[half][t]), scale, _mm512_loadu_ps(at));
                    let sum = _mm512_fmadd_ps(biases, _mm512_set1_ps(*inputs[t].sums.add(group)), sum);
                    _mm512_storeu_ps(at, sum);
                }
            }
        }
    }
}

/// Exact sums of code times input over a group: 32 rows by `T` inputs.
///
/// # Safety
/// `codes` has the group of a panel; each input 32 even bytes, 64 bytes on 32 odd ones, and the low plane
/// a block further.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn group_dots<const P: usize, const T: usize>(codes: *const u8, inputs: [*const i8; T]) -> [[__m512i; T]; 2] {
    let mut dots = [[_mm512_setzero_si512(); T]; 2];
    for plane in 0..P {
        if plane == 1 {
            dots = dots.map(|row| row.map(|dot| _mm512_slli_epi32::<8>(dot)));
        }
        for word in 0..8 {
            for odd in 0..2 {
                // SAFETY: by the caller's promise.
                unsafe {
                    let at: *const __m512i = codes.add(4 * ROWS * (2 * word + odd)).cast();
                    let (low, high) = (*at, *at.add(1));
                    for t in 0..T {
                        let four = inputs[t].add(BLOCK * plane + 64 * odd + 4 * word).cast::<i32>().read_unaligned();
                        let four = _mm512_set1_epi32(four);
                        dots[0][t] = _mm512_dpbusd_epi32(dots[0][t], low, four);
                        dots[1][t] = _mm512_dpbusd_epi32(dots[1][t], high, four);
                    }
                }
            }
        }
    }
    dots
}
