//! NEON with the matrix instructions (`i8mm`): `smmla` multiplies two weight rows with two rows of activations, eight inputs
//! deep, twice the products of `sdot`. For many rows; a few stream as with `sdot`.
//!
//! A panel is `[inputs / 8][row pairs][2][8]`: of each half group first the inputs with even index, then the others, as
//! [`crate::quantise`] has them.

// Register tiles are indexed in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::neon::{ROWS, add_scaled, prefetch, scales};
use super::panel::{AHEAD_GROUPS, Panel, PanelLoops, ROWS_MAX, Tile};
use super::{Input, Weights};
use crate::quantise::{BLOCK, GROUP};

pub(super) const LOOPS: PanelLoops = PanelLoops { rows: ROWS, tile_rows: 4, repack, tile };
const PAIRS: usize = ROWS / 2;

/// # Safety
/// As [`PanelLoops::repack`].
unsafe fn repack(panel: &mut Panel, weights: &Weights, rows: &[usize], groups: Range<usize>) {
    let codes = panel.codes_mut();
    for (pair, rows) in rows.as_chunks::<2>().0.iter().enumerate() {
        for half in 2 * groups.start..2 * groups.end {
            let group = half / 2 - groups.start;
            // SAFETY: 16 bytes of the group; a panel holds 16 * PAIRS bytes for every eight inputs.
            unsafe {
                let both = rows.map(|row| vld1q_u8(weights.codes.add(row * weights.cols / 2 + 16 * half)));
                let even = both.map(|codes| vreinterpretq_u64_u8(vandq_u8(codes, vdupq_n_u8(15))));
                let odd = both.map(|codes| vreinterpretq_u64_u8(vshrq_n_u8::<4>(codes)));
                for (eights, first) in [(even, 0), (odd, 4)] {
                    let at = codes.add(ROWS * GROUP * group + 16 * (PAIRS * (first + 2 * (half % 2)) + pair));
                    vst1q_u8(at, vreinterpretq_u8_u64(vtrn1q_u64(eights[0], eights[1])));
                    vst1q_u8(at.add(16 * PAIRS), vreinterpretq_u8_u64(vtrn2q_u64(eights[0], eights[1])));
                }
            }
        }
    }
    // SAFETY: passed on.
    unsafe { scales(panel, weights, rows, groups) };
}

/// # Safety
/// As [`PanelLoops::tile`].
unsafe fn tile(tile: Tile<'_>) {
    // SAFETY: passed on.
    unsafe {
        match (tile.planes, tile.inputs) {
            (1, &[a]) => tile_of::<1, 1>(tile, [[a; 2]], 1),
            (1, &[a, b]) => tile_of::<1, 1>(tile, [[a, b]], 2),
            (1, &[a, b, c]) => tile_of::<1, 2>(tile, [[a, b], [c; 2]], 3),
            (1, &[a, b, c, d]) => tile_of::<1, 2>(tile, [[a, b], [c, d]], 4),
            (_, &[a]) => tile_of::<2, 1>(tile, [[a; 2]], 1),
            (_, &[a, b]) => tile_of::<2, 1>(tile, [[a, b]], 2),
            (_, &[a, b, c]) => tile_of::<2, 2>(tile, [[a, b], [c; 2]], 3),
            (_, &[a, b, c, d]) => tile_of::<2, 2>(tile, [[a, b], [c, d]], 4),
            _ => unreachable!("a tile has one to four rows"),
        }
    }
}

/// `T` pairs of inputs, of which the first `count` rows count.
///
/// # Safety
/// As [`tile`].
unsafe fn tile_of<const P: usize, const T: usize>(tile: Tile<'_>, inputs: [[Input; 2]; T], count: usize) {
    let Tile { panel, first, groups, sums, ahead, .. } = tile;
    assert!(sums.len() >= (count - 1) * ROWS_MAX + ROWS && panel.scales.len() >= groups * ROWS);
    for g in 0..groups {
        if g % AHEAD_GROUPS == 0 {
            ahead.advance(prefetch);
        }
        let group = first + g;
        let inputs_of = inputs.map(|pair| pair.map(|input| input.codes.wrapping_add(group / 2 * BLOCK * P + group % 2 * 32)));
        // SAFETY: the panel and the inputs have this group, `sums` the rows.
        unsafe {
            let codes = panel.codes().add(ROWS * GROUP * g);
            let mut dots = plane_dots(codes, inputs_of);
            if P == 2 {
                let low = plane_dots(codes, inputs_of.map(|pair| pair.map(|x| x.add(BLOCK))));
                for (dot, low) in dots.iter_mut().flatten().zip(low.into_iter().flatten()) {
                    *dot = vaddq_s32(vshlq_n_s32::<8>(*dot), low);
                }
            }
            for t in 0..count {
                for part in 0..ROWS / 4 {
                    // Of two pairs of weight rows the products with one row of activations.
                    let (upper, lower) = (dots[2 * part][t / 2], dots[2 * part + 1][t / 2]);
                    let dot = if t % 2 == 0 { vuzp1q_s32(upper, lower) } else { vuzp2q_s32(upper, lower) };
                    add_scaled(&mut sums[t * ROWS_MAX + 4 * part..], dot, panel, g * ROWS + 4 * part, &inputs[t / 2][t % 2], group);
                }
            }
        }
    }
}

/// Exact sums of code times one plane of the inputs over a group: two weight rows by two inputs in a vector.
///
/// # Safety
/// `codes` has the group of a panel; each input 32 even bytes and 64 bytes on 32 odd ones.
#[inline(always)]
unsafe fn plane_dots<const T: usize>(codes: *const u8, inputs: [[*const i8; 2]; T]) -> [[int32x4_t; T]; PAIRS] {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); T]; PAIRS];
        for eight in 0..8 {
            let at = eight / 4 * 64 + eight % 4 * 8;
            let x = inputs.map(|[a, b]| vcombine_s8(vld1_s8(a.add(at)), vld1_s8(b.add(at))));
            for (pair, sums) in sums.iter_mut().enumerate() {
                let codes = vld1q_s8(codes.add(16 * (PAIRS * eight + pair)).cast());
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = multiply(*sum, codes, x);
                }
            }
        }
        sums
    }
}

/// `sum[i][j] += codes[i] . x[j]` for two rows of eight bytes each.
#[inline(always)]
fn multiply(mut sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: registers only; these loops run where the instruction was found.
    unsafe {
        asm!(".arch_extension i8mm", "smmla {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
