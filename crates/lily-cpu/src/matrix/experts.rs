//! The mixture of experts: every chosen expert's weights are read once, for all rows that chose it.
//!
//! Start with [`GateUpExperts::run`], then [`DownExperts::run`]. Both sort the (row, choice) pairs by
//! expert first (`Grouping`); the shared expert is one more group, which every row chose. Slot `j` of a
//! row is its `j`-th choice, slot `per_row` the shared expert; slot `j` stands at column
//! `j * expert_width` of the hidden buffer.

use super::integer::TILE;
use super::project::{BLOCK_MAX, Source, UNIT, block_max, pieces};
use super::workspace::{Options, Workspace};
use super::{PackedExperts, PackedMatrix, integer};
use crate::quantise::{Activations, grow};
use crate::simd::{Kernel, Simd};
use crate::team::{Chunks, Disjoint, Team};

/// Which experts every row chose.
#[derive(Clone, Copy)]
pub struct Routes<'a> {
    /// Choices of a row.
    pub per_row: usize,
    /// Expert of each choice, `[rows, per_row]`.
    pub ids: &'a [u32],
    /// Weight of each choice, `[rows, per_row]`.
    pub weights: &'a [f32],
    /// Weight of the shared expert, `[rows]`.
    pub shared: &'a [f32],
}

/// `hidden[n, slot] = silu(gate_e x[n]) * (up_e x[n])` for every chosen expert and the shared one.
pub struct GateUpExperts<'a> {
    /// `[rows, x_stride]`, of which the first `cols` columns are read.
    pub x: &'a [f32],
    pub x_stride: usize,
    pub rows: usize,
    pub routes: Routes<'a>,
    pub gate: &'a PackedExperts,
    pub up: &'a PackedExperts,
    pub shared_gate: &'a PackedMatrix,
    pub shared_up: &'a PackedMatrix,
    /// `[rows, hidden_stride]`: `per_row * expert_width + shared_width` columns are written.
    pub hidden: &'a mut [f32],
    pub hidden_stride: usize,
}

/// `residual[n] += sum_j weight_j * down_j hidden[n, j] + shared_weight * down_shared hidden[n, per_row]`.
pub struct DownExperts<'a> {
    /// As [`GateUpExperts`] left it.
    pub hidden: &'a [f32],
    pub hidden_stride: usize,
    pub rows: usize,
    pub routes: Routes<'a>,
    pub down: &'a PackedExperts,
    pub shared_down: &'a PackedMatrix,
    /// `[rows, residual_stride]`
    pub residual: &'a mut [f32],
    pub residual_stride: usize,
}

impl GateUpExperts<'_> {
    /// The result does not depend on the number of threads.
    ///
    /// # Panics
    /// If a slice is too short for its shape or an id is no expert: a bug of the caller.
    pub fn run(self, team: &mut Team, workspace: &mut Workspace) {
        let GateUpExperts { x, x_stride, rows, routes, gate, up, shared_gate, shared_up, hidden, hidden_stride } = self;
        let (cols, width, per_row) = (gate.cols(), gate.rows(), routes.per_row);
        assert!([up.cols(), shared_gate.cols(), shared_up.cols()] == [cols; 3], "the experts' inputs differ");
        assert!(up.rows() == width && shared_up.rows() == shared_gate.rows(), "gate and up differ in outputs");
        assert!(per_row * width + shared_gate.rows() <= hidden_stride, "the experts' columns end past the row");
        if rows == 0 {
            return;
        }
        let Workspace { options, input, tiles, scratch, grouping, .. } = workspace;
        let activations = activations(options, rows);
        let isa = options.isa;
        grouping.sort(&routes, rows, gate.experts());
        let grouping = &*grouping;
        let quantised =
            [gate.expert(0), up.expert(0), shared_gate.view(), shared_up.view()].iter().any(|view| integer::serves(isa, view, activations));
        if quantised {
            input.reshape(rows, cols, activations);
        }
        let row = |n: usize| &x[n * x_stride..n * x_stride + cols];
        let tile_count = if quantised && integer::wants_tiles(isa, rows) { grouping.tiles } else { 0 };
        if tile_count > 0 {
            tiles.reshape(tile_count, input);
        }
        let source = Source { isa, activations, row: &row, input, tiles: (tile_count > 0).then_some(tiles) };
        let matrices = |group: &Group| match group.expert {
            Some(expert) => (gate.expert(expert), up.expert(expert)),
            None => (shared_gate.view(), shared_up.view()),
        };
        let units = |group: &Group| matrices(group).0.rows.div_ceil(UNIT);
        let blocks = source.blocks(quantised);
        let packs = Chunks::new(tile_count, 1);
        let chunks = Chunks::new(grouping.groups.iter().map(units).sum(), 1);
        let rows_max = block_max(isa, rows);
        let hidden = Disjoint::new(&mut hidden[..rows * hidden_stride]);
        let scratch = Disjoint::new(scratch);
        team.run(|worker| {
            source.quantise(worker, &blocks);
            worker.finish(&blocks);
            source.pack(worker, &packs, |tile| grouping.tile(tile, &grouping.rows));
            worker.finish(&packs);
            // SAFETY: every member has its own scratch.
            let scratch = unsafe { &mut scratch.slice(worker.index..worker.index + 1)[0] };
            while let Some(taken) = chunks.take(worker) {
                pieces(taken.clone(), grouping.groups.iter().map(units), rows_max, |at, range| {
                    let group = &grouping.groups[at];
                    let (gate, up) = matrices(group);
                    let range = range.start..range.end.min(gate.rows);
                    let last = range.end == gate.rows;
                    let next = grouping.groups.get(at + 1).filter(|_| last).map_or((gate, range.end), |group| (matrices(group).0, 0));
                    let index = source.together(&grouping.rows[group.pairs.clone()], group.tile);
                    let slots = source.together(&grouping.slots[group.pairs.clone()], group.tile);
                    for ((index, tile), (slots, _)) in index.zip(slots) {
                        let out = (&mut scratch.out, &mut scratch.other);
                        source.multiply((&gate, range.clone()), (&up, range.start), (index, tile), out.0, &mut scratch.loops);
                        source.multiply((&up, range.clone()), (&next.0, next.1), (index, tile), out.1, &mut scratch.loops);
                        let products = out.0.chunks_exact(range.len()).zip(out.1.chunks_exact(range.len()));
                        for ((&row, &slot), (gate, up)) in index.iter().zip(slots).zip(products) {
                            let first = row as usize * hidden_stride + slot as usize * width + range.start;
                            // SAFETY: a pair's columns belong to one group, and ranges taken are disjoint.
                            let hidden = unsafe { hidden.slice(first..first + range.len()) };
                            SwiGlu { gate, up, out: hidden }.on(isa);
                        }
                    }
                });
            }
        });
    }
}

impl DownExperts<'_> {
    /// The result does not depend on the number of threads; a row's experts are summed in order of id,
    /// the shared one last.
    ///
    /// # Panics
    /// If a slice is too short for its shape or an id is no expert: a bug of the caller.
    pub fn run(self, team: &mut Team, workspace: &mut Workspace) {
        let DownExperts { hidden, hidden_stride, rows, routes, down, shared_down, residual, residual_stride } = self;
        let (width, per_row, outputs) = (down.cols(), routes.per_row, down.rows());
        assert!(shared_down.rows() == outputs && outputs <= residual_stride, "the experts' outputs differ from the residual");
        assert!(per_row * width + shared_down.cols() <= hidden_stride, "the experts' columns end past the row");
        if rows == 0 {
            return;
        }
        let Workspace { options, input, shared_input, tiles, shared_tiles, scratch, grouping, .. } = workspace;
        let activations = activations(options, rows);
        let isa = options.isa;
        grouping.sort(&routes, rows, down.experts());
        let grouping = &*grouping;
        let quantised = [down.expert(0), shared_down.view()].map(|view| integer::serves(isa, &view, activations));
        if quantised[0] {
            input.reshape(rows * per_row, width, activations);
        }
        if quantised[1] {
            shared_input.reshape(rows, shared_down.cols(), activations);
        }
        let routed_row = |pair: usize| {
            let first = pair / per_row * hidden_stride + pair % per_row * width;
            &hidden[first..first + width]
        };
        let shared_row = |row: usize| {
            let first = row * hidden_stride + per_row * width;
            &hidden[first..first + shared_down.cols()]
        };
        let counts = [grouping.tiles - rows.div_ceil(TILE), rows.div_ceil(TILE)];
        let wanted = quantised.map(|quantised| quantised && integer::wants_tiles(isa, rows));
        if wanted[0] {
            tiles.reshape(counts[0], input);
        }
        if wanted[1] {
            shared_tiles.reshape(counts[1], shared_input);
        }
        let routed = Source { isa, activations, row: &routed_row, input, tiles: wanted[0].then_some(tiles) };
        let shared = Source { isa, activations, row: &shared_row, input: shared_input, tiles: wanted[1].then_some(shared_tiles) };
        let matrix = |group: &Group| match group.expert {
            Some(expert) => down.expert(expert),
            None => shared_down.view(),
        };
        let rows_max = sum_max(rows);
        let blocks = [routed.blocks(quantised[0]), shared.blocks(quantised[1])];
        let packs = [0, 1].map(|i| Chunks::new(if wanted[i] { counts[i] } else { 0 }, 1));
        let granule = if rows <= integer::GEMV_ROWS { 4 * UNIT } else { rows_max };
        let chunks = Chunks::new(outputs, granule.min(outputs / team.count() / UNIT * UNIT).max(UNIT));
        let residual = Disjoint::new(&mut residual[..rows * residual_stride]);
        let scratch = Disjoint::new(scratch);
        team.run(|worker| {
            routed.quantise(worker, &blocks[0]);
            shared.quantise(worker, &blocks[1]);
            blocks.iter().for_each(|blocks| worker.finish(blocks));
            routed.pack(worker, &packs[0], |tile| grouping.tile(tile, &grouping.choices));
            shared.pack(worker, &packs[1], |tile| grouping.tile(counts[0] + tile, &grouping.rows));
            packs.iter().for_each(|packs| worker.finish(packs));
            // SAFETY: every member has its own scratch.
            let scratch = unsafe { &mut scratch.slice(worker.index..worker.index + 1)[0] };
            while let Some(taken) = chunks.take(worker) {
                for start in taken.clone().step_by(rows_max) {
                    let range = start..taken.end.min(start + rows_max);
                    let length = range.len();
                    grow(&mut scratch.sum, rows * length, 0.0);
                    scratch.sum[..rows * length].fill(0.0);
                    for (at, group) in grouping.groups.iter().enumerate() {
                        let rows_of = &grouping.rows[group.pairs.clone()];
                        let slots = &grouping.slots[group.pairs.clone()];
                        let (source, index) = match group.expert {
                            Some(_) => (&routed, (&grouping.choices[group.pairs.clone()], group.tile)),
                            None => (&shared, (rows_of, 0)),
                        };
                        let view = matrix(group);
                        let next = grouping.groups.get(at + 1).map_or(view, matrix);
                        let parts = source.together(index.0, index.1).zip(source.together(rows_of, 0)).zip(source.together(slots, 0));
                        for (((index, tile), (rows_of, _)), (slots, _)) in parts {
                            source.multiply(
                                (&view, range.clone()),
                                (&next, range.start),
                                (index, tile),
                                &mut scratch.out,
                                &mut scratch.loops,
                            );
                            for ((&row, &slot), products) in rows_of.iter().zip(slots).zip(scratch.out.chunks_exact(length)) {
                                let (row, slot) = (row as usize, slot as usize);
                                let weight = if slot == per_row { routes.shared[row] } else { routes.weights[row * per_row + slot] };
                                let sum = &mut scratch.sum[row * length..(row + 1) * length];
                                AddScaled { weight, products, sum }.on(isa);
                            }
                        }
                    }
                    for (row, sum) in scratch.sum.chunks_exact(length).take(rows).enumerate() {
                        let first = row * residual_stride + range.start;
                        // SAFETY: ranges taken are disjoint.
                        let residual = unsafe { residual.slice(first..first + length) };
                        AddScaled { weight: 1.0, products: sum, sum: residual }.on(isa);
                    }
                }
            }
        });
    }
}

fn activations(options: &Options, rows: usize) -> Activations {
    if rows <= integer::GEMV_ROWS { options.decode } else { options.prefill_experts }
}

/// Outputs that are summed over the experts at once: the sums stay in the second-level cache, and an
/// expert's rows are long enough to stream.
fn sum_max(rows: usize) -> usize {
    const SUMS_MAX: usize = 1 << 18;
    (SUMS_MAX / rows / UNIT * UNIT).clamp(UNIT, BLOCK_MAX)
}

/// `out = silu(gate) * up`
struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let SwiGlu { gate, up, out } = self;
        let (gate, up) = (&gate[..out.len()], &up[..out.len()]);
        for at in (0..out.len()).step_by(S::LANES) {
            let count = out.len() - at;
            // SAFETY: `count` values follow `at` in all three.
            unsafe {
                let (gate, up) = (s.load_some(gate.as_ptr().add(at), count), s.load_some(up.as_ptr().add(at), count));
                s.store_some(out.as_mut_ptr().add(at), count, s.mul(s.silu(gate), up));
            }
        }
    }
}

/// `sum += weight * products`
struct AddScaled<'a> {
    weight: f32,
    products: &'a [f32],
    sum: &'a mut [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (weight, sum) = (s.splat(self.weight), self.sum);
        let products = &self.products[..sum.len()];
        for at in (0..sum.len()).step_by(S::LANES) {
            let count = sum.len() - at;
            // SAFETY: `count` values follow `at` in both.
            unsafe {
                let (place, product) = (sum.as_mut_ptr().add(at), s.load_some(products.as_ptr().add(at), count));
                s.store_some(place, count, s.mul_add(weight, product, s.load_some(place, count)));
            }
        }
    }
}

/// The (row, slot) pairs of a step, sorted by expert. Buffers grow and stay.
#[derive(Default)]
pub(super) struct Grouping {
    /// Experts that some row chose, in order of id; the shared expert last.
    pub groups: Vec<Group>,
    /// Per pair in group order: its row, its slot, and `row * per_row + slot` (routed pairs only).
    pub rows: Vec<u32>,
    pub slots: Vec<u32>,
    pub choices: Vec<u32>,
    /// Tiles of rows, of which every group has its own.
    pub tiles: usize,
    counts: Vec<u32>,
}

/// The pairs of one expert.
pub(super) struct Group {
    /// `None`: the shared expert.
    pub expert: Option<usize>,
    pub pairs: std::ops::Range<usize>,
    /// The first of its tiles.
    pub tile: usize,
}

impl Grouping {
    /// The entries of one of the lists that belong to a tile.
    fn tile<'l>(&self, tile: usize, list: &'l [u32]) -> &'l [u32] {
        let group = &self.groups[self.groups.partition_point(|group| group.tile <= tile) - 1];
        let first = group.pairs.start + (tile - group.tile) * TILE;
        &list[first..group.pairs.end.min(first + TILE)]
    }

    /// Counting sort; rows stay in order within an expert.
    fn sort(&mut self, routes: &Routes<'_>, rows: usize, experts: usize) {
        let per_row = routes.per_row;
        let ids = &routes.ids[..rows * per_row];
        assert!(routes.weights.len() >= ids.len() && routes.shared.len() >= rows, "routes are shorter than their rows");
        self.groups.clear();
        self.counts.clear();
        self.counts.resize(experts, 0);
        for &id in ids {
            self.counts[id as usize] += 1;
        }
        let (mut next, mut tile) = (0, 0);
        for (expert, count) in self.counts.iter_mut().enumerate() {
            let first = next;
            next += *count as usize;
            if *count > 0 {
                self.groups.push(Group { expert: Some(expert), pairs: first..next, tile });
                tile += (next - first).div_ceil(TILE);
            }
            *count = first as u32;
        }
        self.groups.push(Group { expert: None, pairs: next..next + rows, tile });
        self.tiles = tile + rows.div_ceil(TILE);
        for list in [&mut self.rows, &mut self.slots, &mut self.choices] {
            list.clear();
            list.resize(next + rows, 0);
        }
        for (choice, &id) in ids.iter().enumerate() {
            let at = &mut self.counts[id as usize];
            self.rows[*at as usize] = (choice / per_row) as u32;
            self.slots[*at as usize] = (choice % per_row) as u32;
            self.choices[*at as usize] = choice as u32;
            *at += 1;
        }
        for row in 0..rows {
            self.rows[next + row] = row as u32;
            self.slots[next + row] = per_row as u32;
        }
    }
}
