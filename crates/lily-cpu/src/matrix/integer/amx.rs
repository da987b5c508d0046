//! AMX: one instruction multiplies sixteen weight rows with sixteen rows of activations, 64 inputs deep, exactly.
//!
//! Sixteen weight rows at a time become bytes in cache ([`unpack`]); every tile of activations ([`super::tiles`]) then
//! runs over them. A product of two tiles is one group: it goes through memory into the vector registers, where
//! [`block`] scales it and adds it up, one vector a weight row, while the next group is being multiplied. The order of
//! additions is that of the AVX-512 panels, so the results are theirs bit for bit.
//!
//! Rust has no stable names for these instructions; they are written as assembly, and the compiler never uses tile
//! registers itself. A thread that has loaded a configuration releases it before it returns.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::panel::{Ahead, Line, PanelScratch};
use super::tiles::{TILE, TILE_BYTES, TileInput, TileOutput, Tiles};
use super::{Weights, avx512};
use crate::quantise::{BLOCK, GROUP, Quantised, grow};

/// Bytes of the products of one group and plane, `[weight rows, activation rows]` i32, and of both planes.
const DOT_BYTES: usize = 4 * TILE * TILE;
const SLOT_BYTES: usize = 2 * DOT_BYTES;

/// `out[n, r] = w[range.start + r] . x[n]` for the `count` rows of the tiles from `first_tile` on. `next`: the weights
/// and the row that the caller needs afterwards.
///
/// # Safety
/// The machine has AMX and the process its permission; `range` is of the weights, and `out` is `[count, range]`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn multiply(
    (weights, range): (&Weights, Range<usize>),
    next: (&Weights, usize),
    (tiles, first_tile): (&Tiles, usize),
    count: usize,
    out: &mut [f32],
    scratch: &mut PanelScratch,
) {
    let (groups, planes, width) = (weights.groups, tiles.planes(), range.len());
    let PanelScratch { panel, dots, tile_sums, .. } = scratch;
    grow(dots, 2 * SLOT_BYTES / 64, Line([0; 64]));
    grow(&mut panel.codes, TILE * ROW_BYTES / 64, Line([0; 64]));
    grow(&mut panel.scales, TILE * DEPTH, 0.0);
    grow(&mut panel.biases, TILE * DEPTH, 0.0);
    let tile_count = count.div_ceil(TILE);
    grow(tile_sums, tile_count * DOT_BYTES / 64, Line([0; 64]));
    let to = out.as_mut_ptr();
    // SAFETY: by the caller's promise; nothing below unwinds between configuration and release.
    unsafe {
        configure();
        for first in range.clone().step_by(TILE) {
            let live = TILE.min(range.end - first);
            // Past the last row the last is repeated; its products are dropped.
            let rows: [usize; TILE] = std::array::from_fn(|i| (first + i).min(range.end - 1));
            let (next, row) = if first + live < range.end { (weights, first + live) } else { next };
            let mut ahead = Ahead::new(next, row, live, tile_count * groups);
            let live = ((1u32 << live) - 1) as u16;
            for start in (0..groups).step_by(DEPTH) {
                let part = start..groups.min(start + DEPTH);
                match weights.bits {
                    4 => unpack::<4>(panel.codes_mut(), weights, &rows, part.clone()),
                    _ => unpack::<8>(panel.codes_mut(), weights, &rows, part.clone()),
                }
                avx512::scales(&mut panel.scales, TILE, weights.scales, groups, &rows, part.clone());
                avx512::scales(&mut panel.biases, TILE, weights.biases, groups, &rows, part.clone());
                for tile in 0..tile_count {
                    let x = tiles.input(first_tile + tile, groups).from(start, planes);
                    // Where the first weight rows meet a tile, the next one is perhaps in another core's cache.
                    let fetch = first == range.start && tile + 1 < tile_count;
                    let fetch = fetch.then(|| tiles.input(first_tile + tile + 1, groups).from(start, planes).codes);
                    let panel = (panel.codes(), panel.scales.as_ptr(), panel.biases.as_ptr());
                    let sums: *mut __m512 = tile_sums.as_mut_ptr().add(tile * DOT_BYTES / 64).cast();
                    let mut before = [_mm512_setzero_ps(); TILE];
                    if start > 0 {
                        before.iter_mut().enumerate().for_each(|(r, sum)| *sum = *sums.add(r));
                    }
                    let dots = dots.as_mut_ptr().cast();
                    let after = match planes {
                        1 => block::<1>(panel, part.len(), x, before, fetch, dots, &mut ahead),
                        _ => block::<2>(panel, part.len(), x, before, fetch, dots, &mut ahead),
                    };
                    if part.end < groups {
                        (0..TILE).for_each(|r| *sums.add(r) = after[r]);
                        continue;
                    }
                    let columns = transpose(std::mem::transmute::<[__m512; TILE], [__m512i; TILE]>(after));
                    for (n, products) in (tile * TILE..count.min((tile + 1) * TILE)).zip(columns) {
                        _mm512_mask_storeu_epi32(to.wrapping_add(n * width + first - range.start).cast(), live, products);
                    }
                }
            }
        }
        asm!("tilerelease", options(nomem, nostack, preserves_flags));
    }
}

/// Groups of weights that are unpacked at once: with a tile of activations they stay in the nearest cache.
const DEPTH: usize = 8;
/// From row to row of unpacked weights: not a power of two, so that a tile's rows lie in different cache sets.
const ROW_BYTES: usize = (DEPTH + 1) * GROUP;

/// All eight tile registers have sixteen rows of 64 bytes.
unsafe fn configure() {
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        rows: [u8; 16],
    }
    let (mut bytes, mut rows) = ([0; 16], [0; 16]);
    bytes[..8].fill(64);
    rows[..8].fill(TILE as u8);
    let config = Config { palette: 1, start_row: 0, reserved: [0; 14], bytes, rows };
    // SAFETY: a valid configuration of 64 bytes; by the caller's promise the machine has the instruction.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(readonly, nostack, preserves_flags)) };
}

/// Codes of sixteen rows as bytes, `[rows][ROW_BYTES]`; in a group the inputs with even index come first.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn unpack<const BITS: usize>(to: *mut u8, weights: &Weights, rows: &[usize; TILE], groups: Range<usize>) {
    for (i, row) in rows.iter().enumerate() {
        for (at, group) in groups.clone().enumerate() {
            // SAFETY: the group's codes, 32 bytes or 64, and its 64 bytes of the panel.
            unsafe {
                let codes = weights.codes.add(row * weights.row_codes + 8 * BITS * group);
                let codes = if BITS == 4 { spread(_mm256_loadu_si256(codes.cast())) } else { part(_mm512_loadu_si512(codes.cast())) };
                _mm512_store_si512(to.add(i * ROW_BYTES + GROUP * at).cast(), codes);
            }
        }
    }
}

/// A group of 4-bit codes: low halves, then high ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spread(codes: __m256i) -> __m512i {
    let shift = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi32(4));
    _mm512_and_si512(_mm512_srlv_epi32(_mm512_broadcast_i64x4(codes), shift), _mm512_set1_epi8(15))
}

/// A group of 8-bit codes: those with even index, then the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn part(codes: __m512i) -> __m512i {
    let (even, odd) = (_mm512_and_si512(codes, _mm512_set1_epi16(255)), _mm512_srli_epi16::<8>(codes));
    _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi16(even, odd))
}

/// Products of the panel's sixteen weight rows with a tile: one vector of activation rows for each weight row. `fetch`:
/// a tile to be brought nearer meanwhile. `dots`: room for two groups of both planes, on a cache line.
///
/// # Safety
/// Tiles are configured; the panel (codes, then `[groups, TILE]` scales and biases) and `x` have `groups` groups.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn block<const P: usize>(
    (weights, scales, biases): (*const u8, *const f32, *const f32),
    groups: usize,
    x: TileInput,
    mut sums: [__m512; TILE],
    fetch: Option<*const u8>,
    dots: *mut u8,
    ahead: &mut Ahead,
) -> [__m512; TILE] {
    // SAFETY: by the caller's promise.
    unsafe {
        products::<P>(weights, x.codes, dots);
        for g in 0..groups {
            ahead.advance(|line| _mm_prefetch::<_MM_HINT_T1>(line.cast()));
            if let Some(tile) = fetch {
                for line in 0..P * TILE_BYTES / 64 {
                    _mm_prefetch::<_MM_HINT_T1>(tile.wrapping_add(P * TILE_BYTES * g + 64 * line).cast());
                }
            }
            if g + 1 < groups {
                let (weights, x) = (weights.add(GROUP * (g + 1)), x.codes.add(TILE_BYTES * P * (g + 1)));
                products::<P>(weights, x, dots.add((g + 1) % 2 * SLOT_BYTES));
            }
            let dots: *const __m512i = dots.add(g % 2 * SLOT_BYTES).cast();
            let (x_scales, x_sums) = (_mm512_loadu_ps(x.scales.add(TILE * g)), _mm512_loadu_ps(x.sums.add(TILE * g)));
            // Written out: the compiler would keep a loop, and with it the sums in memory.
            macro_rules! rows {
                ($($r:literal)*) => {$(
                    let mut dot = *dots.add($r);
                    if P == 2 {
                        dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(dot), *dots.add(TILE + $r));
                    }
                    let scale = _mm512_mul_ps(_mm512_set1_ps(*scales.add(TILE * g + $r)), x_scales);
                    sums[$r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, sums[$r]);
                    sums[$r] = _mm512_fmadd_ps(_mm512_set1_ps(*biases.add(TILE * g + $r)), x_sums, sums[$r]);
                )*};
            }
            rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
        sums
    }
}

/// One group of all planes into memory.
///
/// # Safety
/// Tiles are configured; `weights` has sixteen rows of 64 bytes, `ROW_BYTES` apart, `x` a tile of each plane.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn products<const P: usize>(weights: *const u8, x: *const u8, dots: *mut u8) {
    // SAFETY: by the caller's promise; a tile of products is a plane of `dots`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm2, [{weights} + {row_bytes} * 1]",
            "tileloadd tmm3, [{x} + {line} * 1]",
            "tdpbusd tmm0, tmm2, tmm3",
            "tilestored [{dots} + {line} * 1], tmm0",
            weights = in(reg) weights, row_bytes = in(reg) ROW_BYTES, x = in(reg) x, line = in(reg) 64usize, dots = in(reg) dots,
            options(nostack, preserves_flags)
        );
        if P == 2 {
            asm!(
                "tilezero tmm1",
                "tileloadd tmm4, [{x} + {line} * 1]",
                "tdpbusd tmm1, tmm2, tmm4",
                "tilestored [{dots} + {line} * 1], tmm1",
                x = in(reg) x.add(TILE_BYTES), line = in(reg) 64usize, dots = in(reg) dots.add(DOT_BYTES),
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Fills a tile with rows of `x`; past the last row the last is repeated.
///
/// # Safety
/// The machine has AVX-512; the output has the groups and planes of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn fill(to: TileOutput<'_>, x: &Quantised, rows: &[u32]) {
    let TileOutput { codes, scales, sums } = to;
    let planes = x.planes();
    let row = |i: usize| rows[i.min(rows.len() - 1)] as usize;
    let inputs: [&[i8]; TILE] = std::array::from_fn(|i| x.codes(row(i)));
    for group in 0..x.cols() / GROUP {
        for plane in 0..planes {
            let at = (group / 2 * planes + plane) * BLOCK + group % 2 * 32;
            let mut lines = [_mm512_setzero_si512(); TILE];
            for (line, input) in lines.iter_mut().zip(&inputs) {
                let input = &input[at..at + 96];
                // SAFETY: 32 even inputs, and 64 bytes on 32 odd ones.
                let (even, odd) = unsafe { (_mm256_loadu_si256(input.as_ptr().cast()), _mm256_loadu_si256(input.as_ptr().add(64).cast())) };
                *line = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(even), odd);
            }
            let columns = transpose(lines);
            for (quad, column) in columns.into_iter().enumerate() {
                // SAFETY: a tile is sixteen lines.
                unsafe { _mm512_store_si512(codes.add((group * planes + plane) * TILE_BYTES + 64 * quad).cast(), column) };
            }
        }
    }
    for i in 0..TILE {
        let (from_scales, from_sums) = (x.scales(row(i)), x.sums(row(i)));
        for group in 0..x.cols() / GROUP {
            (scales[group * TILE + i], sums[group * TILE + i]) = (from_scales[group], from_sums[group]);
        }
    }
}

/// Rows and columns of sixteen by sixteen 32-bit values exchanged.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn transpose(rows: [__m512i; TILE]) -> [__m512i; TILE] {
    // Four by four within quarters: `fours[i][k]` has, in quarter q, column 4q + k of rows 4i..4i + 4. Then quarters.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (fours, rows) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
        let (ab, ab_high) = (_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
        let (cd, cd_high) = (_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
        fours[0] = _mm512_unpacklo_epi64(ab, cd);
        fours[1] = _mm512_unpackhi_epi64(ab, cd);
        fours[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        fours[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    let mut columns = [_mm512_setzero_si512(); TILE];
    for k in 0..4 {
        let (low, low_high) = quarters(fours[0][k], fours[1][k]);
        let (high, high_high) = quarters(fours[2][k], fours[3][k]);
        columns[k] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high);
        columns[8 + k] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high);
        columns[4 + k] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low_high, high_high);
        columns[12 + k] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low_high, high_high);
    }
    columns
}

/// Quarters 0 and 2 of `a`, then of `b`; quarters 1 and 3 of `a`, then of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
    (_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b))
}
