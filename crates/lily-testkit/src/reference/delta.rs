//! Gated DeltaNet between its projections: causal convolution, decay and write strength, the state update.

use super::dims::DeltaDims;
use super::norm::l2_norm;
use super::{sigmoid, silu, softplus};

/// What one sequence carries from token to token in one DeltaNet layer.
#[derive(Clone, Debug)]
pub struct DeltaState {
    /// The last `conv_width - 1` rows of the projected qkv, `[conv_width - 1, channels]`, oldest first: raw, before
    /// convolution and silu. Zeros before the first token.
    pub conv: Vec<f64>,
    /// `[heads_v, dim_k, dim_v]`, zeros before the first token.
    pub memory: Vec<f64>,
}

impl DeltaState {
    /// The state before the first token.
    pub fn new(dims: &DeltaDims) -> Self {
        Self { conv: vec![0.0; (dims.conv_width - 1) * dims.channels()], memory: vec![0.0; dims.heads_v * dims.dim_k * dims.dim_v] }
    }
}

/// Causal depthwise convolution without bias, then silu; advances `state` (`[width - 1, channels]`, raw rows).
///
/// `x [tokens, channels]`, `weights [channels, width]`, where `weights[c, width - 1]` multiplies the current row.
pub fn causal_conv(x: &[f64], weights: &[f64], state: &mut Vec<f64>, width: usize) -> Vec<f64> {
    let channels = weights.len() / width;
    assert_eq!(x.len() % channels, 0, "causal_conv: {} values are not rows of {channels}", x.len());
    assert_eq!(state.len(), (width - 1) * channels, "causal_conv: state is not [{}, {channels}]", width - 1);
    let rows = [state.as_slice(), x].concat(); // [width - 1 + tokens, channels]
    let mut out = Vec::with_capacity(x.len());
    for token in 0..x.len() / channels {
        for channel in 0..channels {
            let taps = &weights[channel * width..(channel + 1) * width];
            let sum: f64 = taps.iter().enumerate().map(|(j, w)| w * rows[(token + j) * channels + channel]).sum();
            out.push(silu(sum));
        }
    }
    *state = rows[x.len()..].to_vec();
    out
}

/// The factor by which each head forgets: `exp(-exp(a_log) * softplus(a + dt_bias))`, `a [tokens, heads_v]`.
pub fn decay(a: &[f64], a_log: &[f64], dt_bias: &[f64]) -> Vec<f64> {
    let heads = a_log.len();
    assert_eq!(a.len() % heads, 0, "decay: {} values are not rows of {heads}", a.len());
    a.iter().enumerate().map(|(i, a)| (-a_log[i % heads].exp() * softplus(a + dt_bias[i % heads])).exp()).collect()
}

/// The write strength of each head: `sigmoid(b)`, `b [tokens, heads_v]`.
pub fn beta(b: &[f64]) -> Vec<f64> {
    b.iter().map(|&b| sigmoid(b)).collect()
}

/// The operands of [`delta_update`] for some consecutive tokens of one sequence.
#[derive(Clone, Debug)]
pub struct DeltaTokens {
    /// `[tokens, heads_k, dim_k]`, l2-normalised and scaled by `dim_k^-0.5`.
    pub query: Vec<f64>,
    /// `[tokens, heads_k, dim_k]`, l2-normalised.
    pub key: Vec<f64>,
    /// `[tokens, heads_v, dim_v]`.
    pub value: Vec<f64>,
    /// `[tokens, heads_v]`, see [`decay`].
    pub decay: Vec<f64>,
    /// `[tokens, heads_v]`, see [`beta`].
    pub beta: Vec<f64>,
}

/// Splits convolved rows `[tokens, channels]`, laid out flat as all queries, all keys, all values, and normalises
/// queries and keys per head. Returns query, key and value as [`DeltaTokens`] wants them.
pub fn split_qkv(convolved: &[f64], dims: &DeltaDims) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let keys = dims.heads_k * dims.dim_k;
    assert_eq!(convolved.len() % dims.channels(), 0, "split_qkv: not rows of {}", dims.channels());
    let rows = convolved.chunks_exact(dims.channels());
    let query: Vec<f64> = rows.clone().flat_map(|row| row[..keys].to_vec()).collect();
    let key: Vec<f64> = rows.clone().flat_map(|row| row[keys..2 * keys].to_vec()).collect();
    let value = rows.flat_map(|row| row[2 * keys..].to_vec()).collect();
    let scale = 1.0 / (dims.dim_k as f64).sqrt();
    let query = l2_norm(&query, dims.dim_k).into_iter().map(|q| q * scale).collect();
    (query, l2_norm(&key, dims.dim_k), value)
}

/// Advances `memory [heads_v, dim_k, dim_v]` token by token and returns the reads, `[tokens, heads_v, dim_v]`.
///
/// Per value head, with its key head `head / (heads_v / heads_k)`: `S *= decay; d = (v - Sᵀk) * beta; S += k dᵀ; out = Sᵀq`.
pub fn delta_update(tokens: &DeltaTokens, memory: &mut [f64], dims: &DeltaDims) -> Vec<f64> {
    let (dim_k, dim_v) = (dims.dim_k, dims.dim_v);
    let count = tokens.decay.len() / dims.heads_v;
    assert_eq!(tokens.query.len(), count * dims.heads_k * dim_k, "delta_update: query length");
    assert_eq!(tokens.key.len(), tokens.query.len(), "delta_update: key length");
    assert_eq!(tokens.value.len(), count * dims.heads_v * dim_v, "delta_update: value length");
    assert_eq!(memory.len(), dims.heads_v * dim_k * dim_v, "delta_update: memory length");
    let mut out = Vec::with_capacity(tokens.value.len());
    for index in 0..count * dims.heads_v {
        let (token, head) = (index / dims.heads_v, index % dims.heads_v);
        let key_at = (token * dims.heads_k + head / (dims.heads_v / dims.heads_k)) * dim_k;
        let query = &tokens.query[key_at..key_at + dim_k];
        let key = &tokens.key[key_at..key_at + dim_k];
        let value = &tokens.value[index * dim_v..(index + 1) * dim_v];
        let memory = &mut memory[head * dim_k * dim_v..(head + 1) * dim_k * dim_v];
        memory.iter_mut().for_each(|s| *s *= tokens.decay[index]);
        let recalled = read(memory, key, dim_v);
        let delta: Vec<f64> = value.iter().zip(recalled).map(|(v, r)| (v - r) * tokens.beta[index]).collect();
        for (row, k) in memory.chunks_exact_mut(dim_v).zip(key) {
            row.iter_mut().zip(&delta).for_each(|(s, d)| *s += k * d);
        }
        out.extend(read(memory, query, dim_v));
    }
    out
}

/// `Sᵀx` for one head: `memory [dim_k, dim_v]`, `x [dim_k]`.
fn read(memory: &[f64], x: &[f64], dim_v: usize) -> Vec<f64> {
    let mut out = vec![0.0; dim_v];
    for (row, x) in memory.chunks_exact(dim_v).zip(x) {
        out.iter_mut().zip(row).for_each(|(o, s)| *o += x * s);
    }
    out
}
