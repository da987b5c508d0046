//! Attention with its cache: norm, rotation and cache write, then the mix over shuffled pages.

use lily_model::{Capacity, Device, PAGE_TOKENS, Page};

use super::{CAPACITY, model, round};
use crate::generate::{Distribution, Rng, tiny_dims};
use crate::golden::assert_rows_close;
use crate::reference::{self, AttentionDims, KvCache, rms_norm};
use crate::ring::Subject;
use crate::ring::rig::{ATTENTION, Lab, Part, Which, assert_no_nan};

/// Batches of (context before, rows): decode and prefill in one batch, at the edges of pages and tiles.
pub const BATCHES: [&[(usize, usize)]; 4] =
    [&[(0, 1)], &[(254, 1), (255, 1), (256, 1), (0, 130)], &[(999, 1), (0, 2), (250, 9), (511, 3)], &[(767, 65)]];

/// Batches of few rows: sequences that decode, short spans whose rows see each other.
pub const FEW: [&[(usize, usize)]; 2] = [&[(254, 1), (255, 1), (256, 1), (0, 1)], &[(999, 3), (15, 1), (63, 2)]];

/// Contexts, the decoded row included, at the edges of pages and of the ways to cut them.
pub const CONTEXTS: [usize; 7] = [1, 255, 256, 257, 8191, 32768, 131_072];

/// Batches of sequences, each `(context before, rows)`; every one starts from empty caches.
pub fn check<S: Subject>(subject: &S, dims: AttentionDims, capacity: Capacity, batches: &[&[(usize, usize)]]) {
    let mut lab = Lab::new(subject, model(dims, tiny_dims().delta), capacity);
    for parts in batches {
        let mut free = shuffled_pages(capacity.pages, parts.iter().map(|(start, _)| *start as u64).sum()).into_iter();
        let mut contexts: Vec<Context> = Vec::new();
        for (at, &(start, rows)) in parts.iter().enumerate() {
            let count = (start + rows).div_ceil(PAGE_TOKENS);
            let mut context = Context::new(at as u32, free.by_ref().take(count).collect());
            assert_eq!(context.part.pages.len(), count, "the case needs more pages than the device was given");
            context.fill_until(&mut lab, start);
            context.part.rows = rows;
            contexts.push(context);
        }
        check_mix(&mut lab, &mut contexts, &format!("{parts:?}"));
    }
}

/// One sequence that grows: decode at each of these contexts (ascending), the new row included.
pub fn check_contexts<S: Subject>(subject: &S, dims: AttentionDims, contexts: &[usize]) {
    let longest = contexts.last().expect("a context");
    let capacity = Capacity { pages: longest.div_ceil(PAGE_TOKENS) + 7, rows: 2048.min(*longest), ..CAPACITY };
    let mut lab = Lab::new(subject, model(dims, tiny_dims().delta), capacity);
    let pages = shuffled_pages(capacity.pages, *longest as u64)[..longest.div_ceil(PAGE_TOKENS)].to_vec();
    let mut sequence = [Context::new(1, pages)];
    for &context in contexts {
        sequence[0].fill_until(&mut lab, context - 1);
        sequence[0].part.rows = 1;
        check_mix(&mut lab, &mut sequence, &format!("context {context}"));
        sequence[0].part.start = context;
    }
}

/// Page ids in an order of their own for every seed.
fn shuffled_pages(count: usize, seed: u64) -> Vec<Page> {
    let mut pages: Vec<Page> = (0..count as u32).map(Page).collect();
    let mut rng = Rng::new(seed);
    for at in (1..count).rev() {
        pages.swap(at, rng.below(at + 1));
    }
    pages
}

/// A sequence with its cache as the reference has it.
struct Context {
    part: Part,
    cache: KvCache,
}

impl Context {
    fn new(slot: u32, pages: Vec<Page>) -> Self {
        Context { part: Part { slot, start: 0, rows: 0, pages }, cache: KvCache::default() }
    }

    /// Random keys and values up to a position.
    fn fill_until<D: Device>(&mut self, lab: &mut Lab<D>, start: usize) {
        let (kv_width, width) = widths(&lab.reference.dims.attention);
        while self.part.start < start {
            let rows = (start - self.part.start).min(lab.device_rows());
            self.part.rows = rows;
            // Only keys and values matter here, and drawing numbers is what takes the time.
            let kv = Distribution::Gaussian.draw(&mut lab.rng, rows, 2 * kv_width);
            let mut projected = vec![0.0; rows * width];
            for (row, kv) in projected.chunks_exact_mut(width).zip(kv.chunks_exact(2 * kv_width)) {
                row[width - 2 * kv_width..].copy_from_slice(kv);
            }
            advance(lab, std::slice::from_mut(self), &projected);
            self.part.start += rows;
        }
    }
}

/// Keys of a row; queries, gates, keys and values of a row.
fn widths(dims: &AttentionDims) -> (usize, usize) {
    (dims.heads_kv * dims.head_dim, 2 * (dims.heads_q + dims.heads_kv) * dims.head_dim)
}

/// Prepares and mixes the staged rows of all sequences.
fn check_mix<D: Device>(lab: &mut Lab<D>, contexts: &mut [Context], case: &str) {
    let dims = lab.reference.dims.attention;
    let (kv_width, width) = widths(&dims);
    let rows = contexts.iter().map(|context| context.part.rows).sum();
    let projected = Distribution::Gaussian.draw(&mut lab.rng, rows, width);
    let projected = advance(lab, contexts, &projected);
    lab.poison(Which::Mixed, rows);
    lab.step(|device, b| device.attn_mix(ATTENTION, rows, &b.projected, &mut b.mixed));
    let q_width = dims.heads_q * dims.head_dim;
    let found = lab.columns(Which::Mixed, rows, q_width);
    let mut first = 0;
    for context in contexts {
        let Part { start, rows, .. } = context.part;
        let projected = &projected[first * width..(first + rows) * width];
        let queries: Vec<f64> = projected.chunks_exact(width).flat_map(|row| row[..2 * q_width].to_vec()).collect();
        let (query, gate) = reference::split_query_gate(&queries, dims.head_dim);
        let query = round(lab.numerics.queries, &rotated(lab, &query, &lab.attention_weights().q_norm, start, rows));
        let expected = reference::gate_output(&reference::attention(&query, &context.cache, &dims), &gate);
        let name = format!("{} {dims:?} rows {rows} at {start} of {case}", lab.label);
        let found = &found[first * q_width..(first + rows) * q_width];
        assert_no_nan(&name, found);
        // Where angles of some hundred thousand radians are rounded to f32, weights shift.
        let angles = 1e-7 * start as f64;
        assert_rows_close(&name, found, &expected, q_width, lab.tolerances.attention + angles);
        assert_eq!(context.cache.keys.len() / kv_width, start + rows, "the test's own cache");
        first += rows;
    }
}

/// Prepares the next rows of some sequences, on both sides; checks keys in place. Returns the rows as stored.
fn advance<D: Device>(lab: &mut Lab<D>, contexts: &mut [Context], projected: &[f32]) -> Vec<f64> {
    let dims = lab.reference.dims.attention;
    let parts: Vec<Part> = contexts.iter().map(|context| context.part.clone()).collect();
    let rows = lab.stage(&parts);
    let (kv_width, width) = widths(&dims);
    let projected = lab.fill(Which::Projected, projected, width);
    lab.step(|device, b| device.attn_prepare(ATTENTION, rows, &mut b.projected));
    let prepared = lab.columns(Which::Projected, rows, width);
    let keys_at = 2 * dims.heads_q * dims.head_dim;
    let mut first = 0;
    for context in contexts {
        let Part { start, rows, .. } = context.part;
        let raw = &projected[first * width..(first + rows) * width];
        let prepared = &prepared[first * width..(first + rows) * width];
        let part = |at: usize| -> Vec<f64> { raw.chunks_exact(width).flat_map(|row| row[at..at + kv_width].to_vec()).collect() };
        let keys = rotated(lab, &part(keys_at), &lab.attention_weights().k_norm, start, rows);
        let found: Vec<f32> = prepared.chunks_exact(width).flat_map(|row| row[keys_at..keys_at + kv_width].to_vec()).collect();
        let angles = 1.2e-7 * (start + rows) as f64;
        assert_rows_close(&format!("{} keys from {start}", lab.label), &found, &keys, kv_width, lab.tolerances.keys + angles);
        context.cache.keys.extend(round(lab.numerics.cache, &keys));
        context.cache.values.extend(round(lab.numerics.cache, &part(keys_at + kv_width)));
        first += rows;
    }
    projected
}

/// Norm and rotation of heads at consecutive positions.
fn rotated<D: Device>(lab: &Lab<D>, heads: &[f64], gain: &[f64], start: usize, rows: usize) -> Vec<f64> {
    let dims = &lab.reference.dims;
    let positions: Vec<usize> = (start..start + rows).collect();
    let AttentionDims { head_dim, rotary_dim, rope_theta, .. } = dims.attention;
    reference::rope(&rms_norm(heads, gain, dims.eps), &positions, head_dim, rotary_dim, rope_theta)
}
