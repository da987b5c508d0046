//! The attention loop: some rows of queries that share a key/value head, over consecutive positions.
//!
//! Positions go 32 at a time: their keys are multiplied with all query rows, each row's maximum and sum advance, then
//! their values are added ([`accumulate`]). All products keep `R` by 2 vectors in registers. A few query rows read keys and
//! values as they are, and a vector is a part of a row, so that each score is a sum of lanes ([`score`], [`TileTask::soften`]).
//! Many are worth widening keys and values first, and turning the queries: a vector is then as many rows, and neither
//! scores nor their maxima are ever summed or compared across lanes ([`score_turned`], [`TileTask::soften_turned`]).

use lily_model::{PAGE_TOKENS, Page};

use super::AttentionDims;
use crate::kv::KvLayout;
use crate::simd::{Kernel, Simd};

/// Positions that go together; divides a page.
const STEP: usize = 32;
/// Half floats in a cache line.
const LINE: usize = 32;
/// Lanes of two of the widest vectors.
const LANES_MAX: usize = 32;
/// Up to this many query rows read the cache without widening it first.
const DIRECT_ROWS: usize = 8;

/// One thread's room for a tile.
pub(crate) struct TileScratch {
    /// Scaled queries: `[rows, stride]`, of many rows `[rows / pair, stride, pair]` for the lanes of two vectors.
    queries: Vec<f32>,
    /// Sums of weighted values, `[rows, stride]`.
    sums: Vec<f32>,
    /// Widened keys, then values, of one step, `[STEP, stride]`.
    widened: Vec<f32>,
    /// Scores, then weights: `[rows, STEP]`, of many rows `[STEP, rows]`.
    scores: Vec<f32>,
    /// Running maximum of each row.
    max: Vec<f32>,
    /// Running sum of each row's weights.
    total: Vec<f32>,
}

impl TileScratch {
    pub fn new(dims: &AttentionDims) -> Self {
        let rows = (dims.tile_tokens() * dims.group()).next_multiple_of(LANES_MAX);
        TileScratch {
            queries: vec![0.0; rows * dims.stride],
            sums: vec![0.0; rows * dims.stride],
            widened: vec![0.0; STEP * dims.stride],
            scores: vec![0.0; rows * STEP],
            max: vec![0.0; rows],
            total: vec![0.0; rows],
        }
    }
}

/// Consecutive tokens of one span, the query heads of one key/value head, and the positions to look at.
pub(crate) struct TileTask<'a> {
    pub dims: AttentionDims,
    /// Rows of `q+gate | k | v` of the tile's tokens, `width` values each.
    pub projected: &'a [f32],
    pub width: usize,
    pub head: usize,
    /// Position of the first token.
    pub start: usize,
    /// The sequence's pages, and the whole cache that they index.
    pub pages: &'a [Page],
    pub cache: &'a [u16],
    pub layout: KvLayout,
    /// Index of the layer among attention layers.
    pub layer: usize,
    /// Positions to look at, of which each token sees those up to its own. A multiple of the page size at the start.
    pub positions: std::ops::Range<usize>,
    pub scratch: &'a mut TileScratch,
}

impl Kernel for TileTask<'_> {
    /// Rows, in order token by token and head by head: read them through [`TileScratch::finish`] or [`TileScratch::partial`].
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::REGISTERS == 32 { self.attend::<S, 8>(s) } else { self.attend::<S, 4>(s) }
    }
}

impl TileTask<'_> {
    /// `R`: query rows, or positions, that meet two vectors in registers.
    #[inline(always)]
    fn attend<S: Simd, const R: usize>(mut self, s: S) {
        let own = self.projected.len() / self.width * self.dims.group();
        let turned = own > DIRECT_ROWS;
        let pair = 2 * S::LANES;
        let rows = own.next_multiple_of(if turned { pair } else { R });
        self.load_queries(rows, turned.then_some(pair));
        let mut at = self.positions.start;
        while at < self.positions.end {
            let count = STEP.min(self.positions.end - at);
            let keys = self.layout.keys(self.pages[at / PAGE_TOKENS], self.layer, self.head) + at % PAGE_TOKENS * self.dims.stride;
            let values = keys + self.layout.half;
            // Whole steps stay inside a page: what stands behind `count` is stale or zero, and masked.
            let length = STEP * self.dims.stride;
            let (keys, values) = (&self.cache[keys..keys + length], &self.cache[values..values + length]);
            let shape = Shape { rows, count, stride: self.dims.stride, weight_steps: if turned { [1, rows] } else { [STEP, 1] } };
            if turned {
                let mut widened = std::mem::take(&mut self.scratch.widened);
                widen(s, &keys[..count * shape.stride], &mut widened);
                score_turned::<S, R>(s, self.scratch, &widened, shape);
                self.soften_turned(s, at, shape);
                widen(s, &values[..count * shape.stride], &mut widened);
                accumulate::<S, Single, R>(s, self.scratch, &widened, shape);
                self.scratch.widened = widened;
            } else {
                score::<S, R>(s, self.scratch, keys, shape);
                self.soften(s, at, count);
                accumulate::<S, Half, R>(s, self.scratch, values, shape);
            }
            at += count;
        }
    }

    /// Copies the queries, scaled by `head_dim^-0.5` and perhaps turned, pads rows with zeros and resets sums.
    #[inline(always)]
    fn load_queries(&mut self, rows: usize, pair: Option<usize>) {
        let AttentionDims { head_dim, stride, .. } = self.dims;
        let group = self.dims.group();
        let own = self.projected.len() / self.width * group;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let scratch = &mut *self.scratch;
        scratch.queries[..rows * stride].fill(0.0);
        for row in 0..own {
            let projected = &self.projected[row / group * self.width..][..self.width];
            let query = &projected[self.dims.query_at(self.head * group + row % group)..][..head_dim];
            let (first, step) = pair.map_or((row * stride, 1), |pair| (row / pair * pair * stride + row % pair, pair));
            let places = scratch.queries[first..].iter_mut().step_by(step);
            places.zip(query).for_each(|(place, x)| *place = x * scale);
        }
        scratch.sums[..rows * stride].fill(0.0);
        scratch.max[..rows].fill(f32::NEG_INFINITY);
        scratch.total[..rows].fill(0.0);
    }

    /// Turns the scores of `count` positions from `at` on into weights; rescales what was summed where the maximum grew.
    #[inline(always)]
    fn soften<S: Simd>(&mut self, s: S, at: usize, count: usize) {
        let group = self.dims.group();
        let tokens = self.projected.len() / self.width;
        let scratch = &mut *self.scratch;
        for row in 0..tokens * group {
            let seen = (self.start + row / group + 1).saturating_sub(at).min(count);
            let scores = &mut scratch.scores[row * STEP..(row + 1) * STEP];
            scores[seen..].fill(f32::NEG_INFINITY);
            let mut max = s.splat(scratch.max[row]);
            for place in scores.chunks_exact(S::LANES) {
                // SAFETY: a chunk has LANES values.
                max = s.max(max, unsafe { s.load(place.as_ptr()) });
            }
            let (before, max) = (scratch.max[row], s.max_lane(max));
            if seen == 0 {
                scores.fill(0.0);
                continue;
            }
            let max_all = s.splat(max);
            let mut total = s.zero();
            for (index, place) in scores.chunks_exact_mut(S::LANES).enumerate() {
                // SAFETY: a chunk has LANES values.
                unsafe {
                    if index * S::LANES >= seen {
                        s.store(place.as_mut_ptr(), s.zero());
                        continue;
                    }
                    let weight = s.exp(s.sub(s.load(place.as_ptr()), max_all));
                    s.store(place.as_mut_ptr(), weight);
                    total = s.add(total, weight);
                }
            }
            let shrink = if before == max { 1.0 } else { (before - max).exp() };
            scratch.total[row] = scratch.total[row] * shrink + s.sum(total);
            scratch.max[row] = max;
            if shrink != 1.0 {
                crate::norm::scale(s, &mut scratch.sums[row * self.dims.stride..(row + 1) * self.dims.stride], shrink);
            }
        }
    }

    /// As [`TileTask::soften`], of many rows.
    #[inline(always)]
    fn soften_turned<S: Simd>(&mut self, s: S, at: usize, Shape { rows, count, stride, .. }: Shape) {
        let (group, own) = (self.dims.group(), self.projected.len() / self.width * self.dims.group());
        let scratch = &mut *self.scratch;
        let scores = &mut scratch.scores[..count * rows];
        if self.start + 1 < at + count {
            for row in 0..own {
                let seen = (self.start + row / group + 1).saturating_sub(at).min(count);
                (seen..count).for_each(|position| scores[position * rows + row] = f32::NEG_INFINITY);
            }
        }
        for row in (0..rows).step_by(S::LANES) {
            let mut before = [0.0; LANES_MAX];
            let before = &mut before[..S::LANES];
            before.copy_from_slice(&scratch.max[row..row + S::LANES]);
            // SAFETY: `row + LANES <= rows`, of which there are as many scores for each of `count` positions.
            let total = unsafe {
                let mut max = s.load(before.as_ptr());
                for position in 0..count {
                    max = s.max(max, s.load(scores.as_ptr().add(position * rows + row)));
                }
                s.store(scratch.max.as_mut_ptr().add(row), max);
                let mut total = s.zero();
                for position in 0..count {
                    let place = scores.as_mut_ptr().add(position * rows + row);
                    let weight = s.exp(s.sub(s.load(place), max));
                    s.store(place, weight);
                    total = s.add(total, weight);
                }
                total
            };
            for (row, before) in (row..row + S::LANES).zip(before) {
                let max = scratch.max[row];
                if *before != max {
                    let shrink = (*before - max).exp();
                    scratch.total[row] *= shrink;
                    crate::norm::scale(s, &mut scratch.sums[row * stride..(row + 1) * stride], shrink);
                }
            }
            // SAFETY: as above.
            unsafe {
                let place = scratch.total.as_mut_ptr().add(row);
                s.store(place, s.add(s.load(place), total));
            }
        }
    }
}

/// Widens cached rows.
#[inline(always)]
fn widen<S: Simd>(s: S, cached: &[u16], out: &mut [f32]) {
    let out = &mut out[..cached.len()];
    for at in (0..cached.len()).step_by(S::LANES) {
        // SAFETY: cached rows are whole vectors long, `out` as long.
        unsafe { s.store(out.as_mut_ptr().add(at), s.load_half(cached.as_ptr().add(at))) }
    }
}

/// How rows of keys and values are stored.
trait Stored {
    type Value;
    /// Whether rows come from memory, so that asking for the step after this one pays: a third at 4096 positions.
    const FAR: bool;

    /// # Safety
    /// `LANES` values are readable at `at`.
    unsafe fn load<S: Simd>(s: S, at: *const Self::Value) -> S::V;
}

/// As the cache has them.
struct Half;

impl Stored for Half {
    type Value = u16;
    const FAR: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_half(at) }
    }
}

/// Widened.
struct Single;

impl Stored for Single {
    type Value = f32;
    const FAR: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load(at) }
    }
}

/// Of the products of one step.
#[derive(Clone, Copy)]
struct Shape {
    /// Query rows, a multiple of ROWS.
    rows: usize,
    /// Positions, at most STEP.
    count: usize,
    stride: usize,
    /// From weight to weight: to the next row, to the next position.
    weight_steps: [usize; 2],
}

/// `scores[row, position] = query[row] · key[position]`. An odd last position is paired with whatever stands behind it;
/// that score is masked. `keys [STEP, stride]`.
#[inline(always)]
fn score<S: Simd, const R: usize>(s: S, scratch: &mut TileScratch, keys: &[u16], Shape { rows, count, stride, .. }: Shape) {
    let (queries, keys) = (&scratch.queries[..rows * stride], &keys[..STEP * stride]);
    for row in (0..rows).step_by(R) {
        for position in (0..count).step_by(2) {
            if row == 0 {
                let ahead = keys.as_ptr().wrapping_add((position + STEP) * stride);
                (0..2 * stride).step_by(LINE).for_each(|at| s.prefetch(ahead.wrapping_add(at)));
            }
            let mut sums = [[s.zero(); 2]; R];
            for at in (0..stride).step_by(S::LANES) {
                // SAFETY: `row + R <= rows`, `position + 2 <= STEP`, and rows are whole vectors long.
                unsafe {
                    let key = s.load_half(keys.as_ptr().add(position * stride + at));
                    let next = s.load_half(keys.as_ptr().add((position + 1) * stride + at));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let query = s.load(queries.as_ptr().add((row + r) * stride + at));
                        sums[0] = s.mul_add(query, key, sums[0]);
                        sums[1] = s.mul_add(query, next, sums[1]);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                scratch.scores[(row + r) * STEP + position] = s.sum(sums[0]);
                scratch.scores[(row + r) * STEP + position + 1] = s.sum(sums[1]);
            }
        }
    }
}

/// `scores[position, row]`, of many rows: `R` positions meet two vectors of rows. `keys [STEP, stride]`, of which those
/// behind `count` are whatever they are; so are their scores, which nobody reads.
#[inline(always)]
fn score_turned<S: Simd, const R: usize>(s: S, scratch: &mut TileScratch, keys: &[f32], Shape { rows, count, stride, .. }: Shape) {
    let (queries, keys) = (&scratch.queries[..rows * stride], &keys[..STEP * stride]);
    let scores = &mut scratch.scores[..STEP * rows];
    for row in (0..rows).step_by(2 * S::LANES) {
        let queries = &queries[row * stride..(row + 2 * S::LANES) * stride];
        for position in (0..count).step_by(R) {
            let mut sums = [[s.zero(); 2]; R];
            // SAFETY: `position + R <= STEP`, and `row + 2 LANES <= rows`.
            unsafe {
                for at in 0..stride {
                    let query = queries.as_ptr().add(at * 2 * S::LANES);
                    let queries = [s.load(query), s.load(query.add(S::LANES))];
                    for (p, sums) in sums.iter_mut().enumerate() {
                        let key = s.splat(*keys.as_ptr().add((position + p) * stride + at));
                        sums[0] = s.mul_add(queries[0], key, sums[0]);
                        sums[1] = s.mul_add(queries[1], key, sums[1]);
                    }
                }
                for (p, sums) in sums.into_iter().enumerate() {
                    let place = scores.as_mut_ptr().add((position + p) * rows + row);
                    s.store(place, sums[0]);
                    s.store(place.add(S::LANES), sums[1]);
                }
            }
        }
    }
}

/// `sums[row] += weight[row, position] * value[position]` over the positions. `values [STEP, stride]`.
#[inline(always)]
fn accumulate<S: Simd, K: Stored, const R: usize>(s: S, scratch: &mut TileScratch, values: &[K::Value], shape: Shape) {
    let Shape { rows, stride, .. } = shape;
    let (weights, sums) = (&scratch.scores[..rows * STEP], &mut scratch.sums[..rows * stride]);
    // A row is a multiple of 16 values, for 16 lanes perhaps an odd number of vectors.
    let pairs = stride / (2 * S::LANES) * 2 * S::LANES;
    for row in (0..rows).step_by(R) {
        for at in (0..pairs).step_by(2 * S::LANES) {
            accumulate_block::<S, K, R, 2>(s, (row, at), (weights, values, sums), shape);
        }
        if pairs < stride {
            accumulate_block::<S, K, R, 1>(s, (row, pairs), (weights, values, sums), shape);
        }
    }
}

/// `R` rows from `row` on, `VECTORS` vectors from `at` on.
#[inline(always)]
fn accumulate_block<S: Simd, K: Stored, const R: usize, const VECTORS: usize>(
    s: S,
    (row, at): (usize, usize),
    (weights, values, sums): (&[f32], &[K::Value], &mut [f32]),
    Shape { count, stride, weight_steps: [to_row, to_position], .. }: Shape,
) {
    let values = &values[..count * stride];
    // SAFETY: `row + R` rows of weights and sums and `at + VECTORS * LANES <= stride` values in each row exist.
    unsafe {
        let mut held = [[s.zero(); VECTORS]; R];
        for (r, held) in held.iter_mut().enumerate() {
            for (v, held) in held.iter_mut().enumerate() {
                *held = s.load(sums.as_ptr().add((row + r) * stride + at + v * S::LANES));
            }
        }
        for position in 0..count {
            if K::FAR && row == 0 && at.is_multiple_of(LINE) {
                s.prefetch(values.as_ptr().wrapping_add((position + STEP) * stride + at));
            }
            let mut value = [s.zero(); VECTORS];
            for (v, value) in value.iter_mut().enumerate() {
                *value = K::load(s, values.as_ptr().add(position * stride + at + v * S::LANES));
            }
            for (r, held) in held.iter_mut().enumerate() {
                let weight = s.splat(*weights.get_unchecked((row + r) * to_row + position * to_position));
                for (held, &value) in held.iter_mut().zip(&value) {
                    *held = s.mul_add(weight, value, *held);
                }
            }
        }
        for (r, held) in held.into_iter().enumerate() {
            for (v, held) in held.into_iter().enumerate() {
                s.store(sums.as_mut_ptr().add((row + r) * stride + at + v * S::LANES), held);
            }
        }
    }
}

impl TileScratch {
    /// Maximum, sum of weights and unscaled result of a row, into a partial.
    pub fn partial(&self, row: usize, dims: &AttentionDims, out: &mut [f32]) {
        (out[0], out[1]) = (self.max[row], self.total[row]);
        out[16..].copy_from_slice(&self.sums[row * dims.stride..(row + 1) * dims.stride]);
    }

    /// The finished result of a row.
    pub fn finish(&self, row: usize, dims: &AttentionDims, gate: &[f32], out: &mut [f32], isa: crate::isa::Isa) {
        let sums = &self.sums[row * dims.stride..][..dims.head_dim];
        FinishRow { sums, total: self.total[row], gate: &gate[..dims.head_dim], out: &mut out[..dims.head_dim] }.on(isa);
    }
}

/// `out = sums / total * sigmoid(gate)`
struct FinishRow<'a> {
    sums: &'a [f32],
    total: f32,
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for FinishRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let total = s.splat(self.total);
        for at in (0..self.out.len()).step_by(S::LANES) {
            let left = self.out.len() - at;
            // SAFETY: `left` values follow `at` in all three slices.
            unsafe {
                let gate = s.sigmoid(s.load_some(self.gate.as_ptr().add(at), left));
                let x = s.div(s.load_some(self.sums.as_ptr().add(at), left), total);
                s.store_some(self.out.as_mut_ptr().add(at), left, s.mul(x, gate));
            }
        }
    }
}
