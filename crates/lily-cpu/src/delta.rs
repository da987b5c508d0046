//! Gated DeltaNet between its projections, for one key head of one span: convolution, state update, gated norm.
//!
//! A key head and the value heads that share it touch nothing that another key head touches, so they are one unit of
//! parallel work ([`DeltaHead`]). Tokens go through in chunks, so that a chunk's convolved rows stay in the second
//! cache; within a chunk, each block of 32 state columns goes over all tokens before the next one ([`scan`]), so that
//! it stays in the first. One token alone reads and writes the state once ([`step`]).
//!
//! Math, per value head: `d = (v - decay * Sᵀk) * beta; S = decay * S + k dᵀ; o = Sᵀq`. Both read the old state only:
//! `o = decay * Sᵀq + (k·q) d`.

use lily_model::ModelConfig;
use lily_model::weights::DeltaWeights;

use crate::norm::{scale, sum_of_squares};
use crate::simd::{Kernel, Simd};
use crate::state::BLOCK;
use crate::team::Disjoint;

/// Tokens per chunk.
const CHUNK: usize = 32;
/// Vectors in a block of the narrowest instruction set.
const VECTORS_MAX: usize = BLOCK / 4;
/// Epsilon of the l2 norm of queries and keys.
const L2_EPS: f32 = 1e-6;

/// Dimensions of one unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaDims {
    pub heads_k: usize,
    pub heads_v: usize,
    pub dim_k: usize,
    pub dim_v: usize,
    pub conv_width: usize,
    pub eps: f32,
}

impl DeltaDims {
    pub fn new(config: &ModelConfig) -> Self {
        let ModelConfig { heads_k, heads_v, dim_k, dim_v, conv_width, rms_eps, .. } = *config;
        DeltaDims { heads_k, heads_v, dim_k, dim_v, conv_width, eps: rms_eps }
    }

    /// Value heads per key head.
    fn group(&self) -> usize {
        self.heads_v / self.heads_k
    }

    /// Channels of a unit: its query, its key, its values.
    fn channels(&self) -> usize {
        2 * self.dim_k + self.group() * self.dim_v
    }

    fn conv_dim(&self) -> usize {
        2 * self.heads_k * self.dim_k + self.heads_v * self.dim_v
    }

    /// Where the unit's query, key and values stand in a row of all channels: start in the row, start in the unit, length.
    fn parts(&self, head: usize) -> [(usize, usize, usize); 3] {
        let keys = self.heads_k * self.dim_k;
        let values = self.group() * self.dim_v;
        [
            (head * self.dim_k, 0, self.dim_k),
            (keys + head * self.dim_k, self.dim_k, self.dim_k),
            (2 * keys + head * values, 2 * self.dim_k, values),
        ]
    }
}

/// What a DeltaNet layer needs besides its matrices.
pub(crate) struct DeltaLayer {
    /// `[heads_k, conv_width, channels of the unit]`
    taps: Vec<f32>,
    decay_rate: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl DeltaLayer {
    /// Rearranges the taps by unit.
    pub fn new(weights: &DeltaWeights, dims: &DeltaDims) -> Self {
        let (width, channels) = (dims.conv_width, dims.channels());
        let mut taps = vec![0.0; dims.heads_k * width * channels];
        for (head, unit) in taps.chunks_exact_mut(width * channels).enumerate() {
            for (from, to, length) in dims.parts(head) {
                for (tap, at) in (0..width).flat_map(|tap| (0..length).map(move |at| (tap, at))) {
                    unit[tap * channels + to + at] = weights.conv[(from + at) * width + tap];
                }
            }
        }
        let DeltaWeights { decay_rate, dt_bias, norm, .. } = weights;
        DeltaLayer { taps, decay_rate: decay_rate.clone(), dt_bias: dt_bias.clone(), norm: norm.clone() }
    }
}

/// One thread's room for a unit.
pub(crate) struct DeltaScratch {
    /// Raw rows `[conv_width - 1 + CHUNK, channels]`: the history, then the chunk.
    raw: Vec<f32>,
    /// Convolved rows `[CHUNK, channels]`; the values become the reads of the state.
    rows: Vec<f32>,
    decay: [f32; CHUNK],
    beta: [f32; CHUNK],
    /// `k·q`
    overlap: [f32; CHUNK],
}

impl DeltaScratch {
    pub fn new(dims: &DeltaDims) -> Self {
        DeltaScratch {
            raw: vec![0.0; (dims.conv_width - 1 + CHUNK) * dims.channels()],
            rows: vec![0.0; CHUNK * dims.channels()],
            decay: [0.0; CHUNK],
            beta: [0.0; CHUNK],
            overlap: [0.0; CHUNK],
        }
    }
}

/// One key head of one span.
pub(crate) struct DeltaHead<'a> {
    pub dims: DeltaDims,
    pub layer: &'a DeltaLayer,
    pub head: usize,
    /// The span's rows of `qkv | z | b | a`, `width` values each.
    pub projected: &'a [f32],
    pub width: usize,
    /// All state, in which the layer's `conv [conv_width - 1, conv_dim]` of the span's slot stands at `conv_at`; other
    /// units own other columns.
    pub conv: &'a Disjoint<'a, f32>,
    pub conv_at: usize,
    /// The memory of the unit's value heads, one after another.
    pub memory: &'a mut [f32],
    /// The result, in which the span's rows of `mixed_width` values start at `mixed_at`; other units own other columns.
    pub mixed: &'a Disjoint<'a, f32>,
    pub mixed_at: usize,
    pub mixed_width: usize,
    pub scratch: &'a mut DeltaScratch,
}

impl Kernel for DeltaHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let tokens = self.projected.len() / self.width;
        self.history(false);
        for first in (0..tokens).step_by(CHUNK) {
            let count = CHUNK.min(tokens - first);
            self.convolve(s, first, count);
            self.normalise(s, count);
            for member in 0..self.dims.group() {
                self.gates(first, count, member);
                self.update(s, count, member);
                self.finish(s, first, count, member);
            }
        }
        self.history(true);
    }
}

impl DeltaHead<'_> {
    /// Copies the raw rows before the span from the state, or those before its end back.
    #[inline(always)]
    fn history(&mut self, save: bool) {
        let (conv_dim, channels) = (self.dims.conv_dim(), self.dims.channels());
        for row in 0..self.dims.conv_width - 1 {
            for (from, to, length) in self.dims.parts(self.head) {
                let at = self.conv_at + row * conv_dim + from;
                // SAFETY: these columns belong to this unit alone.
                let state = unsafe { self.conv.slice(at..at + length) };
                let raw = &mut self.scratch.raw[row * channels + to..][..length];
                if save { state.copy_from_slice(raw) } else { raw.copy_from_slice(state) }
            }
        }
    }

    /// Convolution and silu of a chunk; leaves the rows before the next chunk as history.
    #[inline(always)]
    fn convolve<S: Simd>(&mut self, s: S, first: usize, count: usize) {
        let (channels, taps_width) = (self.dims.channels(), self.dims.conv_width);
        let DeltaScratch { raw, rows, .. } = &mut *self.scratch;
        for token in 0..count {
            let projected = &self.projected[(first + token) * self.width..];
            for (from, to, length) in self.dims.parts(self.head) {
                raw[(taps_width - 1 + token) * channels + to..][..length].copy_from_slice(&projected[from..from + length]);
            }
        }
        let taps = &self.layer.taps[self.head * taps_width * channels..][..taps_width * channels];
        for token in 0..count {
            let raw = &raw[token * channels..][..taps_width * channels];
            let out = &mut rows[token * channels..][..channels];
            for at in (0..channels).step_by(S::LANES) {
                let left = channels - at;
                // SAFETY: `left` values follow `at` in every row of the two slices of `taps_width * channels` and of `out`.
                unsafe {
                    let mut sum = s.zero();
                    for tap in 0..taps_width {
                        let place = tap * channels + at;
                        sum = s.mul_add(s.load_some(raw.as_ptr().add(place), left), s.load_some(taps.as_ptr().add(place), left), sum);
                    }
                    s.store_some(out.as_mut_ptr().add(at), left, s.silu(sum));
                }
            }
        }
        raw.copy_within(count * channels..(count + taps_width - 1) * channels, 0);
    }

    /// l2 norm of queries and keys, the scale of queries, and `k·q`.
    #[inline(always)]
    fn normalise<S: Simd>(&mut self, s: S, count: usize) {
        let dim = self.dims.dim_k;
        for token in 0..count {
            let row = &mut self.scratch.rows[token * self.dims.channels()..][..2 * dim];
            let (query, key) = row.split_at_mut(dim);
            let query_scale = 1.0 / (sum_of_squares(s, query) + L2_EPS).sqrt() / (dim as f32).sqrt();
            scale(s, query, query_scale);
            let key_scale = 1.0 / (sum_of_squares(s, key) + L2_EPS).sqrt();
            scale(s, key, key_scale);
            let mut overlap = s.zero();
            for at in (0..dim).step_by(S::LANES) {
                // SAFETY: `dim - at` values follow `at` in both.
                unsafe {
                    let (q, k) = (s.load_some(query.as_ptr().add(at), dim - at), s.load_some(key.as_ptr().add(at), dim - at));
                    overlap = s.mul_add(q, k, overlap);
                }
            }
            self.scratch.overlap[token] = s.sum(overlap);
        }
    }

    /// Decay and write strength of one value head.
    #[inline(always)]
    fn gates(&mut self, first: usize, count: usize, member: usize) {
        let dims = &self.dims;
        let head = self.head * dims.group() + member;
        let b_at = dims.conv_dim() + dims.heads_v * dims.dim_v + head;
        for token in 0..count {
            let row = &self.projected[(first + token) * self.width..][..self.width];
            let (b, a) = (row[b_at], row[b_at + dims.heads_v]);
            self.scratch.beta[token] = 1.0 / (1.0 + (-b).exp());
            self.scratch.decay[token] = (-self.layer.decay_rate[head] * softplus(a + self.layer.dt_bias[head])).exp();
        }
    }

    /// Advances one value head's memory over the chunk.
    #[inline(always)]
    fn update<S: Simd>(&mut self, s: S, count: usize, member: usize) {
        let dims = &self.dims;
        let head_memory = self.memory.len() / dims.group();
        let memory = &mut self.memory[member * head_memory..(member + 1) * head_memory];
        let DeltaScratch { rows, decay, beta, overlap, .. } = &mut *self.scratch;
        let mut tokens = Tokens {
            rows,
            stride: dims.channels(),
            dim_k: dims.dim_k,
            values_at: 2 * dims.dim_k + member * dims.dim_v,
            dim_v: dims.dim_v,
            decay: &decay[..count],
            beta: &beta[..count],
            overlap: &overlap[..count],
        };
        for (block, memory) in memory.chunks_exact_mut(dims.dim_k * BLOCK).enumerate() {
            if count == 1 { step(s, memory, &mut tokens, block) } else { scan(s, memory, &mut tokens, block) }
        }
    }

    /// Norm of the reads, gain, gate: into the result.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, first: usize, count: usize, member: usize) {
        let dims = &self.dims;
        let (head, dim) = (self.head * dims.group() + member, dims.dim_v);
        for token in 0..count {
            let read = &self.scratch.rows[token * dims.channels() + 2 * dims.dim_k + member * dim..][..dim];
            let z = &self.projected[(first + token) * self.width + dims.conv_dim() + head * dim..][..dim];
            let at = self.mixed_at + (first + token) * self.mixed_width + head * dim;
            // SAFETY: these columns belong to this unit alone.
            let out = unsafe { self.mixed.slice(at..at + dim) };
            let factor = s.splat(1.0 / (sum_of_squares(s, read) / dim as f32 + dims.eps).sqrt());
            for at in (0..dim).step_by(S::LANES) {
                let left = dim - at;
                // SAFETY: `left` values follow `at` in all four slices of `dim` values.
                unsafe {
                    let normed = s.mul(s.load_some(read.as_ptr().add(at), left), factor);
                    let gained = s.mul(normed, s.load_some(self.layer.norm[..dim].as_ptr().add(at), left));
                    let gate = s.silu(s.load_some(z.as_ptr().add(at), left));
                    s.store_some(out.as_mut_ptr().add(at), left, s.mul(gained, gate));
                }
            }
        }
    }
}

/// `ln(1 + e^x)` without overflow.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// A chunk's operands for one value head.
struct Tokens<'a> {
    /// `[tokens, stride]`: query, key, ..., the head's values at `values_at`, which its reads replace.
    rows: &'a mut [f32],
    stride: usize,
    dim_k: usize,
    values_at: usize,
    dim_v: usize,
    decay: &'a [f32],
    beta: &'a [f32],
    overlap: &'a [f32],
}

impl Tokens<'_> {
    fn query_key(&self, token: usize) -> (&[f32], &[f32]) {
        self.rows[token * self.stride..][..2 * self.dim_k].split_at(self.dim_k)
    }

    /// From `Sᵀk` and `Sᵀq` of the old state: replaces the block's values by its reads and returns `d`.
    #[inline(always)]
    fn settle<S: Simd>(
        &mut self,
        s: S,
        (token, block): (usize, usize),
        recalled: &[S::V; VECTORS_MAX],
        read: &[S::V; VECTORS_MAX],
    ) -> [S::V; VECTORS_MAX] {
        let (decay, beta, overlap) = (s.splat(self.decay[token]), s.splat(self.beta[token]), s.splat(self.overlap[token]));
        let values = &mut self.rows[token * self.stride + self.values_at..][..self.dim_v];
        let mut delta = [s.zero(); VECTORS_MAX];
        for j in 0..BLOCK / S::LANES {
            let at = block * BLOCK + j * S::LANES;
            if at >= self.dim_v {
                break; // padding: its columns stay zero
            }
            // SAFETY: `dim_v - at` values follow `at`.
            unsafe {
                let place = values.as_mut_ptr().add(at);
                let value = s.load_some(place, self.dim_v - at);
                delta[j] = s.mul(s.neg_mul_add(decay, recalled[j], value), beta);
                s.store_some(place, self.dim_v - at, s.mul_add(overlap, delta[j], s.mul(decay, read[j])));
            }
        }
        delta
    }
}

/// One token: reads the block, then writes it while it is in the first cache. `memory [dim_k, BLOCK]`.
#[inline(always)]
fn step<S: Simd>(s: S, memory: &mut [f32], tokens: &mut Tokens<'_>, block: usize) {
    let vectors = BLOCK / S::LANES;
    let (mut recalled, mut read) = ([s.zero(); VECTORS_MAX], [s.zero(); VECTORS_MAX]);
    let (query, key) = tokens.query_key(0);
    for ((row, &q), &k) in memory.chunks_exact(BLOCK).zip(query).zip(key) {
        let (q, k) = (s.splat(q), s.splat(k));
        // The next block, one block's length ahead: two cache lines a row.
        let ahead = row.as_ptr().wrapping_add(memory.len());
        s.prefetch(ahead);
        s.prefetch(ahead.wrapping_add(BLOCK / 2));
        for j in 0..vectors {
            // SAFETY: a row has BLOCK values.
            let x = unsafe { s.load(row.as_ptr().add(j * S::LANES)) };
            recalled[j] = s.mul_add(x, k, recalled[j]);
            read[j] = s.mul_add(x, q, read[j]);
        }
    }
    let delta = tokens.settle(s, (0, block), &recalled, &read);
    write(s, memory, tokens, 0, &delta);
}

/// `S = decay * S + k dᵀ` for one block.
#[inline(always)]
fn write<S: Simd>(s: S, memory: &mut [f32], tokens: &Tokens<'_>, token: usize, delta: &[S::V; VECTORS_MAX]) {
    let decay = s.splat(tokens.decay[token]);
    for (row, &k) in memory.chunks_exact_mut(BLOCK).zip(tokens.query_key(token).1) {
        let k = s.splat(k);
        for (j, &delta) in delta[..BLOCK / S::LANES].iter().enumerate() {
            // SAFETY: a row has BLOCK values.
            unsafe {
                let place = row.as_mut_ptr().add(j * S::LANES);
                s.store(place, s.mul_add(k, delta, s.mul(decay, s.load(place))));
            }
        }
    }
}

/// Several tokens: the write of each token is folded into the pass that reads for the next one.
#[inline(always)]
fn scan<S: Simd>(s: S, memory: &mut [f32], tokens: &mut Tokens<'_>, block: usize) {
    let vectors = BLOCK / S::LANES;
    let count = tokens.decay.len();
    let mut delta = [s.zero(); VECTORS_MAX];
    let mut before = 0; // the token whose write is pending; before the first one, delta 0 and decay 1 write nothing
    let mut decay = s.splat(1.0);
    for token in 0..count {
        let (mut recalled, mut read) = ([s.zero(); VECTORS_MAX], [s.zero(); VECTORS_MAX]);
        let (query, key) = tokens.query_key(token);
        let pending = tokens.query_key(before).1;
        for (((row, &q), &k), &p) in memory.chunks_exact_mut(BLOCK).zip(query).zip(key).zip(pending) {
            let (q, k, p) = (s.splat(q), s.splat(k), s.splat(p));
            for j in 0..vectors {
                // SAFETY: a row has BLOCK values.
                unsafe {
                    let place = row.as_mut_ptr().add(j * S::LANES);
                    let x = s.mul_add(p, delta[j], s.mul(decay, s.load(place)));
                    s.store(place, x);
                    recalled[j] = s.mul_add(x, k, recalled[j]);
                    read[j] = s.mul_add(x, q, read[j]);
                }
            }
        }
        delta = tokens.settle(s, (token, block), &recalled, &read);
        decay = s.splat(tokens.decay[token]);
        before = token;
    }
    write(s, memory, tokens, count - 1, &delta);
}
