//! Products of 4-bit (and some 8-bit) weights with quantised activations: which loop serves which call.
//!
//! Start with [`multiply`]. Loops of one instruction set share a file; all compute, per group of 64,
//! `scale * x_scale * sum(code * x) + bias * x_sum` with the inner sum exact. Two kinds:
//! - up to [`GEMV_ROWS`] rows of activations: weight rows stream once through a matrix-vector loop, from
//!   several distant places at once, which keeps more of the memory's streams busy than one;
//! - more: 32 weight rows are repacked in cache (`panel`) and every tile of rows runs over them. With AMX, sixteen weight
//!   rows meet [`Tiles`] of sixteen rows, which the step has made of its activations (`amx`).
//!
//! The kinds differ in the order of the f32 sum over groups only: relative 1e-6 or less. Within a kind a
//! product does not depend on the other rows of the call.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_mm;
mod panel;
mod tiles;

use std::ops::Range;

use self::panel::PanelLoops;
pub use self::panel::PanelScratch;
pub use self::tiles::{TILE, Tiles};
use super::{Values, View};
use crate::isa::Isa;
use crate::quantise::{Activations, GROUP, Quantised};

/// Up to so many rows of activations the weights stream through a matrix-vector loop.
pub const GEMV_ROWS: usize = 4;
/// Codes are prefetched so far ahead, bytes. Flat from 2 to 4 KiB; without, a tenth to a third slower.
const AHEAD_CODES: usize = 2048;

/// Whether the integer loops take the matrix; every instruction set but Portable has them for 4 bits. Those of 8 bits
/// (routers, whose choices small errors change) keep to 16-bit activations, and to instructions that add products of
/// such codes without saturation.
pub fn serves(isa: Isa, view: &View<'_>, activations: Activations) -> bool {
    match view.integer_bits() {
        Some(4) => isa != Isa::Portable && activations != Activations::F32,
        Some(8) => matches!(isa, Isa::Avx512 | Isa::Amx) && activations == Activations::I16,
        _ => false,
    }
}

/// Rows of activations that some weight rows meet.
pub struct Inputs<'x> {
    pub x: &'x Quantised,
    /// Which rows of `x`.
    pub index: &'x [u32],
    /// Where the step [`wants_tiles`]: all of them, and the first of these rows.
    pub tiles: Option<(&'x Tiles, usize)>,
}

/// Whether a step of `rows` rows multiplies tiles, however few of the rows meet a matrix.
pub fn wants_tiles(isa: Isa, rows: usize) -> bool {
    isa == Isa::Amx && rows > GEMV_ROWS
}

/// `out[n, r] = w[range.start + r] . x[index[n]]`. `next`: the matrix and its row that the caller needs
/// afterwards, a hint.
pub fn multiply(
    isa: Isa,
    (view, range): (&View<'_>, Range<usize>),
    next: (&View<'_>, usize),
    inputs: &Inputs<'_>,
    out: &mut [f32],
    scratch: &mut PanelScratch,
) {
    let Inputs { x, index, tiles } = *inputs;
    assert!(range.end <= view.rows && x.cols() == view.cols && out.len() == range.len() * index.len());
    let weights = Weights::new(view);
    let (next, row) = if next.0.integer_bits().is_some() { (Weights::new(next.0), next.1) } else { (weights, range.end) };
    let next = (&next, row);
    if let Some(tiles) = tiles {
        tile_multiply((&weights, range), next, tiles, index.len(), out, scratch);
    } else if index.len() > GEMV_ROWS {
        panel::multiply(panel_loops(isa), (&weights, range), next, x, index, out, scratch);
    } else if let Some(&last) = index.last() {
        let inputs: [Input; GEMV_ROWS] = std::array::from_fn(|n| Input::new(x, *index.get(n).unwrap_or(&last) as usize));
        gemv(isa, x.planes(), &weights, range, next, &inputs[..index.len()], out);
    }
}

#[cfg(target_arch = "x86_64")]
fn tile_multiply(
    weights: (&Weights, Range<usize>),
    next: (&Weights, usize),
    tiles: (&Tiles, usize),
    count: usize,
    out: &mut [f32],
    scratch: &mut PanelScratch,
) {
    // SAFETY: tiles are made where `Isa::Amx` was found; `multiply` checked the shapes.
    unsafe { amx::multiply(weights, next, tiles, count, out, scratch) };
}

#[cfg(not(target_arch = "x86_64"))]
fn tile_multiply(_: (&Weights, Range<usize>), _: (&Weights, usize), _: (&Tiles, usize), _: usize, _: &mut [f32], _: &mut PanelScratch) {
    unreachable!("no step makes tiles here");
}

fn panel_loops(isa: Isa) -> &'static PanelLoops {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::LOOPS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::LOOPS,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => &neon_mm::LOOPS,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => &neon::DOT_LOOPS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon::WIDEN_LOOPS,
        _ => unreachable!("{isa} has no integer loops"),
    }
}

fn gemv(isa: Isa, planes: usize, weights: &Weights, range: Range<usize>, next: (&Weights, usize), inputs: &[Input], out: &mut [f32]) {
    match isa {
        // SAFETY: an `Isa` in use was found on this machine; `multiply` checked the shapes.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::gemv(planes, weights, range, next, inputs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { avx512::gemv(planes, weights, range, next, inputs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm | Isa::NeonDot => unsafe { neon::gemv::<neon::Dot>(planes, weights, range, next, inputs, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => unsafe { neon::gemv::<neon::Widen>(planes, weights, range, next, inputs, out) },
        _ => unreachable!("{isa} has no integer loops"),
    }
}

/// A row that is prefetched: where its codes, scales and biases begin.
#[derive(Clone, Copy)]
struct Later {
    codes: *const u8,
    scales: *const u8,
    biases: *const u8,
}

/// What to prefetch beside row `i` of each of `S` parts, `part` rows long from `first` on: [`AHEAD_CODES`] further in the
/// part, and at its end the start of the same part of what the caller needs `next`. An expert's part is short: without
/// that, an eighth to a half of it would come unasked.
#[inline(always)]
fn later<const S: usize>(weights: &Weights, first: usize, next: (&Weights, usize), part: usize, i: usize) -> [Later; S] {
    let ahead = i + AHEAD_CODES.div_ceil(weights.row_codes);
    std::array::from_fn(|s| if ahead < part { weights.row(first + s * part + ahead) } else { next.0.row(next.1 + s * part + ahead - part) })
}

/// Weights in groups of 64 with bf16 scales, as the loops address them. Nothing is aligned.
#[derive(Clone, Copy)]
struct Weights {
    /// `row_codes` bytes a row.
    codes: *const u8,
    /// `groups` bf16 a row.
    scales: *const u8,
    biases: *const u8,
    /// 4, or 8 where [`serves`] says so.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    bits: usize,
    cols: usize,
    groups: usize,
    row_codes: usize,
}

impl Weights {
    fn new(view: &View<'_>) -> Weights {
        let Values::Affine { bits, codes, scales, biases, .. } = view.values else {
            unreachable!("`serves` lets affine matrices alone pass");
        };
        let (cols, groups) = (view.cols, view.cols / GROUP);
        let row_codes = cols * bits / 8;
        assert!(codes.len() == view.rows * row_codes && scales.len() == view.rows * groups * 2 && biases.len() == scales.len());
        Weights { codes: codes.as_ptr(), scales: scales.as_ptr(), biases: biases.as_ptr(), bits, cols, groups, row_codes }
    }

    /// Where a row begins; of the last rows ahead some are past the end.
    #[inline(always)]
    fn row(&self, row: usize) -> Later {
        let scales = 2 * row * self.groups;
        Later {
            codes: self.codes.wrapping_add(row * self.row_codes),
            scales: self.scales.wrapping_add(scales),
            biases: self.biases.wrapping_add(scales),
        }
    }
}

/// One row of activations; see [`crate::quantise`] for the layout.
#[derive(Clone, Copy)]
struct Input {
    codes: *const i8,
    /// Readable up to a multiple of 16 groups.
    scales: *const f32,
    sums: *const f32,
}

impl Input {
    fn new(x: &Quantised, row: usize) -> Input {
        Input { codes: x.codes(row).as_ptr(), scales: x.scales(row).as_ptr(), sums: x.sums(row).as_ptr() }
    }
}
