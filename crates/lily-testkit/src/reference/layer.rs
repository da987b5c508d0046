//! One decoder layer: `h = x + mixer(rms(x))`, `y = h + moe(rms(h))`.

use super::attention::{KvCache, attention, gate_output, split_query_gate};
use super::delta::{DeltaState, DeltaTokens, beta, causal_conv, decay, delta_update, split_qkv};
use super::dims::{MixerKind, ModelDims};
use super::linear::Matrix;
use super::moe::{MoeWeights, experts_output, route, shared_output};
use super::norm::{gated_rms_norm, rms_norm};
use super::rope::rope;
use super::trace::Trace;

/// Weights of gated attention.
#[derive(Clone, Debug)]
pub struct AttentionWeights {
    /// `[heads_q * 2 * head_dim, hidden]`, query and gate interleaved per head.
    pub q_proj: Matrix,
    /// `[heads_kv * head_dim, hidden]`.
    pub k_proj: Matrix,
    /// `[heads_kv * head_dim, hidden]`.
    pub v_proj: Matrix,
    /// `[hidden, heads_q * head_dim]`.
    pub o_proj: Matrix,
    /// Whole gain, `[head_dim]`.
    pub q_norm: Vec<f64>,
    /// Whole gain, `[head_dim]`.
    pub k_norm: Vec<f64>,
}

/// Weights of Gated DeltaNet.
#[derive(Clone, Debug)]
pub struct DeltaWeights {
    /// `[channels, hidden]`: all queries, all keys, all values.
    pub in_proj_qkv: Matrix,
    /// `[heads_v * dim_v, hidden]`.
    pub in_proj_z: Matrix,
    /// `[heads_v, hidden]`, drives the decay.
    pub in_proj_a: Matrix,
    /// `[heads_v, hidden]`, drives the write strength.
    pub in_proj_b: Matrix,
    /// `[channels, conv_width]`, the last tap for the current row.
    pub conv: Vec<f64>,
    /// `[heads_v]`.
    pub a_log: Vec<f64>,
    /// `[heads_v]`.
    pub dt_bias: Vec<f64>,
    /// Plain gain, `[dim_v]`.
    pub norm: Vec<f64>,
    /// `[hidden, heads_v * dim_v]`.
    pub out_proj: Matrix,
}

/// Weights of the mixer of a layer.
#[derive(Clone, Debug)]
pub enum MixerWeights {
    /// Of a DeltaNet layer.
    Delta(Box<DeltaWeights>),
    /// Of an attention layer.
    Attention(Box<AttentionWeights>),
}

/// Weights of a whole layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Whole gain before the mixer, `[hidden]`.
    pub input_norm: Vec<f64>,
    /// The mixer.
    pub mixer: MixerWeights,
    /// Whole gain before the experts, `[hidden]`.
    pub post_norm: Vec<f64>,
    /// Router, experts, shared expert.
    pub moe: MoeWeights,
}

/// What one sequence carries through one layer.
#[derive(Clone, Debug)]
pub enum LayerState {
    /// Of a DeltaNet layer.
    Delta(DeltaState),
    /// Of an attention layer.
    Attention(KvCache),
}

impl LayerState {
    /// The state before the first token.
    pub fn new(kind: MixerKind, dims: &ModelDims) -> Self {
        match kind {
            MixerKind::Delta => Self::Delta(DeltaState::new(&dims.delta)),
            MixerKind::Attention => Self::Attention(KvCache::default()),
        }
    }
}

/// What every step of one forward pass shares.
#[derive(Debug)]
pub struct Pass<'a> {
    /// Dimensions of the model.
    pub dims: &'a ModelDims,
    /// Position of the first of the tokens in their sequence.
    pub start: usize,
    /// Receives the intermediate tensors.
    pub trace: &'a mut Trace,
}

/// Gated attention of the next tokens of a sequence: `x [tokens, hidden]`, normalised.
pub fn attention_mixer(x: &[f64], weights: &AttentionWeights, cache: &mut KvCache, pass: &mut Pass) -> Vec<f64> {
    let (dims, a) = (pass.dims, &pass.dims.attention);
    let positions: Vec<usize> = (pass.start..pass.start + x.len() / dims.hidden).collect();
    let rotate = |heads: &[f64]| rope(heads, &positions, a.head_dim, a.rotary_dim, a.rope_theta);
    let (query, gate) = split_query_gate(&weights.q_proj.apply(x), a.head_dim);
    let query = rotate(&rms_norm(&query, &weights.q_norm, dims.eps));
    let key = rotate(&rms_norm(&weights.k_proj.apply(x), &weights.k_norm, dims.eps));
    let value = weights.v_proj.apply(x);
    cache.keys.extend_from_slice(&key);
    cache.values.extend_from_slice(&value);
    let mixed = attention(&query, cache, a);
    let gated = gate_output(&mixed, &gate);
    for (step, values) in [("query", &query), ("key", &key), ("value", &value), ("attention", &mixed), ("gated", &gated)] {
        pass.trace.record(step, values);
    }
    weights.o_proj.apply(&gated)
}

/// Gated DeltaNet of the next tokens of a sequence: `x [tokens, hidden]`, normalised.
pub fn delta_mixer(x: &[f64], weights: &DeltaWeights, state: &mut DeltaState, pass: &mut Pass) -> Vec<f64> {
    let dims = pass.dims;
    let qkv = weights.in_proj_qkv.apply(x);
    let convolved = causal_conv(&qkv, &weights.conv, &mut state.conv, dims.delta.conv_width);
    let (query, key, value) = split_qkv(&convolved, &dims.delta);
    let tokens = DeltaTokens {
        query,
        key,
        value,
        decay: decay(&weights.in_proj_a.apply(x), &weights.a_log, &weights.dt_bias),
        beta: beta(&weights.in_proj_b.apply(x)),
    };
    let reads = delta_update(&tokens, &mut state.memory, &dims.delta);
    let gated = gated_rms_norm(&reads, &weights.in_proj_z.apply(x), &weights.norm, dims.eps);
    pass.trace.record("qkv", &qkv);
    pass.trace.record("convolved", &convolved);
    pass.trace.record("decay", &tokens.decay);
    pass.trace.record("beta", &tokens.beta);
    pass.trace.record("delta", &reads);
    pass.trace.record("gated", &gated);
    weights.out_proj.apply(&gated)
}

/// The whole layer for the next tokens of a sequence: `x [tokens, hidden]`.
pub fn layer(x: &[f64], weights: &LayerWeights, state: &mut LayerState, pass: &mut Pass) -> Vec<f64> {
    let normed = rms_norm(x, &weights.input_norm, pass.dims.eps);
    pass.trace.record("input_norm", &normed);
    let mixed = match (&weights.mixer, state) {
        (MixerWeights::Delta(w), LayerState::Delta(s)) => delta_mixer(&normed, w, s, pass),
        (MixerWeights::Attention(w), LayerState::Attention(s)) => attention_mixer(&normed, w, s, pass),
        _ => panic!("layer: the state is of another kind than the mixer"),
    };
    let residual = super::add(x, &mixed);
    pass.trace.record("mixer", &mixed);
    pass.trace.record("residual", &residual);
    let output = super::add(&residual, &traced_moe(&residual, weights, pass));
    pass.trace.record("output", &output);
    output
}

/// The same sum as [`super::moe::moe`], with its terms recorded.
fn traced_moe(residual: &[f64], weights: &LayerWeights, pass: &mut Pass) -> Vec<f64> {
    let dims = pass.dims;
    let normed = rms_norm(residual, &weights.post_norm, dims.eps);
    let logits = weights.moe.router.apply(&normed);
    let experts = experts_output(&normed, &route(&logits, &dims.moe), &weights.moe.experts);
    let shared = shared_output(&normed, &weights.moe);
    let sum = super::add(&experts, &shared);
    for (step, values) in [("post_norm", &normed), ("router", &logits), ("experts", &experts), ("shared", &shared), ("moe", &sum)] {
        pass.trace.record(step, values);
    }
    sum
}
