//! Gated causal attention with grouped key/value heads.

use super::dims::AttentionDims;
use super::linear::dot;
use super::sigmoid;

/// The keys and values of one sequence in one layer, oldest first.
#[derive(Clone, Debug, Default)]
pub struct KvCache {
    /// `[context, heads_kv, head_dim]`, normalised and rotated.
    pub keys: Vec<f64>,
    /// `[context, heads_kv, head_dim]`.
    pub values: Vec<f64>,
}

/// Splits the output of `q_proj`, `[tokens, heads_q, 2 * head_dim]`, into query and gate, each `[tokens, heads_q, head_dim]`.
///
/// The two interleave per head (query of head 0, gate of head 0, query of head 1, ...), not all queries then all gates.
pub fn split_query_gate(projected: &[f64], head_dim: usize) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(projected.len() % (2 * head_dim), 0, "split_query_gate: not rows of {}", 2 * head_dim);
    let heads = projected.chunks_exact(2 * head_dim);
    let query = heads.clone().flat_map(|head| head[..head_dim].to_vec()).collect();
    let gate = heads.flat_map(|head| head[head_dim..].to_vec()).collect();
    (query, gate)
}

/// Causal attention of the newest rows over the whole context, before the gate.
///
/// `query [tokens, heads_q, head_dim]` belongs to the last `tokens` rows of `cache`, which already holds their keys and
/// values: row `t` sees `context - tokens + t + 1` keys. Query head `h` reads key/value head `h / (heads_q / heads_kv)`.
/// Result `[tokens, heads_q, head_dim]`.
pub fn attention(query: &[f64], cache: &KvCache, dims: &AttentionDims) -> Vec<f64> {
    let (dim, kv_row) = (dims.head_dim, dims.heads_kv * dims.head_dim);
    let tokens = query.len() / (dims.heads_q * dim);
    let context = cache.keys.len() / kv_row;
    assert_eq!(query.len(), tokens * dims.heads_q * dim, "attention: query is not [tokens, heads_q, head_dim]");
    assert_eq!(cache.keys.len(), cache.values.len(), "attention: keys and values differ in length");
    assert!(context >= tokens, "attention: {context} cached rows for {tokens} queries");
    let scale = 1.0 / (dim as f64).sqrt();
    let mut out = vec![0.0; query.len()];
    for (index, (head_query, head_out)) in query.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
        let (token, head) = (index / dims.heads_q, index % dims.heads_q);
        let kv_at = (head / (dims.heads_q / dims.heads_kv)) * dim;
        let visible = context - tokens + token + 1;
        let at = |position: usize| position * kv_row + kv_at..position * kv_row + kv_at + dim;
        let scores: Vec<f64> = (0..visible).map(|p| dot(head_query, &cache.keys[at(p)]) * scale).collect();
        for (position, weight) in softmax(&scores).into_iter().enumerate() {
            for (o, v) in head_out.iter_mut().zip(&cache.values[at(position)]) {
                *o += weight * v;
            }
        }
    }
    out
}

/// `x * sigmoid(gate)`, element-wise.
pub fn gate_output(x: &[f64], gate: &[f64]) -> Vec<f64> {
    assert_eq!(x.len(), gate.len(), "gate_output: lengths differ");
    x.iter().zip(gate).map(|(x, &gate)| x * sigmoid(gate)).collect()
}

/// Softmax of one row, shifted by its maximum.
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / sum).collect()
}
