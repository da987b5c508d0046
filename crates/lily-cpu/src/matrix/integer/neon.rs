//! NEON: codes are at most 15, so that they count as signed bytes too.
//!
//! AArch64 with `sdot` and without share the loops; [`Multiply`] is what differs: `sdot` adds four products to a
//! 32-bit lane, older processors widen products to 16 bits, of which a group's eight a lane fit exactly.

// Register tiles are indexed in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::panel::{AHEAD_GROUPS, Panel, PanelLoops, ROWS_MAX, Tile};
use super::{Input, Later, Weights, later};
use crate::convert::bf16_to_f32;
use crate::quantise::{BLOCK, GROUP};

/// With the dot-product instructions.
pub(super) const DOT_LOOPS: PanelLoops = PanelLoops { rows: ROWS, tile_rows: 4, repack, tile: tile::<Dot> };
/// Without.
pub(super) const WIDEN_LOOPS: PanelLoops = PanelLoops { rows: ROWS, tile_rows: 4, repack, tile: tile::<Widen> };
/// Weight rows of a panel: four vectors.
pub(super) const ROWS: usize = 16;

/// Exact sums of products of signed bytes.
pub(super) trait Multiply: Copy {
    /// Adds the products of sixteen pairs of bytes, four neighbours to a lane.
    fn add(self, codes: int8x16_t, x: int8x16_t) -> Self;
    fn zero() -> Self;
    /// The four lanes' sums; at most a group's products may have been added.
    fn lanes(self) -> int32x4_t;
}

#[derive(Clone, Copy)]
pub(super) struct Dot(int32x4_t);

#[derive(Clone, Copy)]
pub(super) struct Widen([int16x8_t; 2]);

impl Multiply for Dot {
    #[inline(always)]
    fn zero() -> Dot {
        // SAFETY: NEON is part of AArch64.
        Dot(unsafe { vdupq_n_s32(0) })
    }

    #[inline(always)]
    fn add(self, codes: int8x16_t, x: int8x16_t) -> Dot {
        let mut sum = self.0;
        // SAFETY: registers only; loops over `Dot` run where the instruction was found.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
        }
        Dot(sum)
    }

    #[inline(always)]
    fn lanes(self) -> int32x4_t {
        self.0
    }
}

impl Multiply for Widen {
    #[inline(always)]
    fn zero() -> Widen {
        // SAFETY: NEON is part of AArch64.
        Widen(unsafe { [vdupq_n_s16(0); 2] })
    }

    #[inline(always)]
    fn add(self, codes: int8x16_t, x: int8x16_t) -> Widen {
        // SAFETY: NEON is part of AArch64.
        unsafe {
            let low = vmlal_s8(self.0[0], vget_low_s8(codes), vget_low_s8(x));
            Widen([low, vmlal_high_s8(self.0[1], codes, x)])
        }
    }

    #[inline(always)]
    fn lanes(self) -> int32x4_t {
        // SAFETY: NEON is part of AArch64.
        unsafe { vpaddq_s32(vpaddlq_s16(self.0[0]), vpaddlq_s16(self.0[1])) }
    }
}

/// `out[n, r] = w[range.start + r] . x[n]`; at most [`super::GEMV_ROWS`] inputs.
///
/// # Safety
/// The machine has what `M` uses; weights, inputs and `out` have the shapes that `range` asks.
pub(super) unsafe fn gemv<M: Multiply>(
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
            (1, &[a]) => streams::<M, 1, 4, 1>(weights, range, next, [a], out),
            (1, &[a, b]) => streams::<M, 1, 2, 2>(weights, range, next, [a, b], out),
            (1, &[a, b, c]) => streams::<M, 1, 2, 3>(weights, range, next, [a, b, c], out),
            (1, &[a, b, c, d]) => streams::<M, 1, 2, 4>(weights, range, next, [a, b, c, d], out),
            (_, &[a]) => streams::<M, 2, 4, 1>(weights, range, next, [a], out),
            (_, &[a, b]) => streams::<M, 2, 2, 2>(weights, range, next, [a, b], out),
            (_, &[a, b, c]) => streams::<M, 2, 2, 3>(weights, range, next, [a, b, c], out),
            (_, &[a, b, c, d]) => streams::<M, 2, 2, 4>(weights, range, next, [a, b, c, d], out),
            _ => unreachable!("a matrix-vector loop takes one to four rows"),
        }
    }
}

/// Row `i` of each of `S` equal parts of the range at once, then what the parts leave over.
///
/// # Safety
/// As [`gemv`].
unsafe fn streams<M: Multiply, const P: usize, const S: usize, const T: usize>(
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
        unsafe { dots::<M, P, S, T>(weights, rows.map(|row| range.start + row), later, &inputs, |s, t, y| out[t * width + rows[s]] = y) };
    }
    for row in S * part..width {
        // SAFETY: passed on.
        unsafe {
            dots::<M, P, 1, T>(weights, [range.start + row], [weights.row(range.start + row)], &inputs, |_, t, y| out[t * width + row] = y)
        };
    }
}

/// Products of `S` weight rows with `T` inputs; `later` are prefetched meanwhile.
///
/// # Safety
/// As [`gemv`].
#[inline(always)]
unsafe fn dots<M: Multiply, const P: usize, const S: usize, const T: usize>(
    weights: &Weights,
    rows: [usize; S],
    later: [Later; S],
    inputs: &[Input; T],
    mut store: impl FnMut(usize, usize, f32),
) {
    // SAFETY: reads stay in the rows and the inputs, by the caller's promise; prefetches may name any address.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); T]; S];
        let mut biased = [[0.0; T]; S];
        for group in 0..weights.groups {
            for s in 0..S {
                let at = 2 * (rows[s] * weights.groups + group);
                let (scale, bias) = (bf16(weights.scales.add(at)), bf16(weights.biases.add(at)));
                if group % 32 == 0 {
                    prefetch(later[s].scales.wrapping_add(2 * group));
                    prefetch(later[s].biases.wrapping_add(2 * group));
                }
                let codes = weights.codes.add(rows[s] * weights.cols / 2 + 32 * group);
                if group % 2 == 0 {
                    prefetch(later[s].codes.wrapping_add(32 * group));
                }
                let (low, high) = nibbles([vld1q_u8(codes), vld1q_u8(codes.add(16))]);
                for t in 0..T {
                    let x = inputs[t].codes.add(group / 2 * BLOCK * P + group % 2 * 32);
                    let mut dot = plane_dot::<M>(low, high, x);
                    if P == 2 {
                        dot = vaddq_s32(vshlq_n_s32::<8>(dot), plane_dot::<M>(low, high, x.add(BLOCK)));
                    }
                    sums[s][t] = vfmaq_n_f32(sums[s][t], vcvtq_f32_s32(dot), scale * *inputs[t].scales.add(group));
                    biased[s][t] += bias * *inputs[t].sums.add(group);
                }
            }
        }
        for s in 0..S {
            for t in 0..T {
                store(s, t, vaddvq_f32(sums[s][t]) + biased[s][t]);
            }
        }
    }
}

/// Low and high halves of a group's codes.
#[inline(always)]
fn nibbles(codes: [uint8x16_t; 2]) -> ([int8x16_t; 2], [int8x16_t; 2]) {
    let low = codes.map(|codes| {
        // SAFETY: NEON is part of AArch64.
        unsafe { vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(15))) }
    });
    let high = codes.map(|codes| {
        // SAFETY: as above.
        unsafe { vreinterpretq_s8_u8(vshrq_n_u8::<4>(codes)) }
    });
    (low, high)
}

/// Partial sums of code times one plane of the input over a group.
///
/// # Safety
/// `x` has 32 even inputs and 64 bytes on 32 odd ones.
#[inline(always)]
unsafe fn plane_dot<M: Multiply>(low: [int8x16_t; 2], high: [int8x16_t; 2], x: *const i8) -> int32x4_t {
    let mut sum = M::zero();
    for half in 0..2 {
        // SAFETY: by the caller's promise.
        let (even, odd) = unsafe { (vld1q_s8(x.add(16 * half)), vld1q_s8(x.add(64 + 16 * half))) };
        sum = sum.add(low[half], even).add(high[half], odd);
    }
    sum.lanes()
}

/// # Safety
/// Two bytes are readable.
#[inline(always)]
unsafe fn bf16(at: *const u8) -> f32 {
    // SAFETY: by the caller's promise.
    bf16_to_f32(u16::from_le_bytes(unsafe { at.cast::<[u8; 2]>().read() }))
}

#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: a prefetch may name any address.
    unsafe { asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags)) };
}

/// # Safety
/// As [`PanelLoops::repack`].
unsafe fn repack(panel: &mut Panel, weights: &Weights, rows: &[usize], groups: Range<usize>) {
    let codes = panel.codes_mut();
    for (part, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
        // Half a group at a time: four words of four rows.
        for half in 2 * groups.start..2 * groups.end {
            // SAFETY: 16 bytes of the group; a panel holds 4 * ROWS bytes for every quad of inputs.
            unsafe {
                let words =
                    transpose(rows.map(|row| vreinterpretq_u32_u8(vld1q_u8(weights.codes.add(row * weights.cols / 2 + 16 * half)))));
                for (word, codes_of) in words.into_iter().enumerate() {
                    let quad = 8 * (half - 2 * groups.start) + 2 * word;
                    let at = codes.add(4 * ROWS * quad + 16 * part);
                    vst1q_u8(at, vandq_u8(vreinterpretq_u8_u32(codes_of), vdupq_n_u8(15)));
                    vst1q_u8(at.add(4 * ROWS), vshrq_n_u8::<4>(vreinterpretq_u8_u32(codes_of)));
                }
            }
        }
    }
    // SAFETY: passed on.
    unsafe { scales(panel, weights, rows, groups) };
}

/// Scales and biases of a panel.
///
/// # Safety
/// As [`PanelLoops::repack`].
pub(super) unsafe fn scales(panel: &mut Panel, weights: &Weights, rows: &[usize], groups: Range<usize>) {
    for group in groups.clone() {
        for (lane, row) in rows.iter().enumerate() {
            let (from, to) = (2 * (row * weights.groups + group), (group - groups.start) * ROWS + lane);
            // SAFETY: the row has this group.
            unsafe {
                panel.scales[to] = bf16(weights.scales.add(from));
                panel.biases[to] = bf16(weights.biases.add(from));
            }
        }
    }
}

/// Rows and columns of four by four values exchanged.
#[inline(always)]
fn transpose(rows: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: NEON is part of AArch64.
    unsafe {
        let pair = |a, b| (vreinterpretq_u64_u32(vtrn1q_u32(a, b)), vreinterpretq_u64_u32(vtrn2q_u32(a, b)));
        let (a, b) = pair(rows[0], rows[1]);
        let (c, d) = pair(rows[2], rows[3]);
        [vtrn1q_u64(a, c), vtrn1q_u64(b, d), vtrn2q_u64(a, c), vtrn2q_u64(b, d)].map(|column| vreinterpretq_u32_u64(column))
    }
}

/// # Safety
/// As [`PanelLoops::tile`].
unsafe fn tile<M: Multiply>(tile: Tile<'_>) {
    // SAFETY: passed on.
    unsafe {
        match (tile.planes, tile.inputs) {
            (1, &[a]) => tile_of::<M, 1, 1>(tile, [a]),
            (1, &[a, b]) => tile_of::<M, 1, 2>(tile, [a, b]),
            (1, &[a, b, c]) => tile_of::<M, 1, 3>(tile, [a, b, c]),
            (1, &[a, b, c, d]) => tile_of::<M, 1, 4>(tile, [a, b, c, d]),
            (_, &[a]) => tile_of::<M, 2, 1>(tile, [a]),
            (_, &[a, b]) => tile_of::<M, 2, 2>(tile, [a, b]),
            (_, &[a, b, c]) => tile_of::<M, 2, 3>(tile, [a, b, c]),
            (_, &[a, b, c, d]) => tile_of::<M, 2, 4>(tile, [a, b, c, d]),
            _ => unreachable!("a tile has one to four rows"),
        }
    }
}

/// # Safety
/// As [`tile`].
unsafe fn tile_of<M: Multiply, const P: usize, const T: usize>(tile: Tile<'_>, inputs: [Input; T]) {
    let Tile { panel, first, groups, sums, ahead, .. } = tile;
    assert!(sums.len() >= (T - 1) * ROWS_MAX + ROWS && panel.scales.len() >= groups * ROWS);
    for g in 0..groups {
        if g % AHEAD_GROUPS == 0 {
            ahead.advance(prefetch);
        }
        let group = first + g;
        let inputs_of = inputs.map(|input| input.codes.wrapping_add(group / 2 * BLOCK * P + group % 2 * 32));
        // SAFETY: the panel and the inputs have this group, `sums` the rows.
        unsafe {
            let codes = panel.codes().add(ROWS * GROUP * g);
            let mut dots = plane_dots::<M, T>(codes, inputs_of);
            if P == 2 {
                let low = plane_dots::<M, T>(codes, inputs_of.map(|x| x.add(BLOCK)));
                for (dots, low) in dots.iter_mut().zip(low) {
                    for (dot, low) in dots.iter_mut().zip(low) {
                        *dot = vaddq_s32(vshlq_n_s32::<8>(*dot), low);
                    }
                }
            }
            for (part, dots) in dots.iter().enumerate() {
                for t in 0..T {
                    add_scaled(&mut sums[t * ROWS_MAX + 4 * part..], dots[t], panel, g * ROWS + 4 * part, &inputs[t], group);
                }
            }
        }
    }
}

/// Adds a group's products of four weight rows, whose scales and biases are at `at` of the panel, with one input.
///
/// # Safety
/// The panel has the rows' scales, the input the group.
#[inline(always)]
pub(super) unsafe fn add_scaled(sums: &mut [f32], dot: int32x4_t, panel: &Panel, at: usize, input: &Input, group: usize) {
    let sums = sums[..4].as_mut_ptr();
    // SAFETY: by the caller's promise, and four sums.
    unsafe {
        let (scales, biases) = (vld1q_f32(panel.scales.as_ptr().add(at)), vld1q_f32(panel.biases.as_ptr().add(at)));
        let scale = vmulq_n_f32(scales, *input.scales.add(group));
        let sum = vfmaq_f32(vld1q_f32(sums), vcvtq_f32_s32(dot), scale);
        vst1q_f32(sums, vfmaq_n_f32(sum, biases, *input.sums.add(group)));
    }
}

/// Exact sums of code times one plane of the inputs over a group: sixteen rows by `T` inputs.
///
/// # Safety
/// `codes` has the group of a panel; each input 32 even bytes and 64 bytes on 32 odd ones.
#[inline(always)]
unsafe fn plane_dots<M: Multiply, const T: usize>(codes: *const u8, inputs: [*const i8; T]) -> [[int32x4_t; T]; ROWS / 4] {
    let mut sums = [[M::zero(); T]; ROWS / 4];
    for word in 0..8 {
        for odd in 0..2 {
            // SAFETY: by the caller's promise.
            unsafe {
                let at: *const i8 = codes.add(4 * ROWS * (2 * word + odd)).cast();
                let fours = inputs.map(|x| vreinterpretq_s8_s32(vdupq_n_s32(x.add(64 * odd + 4 * word).cast::<i32>().read_unaligned())));
                for (part, sums) in sums.iter_mut().enumerate() {
                    let codes = vld1q_s8(at.add(16 * part));
                    for (sum, four) in sums.iter_mut().zip(fours) {
                        *sum = sum.add(codes, four);
                    }
                }
            }
        }
    }
    sums.map(|row| row.map(M::lanes))
}
