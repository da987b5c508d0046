//! Projections: several matrices multiply the same rows in one parallel region.

use std::ops::Range;

use super::integer::{Inputs, TILE, Tiles};
use super::workspace::{LoopScratch, Workspace};
use super::{PackedMatrix, View, float, integer};
use crate::isa::Isa;
use crate::quantise::{Activations, Quantised, grow};
use crate::team::{Chunks, Disjoint, Team, Worker};

/// One matrix of a projection and where its outputs go.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pub matrix: &'a PackedMatrix,
    /// First column of `y` that it writes.
    pub column: usize,
}

/// `y[n, column + r] = w[r] . x[n]` for every job, or `+=`.
pub struct Projection<'a> {
    /// `[rows, x_stride]`, of which the first `cols` columns are read.
    pub x: &'a [f32],
    pub x_stride: usize,
    pub rows: usize,
    /// At least one; all with the same number of inputs, and with disjoint columns.
    pub jobs: &'a [Job<'a>],
    /// `[rows, y_stride]`
    pub y: &'a mut [f32],
    pub y_stride: usize,
    /// Add to `y` instead of overwriting it.
    pub accumulate: bool,
}

/// Weight rows that a member takes at least: a panel of the matrix-matrix loops.
pub(super) const UNIT: usize = 32;
/// Weight rows whose products wait in scratch at once when rows of x are few.
pub(super) const BLOCK_MAX: usize = 1024;

/// Bytes of tiles that go together: they and their products stay in the second-level cache while [`TILE_BLOCK`] weight
/// rows meet them. Twice as many cost the widest matrices a quarter.
const TILE_CACHE: usize = 512 << 10;
const TILE_BLOCK: usize = 256;

/// Weight rows whose products wait in scratch at once: many for a few rows of x, else one panel.
pub(super) fn block_max(isa: Isa, rows: usize) -> usize {
    if rows <= integer::GEMV_ROWS {
        BLOCK_MAX
    } else if integer::wants_tiles(isa, rows) {
        TILE_BLOCK
    } else {
        UNIT
    }
}

/// Matrices of one projection at most: `qkv | z | b | a`.
pub const JOBS_MAX: usize = 4;

/// Multiplies; the result does not depend on the number of threads.
///
/// # Panics
/// If a slice is too short for its shape: a bug of the caller.
pub fn project(team: &mut Team, workspace: &mut Workspace, projection: Projection<'_>) {
    let Projection { x, x_stride, rows, jobs, y, y_stride, accumulate } = projection;
    let cols = jobs[0].matrix.cols();
    assert!(jobs.len() <= JOBS_MAX, "a projection of more than {JOBS_MAX} matrices");
    assert!(jobs.iter().all(|job| job.matrix.cols() == cols), "projections of one input differ in inputs");
    assert!(jobs.iter().all(|job| job.column + job.matrix.rows() <= y_stride), "a projection's columns end past the row");
    if rows == 0 {
        return;
    }
    let Workspace { options, input, tiles, scratch, identity, .. } = workspace;
    let options = *options;
    let activations = if rows <= integer::GEMV_ROWS { options.decode } else { options.prefill };
    let views: [Option<View<'_>>; JOBS_MAX] = std::array::from_fn(|i| jobs.get(i).map(|job| job.matrix.view()));
    let quantised = views.iter().flatten().any(|view| integer::serves(options.isa, view, activations));
    if quantised {
        input.reshape(rows, cols, activations);
    }
    identity.extend(identity.len() as u32..rows as u32);
    let index = &identity[..rows];
    let row = |n: usize| &x[n * x_stride..n * x_stride + cols];
    let tile_count = if quantised && integer::wants_tiles(options.isa, rows) { rows.div_ceil(TILE) } else { 0 };
    if tile_count > 0 {
        tiles.reshape(tile_count, input);
    }
    let source = Source { isa: options.isa, activations, row: &row, input, tiles: (tile_count > 0).then_some(tiles) };
    let units = views.map(|view| view.map_or(0, |view| view.rows.div_ceil(UNIT)));
    let blocks = source.blocks(quantised);
    let packs = Chunks::new(tile_count, 1);
    let chunks = Chunks::new(units.iter().sum(), 1);
    let y = Disjoint::new(&mut y[..rows * y_stride]);
    let scratch = Disjoint::new(scratch);
    team.run(|worker| {
        source.quantise(worker, &blocks);
        worker.finish(&blocks);
        source.pack(worker, &packs, |tile| &index[tile * TILE..rows.min((tile + 1) * TILE)]);
        worker.finish(&packs);
        // SAFETY: every member has its own scratch.
        let scratch = unsafe { &mut scratch.slice(worker.index..worker.index + 1)[0] };
        while let Some(taken) = chunks.take(worker) {
            pieces(taken.clone(), units, block_max(options.isa, rows), |job, range| {
                let view = views[job].as_ref().expect("units belong to jobs");
                let range = range.start..range.end.min(view.rows);
                let first = jobs[job].column + range.start;
                for (index, tile) in source.together(index, 0) {
                    source.multiply((view, range.clone()), (view, range.end), (index, tile), &mut scratch.out, &mut scratch.loops);
                    for (&n, products) in index.iter().zip(scratch.out.chunks_exact(range.len())) {
                        let start = n as usize * y_stride + first;
                        // SAFETY: ranges taken are disjoint, and so are the jobs' columns.
                        let y = unsafe { y.slice(start..start + range.len()) };
                        if accumulate {
                            y.iter_mut().zip(products).for_each(|(y, product)| *y += product);
                        } else {
                            y.copy_from_slice(products);
                        }
                    }
                }
            });
        }
    });
}

/// Cuts units `taken` of consecutive jobs into ranges of weight rows: `piece(job, rows)`, each within one
/// job and at most `rows_max` long. The last range of a job may end past its matrix.
pub(super) fn pieces(
    taken: Range<usize>,
    units: impl IntoIterator<Item = usize>,
    rows_max: usize,
    mut piece: impl FnMut(usize, Range<usize>),
) {
    let mut first = 0;
    for (job, count) in units.into_iter().enumerate() {
        let (start, end) = (taken.start.max(first), taken.end.min(first + count));
        let mut at = start;
        while at < end {
            let stop = end.min(at + rows_max / UNIT);
            piece(job, (at - first) * UNIT..(stop - first) * UNIT);
            at = stop;
        }
        first += count;
        if first >= taken.end {
            break;
        }
    }
}

/// Rows of activations as the loops read them: floats, and integers where the step quantised them.
pub(super) struct Source<'s, 'x> {
    pub isa: Isa,
    pub activations: Activations,
    /// The floats of quantised row `i`.
    pub row: &'s (dyn Fn(usize) -> &'x [f32] + Sync),
    pub input: &'s Quantised,
    /// The integers as tiles, where the step wants them.
    pub tiles: Option<&'s Tiles>,
}

impl Source<'_, '_> {
    /// What there is to quantise: one unit a block of inputs.
    pub fn blocks(&self, quantised: bool) -> Chunks {
        Chunks::new(if quantised { self.input.blocks() } else { 0 }, 4)
    }

    /// Quantises blocks of the input; they must be finished before anyone multiplies.
    pub fn quantise(&self, worker: &Worker<'_>, blocks: &Chunks) {
        while let Some(taken) = blocks.take(worker) {
            // SAFETY: ranges taken are disjoint, and readers wait for all; the `Isa` in use was found here.
            unsafe { self.input.fill(self.isa, taken.clone(), self.row) };
        }
    }

    /// Makes tiles of quantised rows, `rows_of(tile)` each; they must be finished before anyone multiplies.
    pub fn pack<'i>(&self, worker: &Worker<'_>, packs: &Chunks, rows_of: impl Fn(usize) -> &'i [u32]) {
        let Some(tiles) = self.tiles else { return };
        while let Some(taken) = packs.take(worker) {
            for tile in taken.clone() {
                // SAFETY: ranges taken are disjoint, and readers wait for all; tiles are made where AMX was found.
                unsafe { tiles.fill(tile, self.input, rows_of(tile)) };
            }
        }
    }

    /// Parts of an index that one call should take, with their first tiles; `tile` is the first of all.
    pub fn together<'i, I>(&self, index: &'i [I], tile: usize) -> impl Iterator<Item = (&'i [I], usize)> + use<'i, I> {
        let most = self.tiles.map_or(index.len().max(1), |tiles| (TILE_CACHE / tiles.tile_bytes()).max(1) * TILE);
        index.chunks(most).enumerate().map(move |(part, index)| (index, tile + part * most / TILE))
    }

    /// `out[n, r] = w[range.start + r] . x[index[n]]` for every index, whose tiles, if there are tiles, start with
    /// number `tile`. `next`: where the caller goes on.
    pub fn multiply(
        &self,
        (view, range): (&View<'_>, Range<usize>),
        next: (&View<'_>, usize),
        (index, tile): (&[u32], usize),
        out: &mut Vec<f32>,
        scratch: &mut LoopScratch,
    ) {
        grow(out, index.len() * range.len(), 0.0);
        let out = &mut out[..index.len() * range.len()];
        if integer::serves(self.isa, view, self.activations) {
            let inputs = Inputs { x: self.input, index, tiles: self.tiles.map(|tiles| (tiles, tile)) };
            integer::multiply(self.isa, (view, range), next, &inputs, out, &mut scratch.panel);
        } else {
            float::multiply(self.isa, view, range, &|n| (self.row)(index[n] as usize), index.len(), out, scratch);
        }
    }
}
