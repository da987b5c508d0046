//! The matrix-matrix loop: weight rows are repacked in cache, then every tile of activation rows runs
//! over them.
//!
//! A panel is [`PanelLoops::rows`] weight rows by at most [`DEPTH`] inputs, codes unpacked to bytes with
//! the rows in the vector lanes: `[inputs / 4][rows][4]`. Four inputs of an activation row, broadcast,
//! meet all rows at once. A word's even inputs come first, then its odd ones, as in [`crate::quantise`].
//! Start with [`multiply`]; an instruction set brings its `repack` and `tile`.

use std::ops::Range;

use super::{Input, Weights};
use crate::quantise::{GROUP, Quantised, grow};

/// Inputs of a panel at most: its codes stay in the first-level cache.
pub const DEPTH: usize = 1024;
/// Groups of a tile between two calls of [`Ahead::advance`].
pub const AHEAD_GROUPS: usize = 4;
/// Weight rows whose products one call computes at most.
pub const ROWS_MAX: usize = 32;

/// The loops of one instruction set.
pub struct PanelLoops {
    /// Weight rows of a panel; divides [`ROWS_MAX`].
    pub rows: usize,
    /// Activation rows of a tile.
    pub tile_rows: usize,
    /// Fills a panel.
    ///
    /// # Safety
    /// The machine has the instruction set; the rows and groups are the weights'.
    pub repack: unsafe fn(panel: &mut Panel, weights: &Weights, rows: &[usize], groups: Range<usize>),
    /// Adds a tile's products.
    ///
    /// # Safety
    /// As above; the inputs have the panel's groups.
    pub tile: unsafe fn(tile: Tile<'_>),
}

/// One tile: up to `tile_rows` activation rows over a panel.
pub struct Tile<'t> {
    pub panel: &'t Panel,
    pub planes: usize,
    /// First group of the panel.
    pub first: usize,
    pub groups: usize,
    pub inputs: &'t [Input],
    /// `[inputs, ROWS_MAX]` from the panel's first row on; products are added.
    pub sums: &'t mut [f32],
    pub ahead: &'t mut Ahead,
}

/// Weight rows in cache. Sized for [`DEPTH`] inputs of 32 rows.
#[derive(Default)]
pub struct Panel {
    pub codes: Vec<Line>,
    /// `[groups][rows]`
    pub scales: Vec<f32>,
    pub biases: Vec<f32>,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Line(pub [u8; 64]);

impl Panel {
    pub fn codes(&self) -> *const u8 {
        self.codes.as_ptr().cast()
    }

    pub fn codes_mut(&mut self) -> *mut u8 {
        self.codes.as_mut_ptr().cast()
    }
}

/// Buffers of the loop.
#[derive(Default)]
pub struct PanelScratch {
    pub panel: Panel,
    /// `[activation rows, ROWS_MAX]`
    sums: Vec<f32>,
    /// Products on their way from tiles to vectors.
    pub dots: Vec<Line>,
    /// Sums of the tiles over the inputs so far.
    pub tile_sums: Vec<Line>,
}

/// The weights that come next in memory, fetched into cache a few lines at a time while a tile computes.
pub struct Ahead {
    pub next: [*const u8; 3],
    /// Bytes to fetch each time: codes, then scales and biases.
    pub step: [usize; 3],
}

impl Ahead {
    /// `rows` rows from `first` on, spread evenly over `steps` calls of [`Ahead::advance`].
    pub fn new(weights: &Weights, first: usize, rows: usize, steps: usize) -> Ahead {
        let place = |start: *const u8, row_bytes: usize| start.wrapping_add(first * row_bytes);
        let (codes, scales) = (weights.row_codes, weights.groups * 2);
        let step = |row_bytes: usize| (rows * row_bytes).div_ceil(steps);
        Ahead {
            next: [place(weights.codes, codes), place(weights.scales, scales), place(weights.biases, scales)],
            step: [step(codes), step(scales), step(scales)],
        }
    }

    /// Calls `prefetch` for every cache line that this step brings: a few at a time, so that the loads in flight have room
    /// for them.
    #[inline(always)]
    pub fn advance(&mut self, prefetch: impl Fn(*const u8)) {
        for (next, step) in self.next.iter_mut().zip(self.step) {
            let end = next.wrapping_add(step);
            let mut line = next.wrapping_add(next.addr().wrapping_neg() % 64);
            while line < end {
                prefetch(line);
                line = line.wrapping_add(64);
            }
            *next = end;
        }
    }
}

/// `out[n, r] = w[range.start + r] . x[index[n]]`. `next`: the weights and the row that the caller needs
/// afterwards.
pub fn multiply(
    loops: &PanelLoops,
    (weights, range): (&Weights, Range<usize>),
    next: (&Weights, usize),
    x: &Quantised,
    index: &[u32],
    out: &mut [f32],
    scratch: &mut PanelScratch,
) {
    let PanelScratch { panel, sums, .. } = scratch;
    grow(&mut panel.codes, ROWS_MAX * DEPTH / 64, Line([0; 64]));
    grow(&mut panel.scales, ROWS_MAX * DEPTH / GROUP, 0.0);
    grow(&mut panel.biases, ROWS_MAX * DEPTH / GROUP, 0.0);
    grow(sums, index.len() * ROWS_MAX, 0.0);
    let width = range.len();
    let tiles = index.len().div_ceil(loops.tile_rows);
    for first in range.clone().step_by(ROWS_MAX) {
        let live = ROWS_MAX.min(range.end - first);
        let panels = live.div_ceil(loops.rows);
        let next = if first + live < range.end { (weights, first + live) } else { next };
        let mut ahead = Ahead::new(next.0, next.1, live, panels * tiles * weights.groups.div_ceil(AHEAD_GROUPS));
        sums[..index.len() * ROWS_MAX].fill(0.0);
        for start in (0..panels * loops.rows).step_by(loops.rows) {
            // Past the last row the last is repeated; its products are dropped.
            let rows: [usize; ROWS_MAX] = std::array::from_fn(|i| (first + start + i).min(range.end - 1));
            for group in (0..weights.groups).step_by(DEPTH / GROUP) {
                let groups = group..weights.groups.min(group + DEPTH / GROUP);
                // SAFETY: whoever chose the loops found the instruction set; rows and groups are in range.
                unsafe { (loops.repack)(panel, weights, &rows[..loops.rows], groups.clone()) };
                for tile in 0..tiles {
                    // Tiles as equal as can be: a tile of one row costs nearly as much as a full one.
                    let part = index.len() * tile / tiles..index.len() * (tile + 1) / tiles;
                    let mut inputs = [Input::new(x, index[part.start] as usize); TILE_MAX];
                    for (input, &row) in inputs.iter_mut().zip(&index[part.clone()]) {
                        *input = Input::new(x, row as usize);
                    }
                    let tile = Tile {
                        panel,
                        planes: x.planes(),
                        first: group,
                        groups: groups.len(),
                        inputs: &inputs[..part.len()],
                        sums: &mut sums[part.start * ROWS_MAX + start..part.end * ROWS_MAX],
                        ahead: &mut ahead,
                    };
                    // SAFETY: as above.
                    unsafe { (loops.tile)(tile) };
                }
            }
        }
        for n in 0..index.len() {
            let out = &mut out[n * width + first - range.start..][..live];
            out.copy_from_slice(&sums[n * ROWS_MAX..n * ROWS_MAX + live]);
        }
    }
}

/// Activation rows of a tile on any instruction set.
const TILE_MAX: usize = 8;
