//! The weights, by name and shape: what the checkpoint's tensors mean.
//!
//! Matrices stay as the file has them (4- or 8-bit groups, or plain floats), memory-mapped; vectors are
//! small and become f32. [`Weights::load`] checks every tensor, once, against the configuration.

use crate::checkpoint::{Bytes, Dtype};

/// A weight matrix `[rows, cols]`: `rows` outputs, `cols` inputs, row-major.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: MatrixData,
}

/// How the values are stored.
#[derive(Clone, Debug)]
pub enum MatrixData {
    /// `w = scale * code + bias` per group of consecutive inputs; scales may be negative.
    /// `codes`: u32 words, low bits first, `[rows, cols * bits / 32]`; `scales`, `biases`: `[rows, cols / group]`.
    Affine { bits: usize, group: usize, codes: Bytes, scales: Bytes, biases: Bytes, scale_dtype: Dtype },
    /// Plain floats, `[rows, cols]`.
    Plain { dtype: Dtype, values: Bytes },
}

/// One projection of every expert: `[experts, rows, cols]`. Expert `e` is rows
/// `first_row + e * stride .. + rows` of `data`: the raw checkpoint fuses gate and up in one tensor.
#[derive(Clone, Debug)]
pub struct Experts {
    pub experts: usize,
    pub rows: usize,
    pub stride: usize,
    pub first_row: usize,
    pub data: Matrix,
}

/// A gated feed-forward network's three projections.
#[derive(Clone, Debug)]
pub struct SharedExpert {
    /// `[shared_width, hidden]`
    pub gate: Matrix,
    /// `[shared_width, hidden]`
    pub up: Matrix,
    /// `[hidden, shared_width]`
    pub down: Matrix,
    /// `[1, hidden]`: the shared expert's own gate.
    pub route: Matrix,
}

/// A Gated DeltaNet mixer.
#[derive(Clone, Debug)]
pub struct DeltaWeights {
    /// `[conv_dim, hidden]`, outputs laid out flat `q | k | v`.
    pub qkv: Matrix,
    /// `[heads_v * dim_v, hidden]`
    pub z: Matrix,
    /// `[heads_v, hidden]`: write strength before the sigmoid.
    pub b: Matrix,
    /// `[heads_v, hidden]`: decay before `softplus(a + dt_bias)`.
    pub a: Matrix,
    /// `[conv_dim, conv_width]`; the last tap multiplies the current row.
    pub conv: Vec<f32>,
    /// `exp(A_log)`, `[heads_v]`
    pub decay_rate: Vec<f32>,
    /// `[heads_v]`
    pub dt_bias: Vec<f32>,
    /// Gain of the gated norm, `[dim_v]`, used as it is.
    pub norm: Vec<f32>,
    /// `[hidden, heads_v * dim_v]`
    pub out: Matrix,
}

/// A gated attention mixer.
#[derive(Clone, Debug)]
pub struct AttentionWeights {
    /// `[heads_q * 2 * head_dim, hidden]`: per head, query then gate.
    pub q: Matrix,
    /// `[heads_kv * head_dim, hidden]`
    pub k: Matrix,
    /// `[heads_kv * head_dim, hidden]`
    pub v: Matrix,
    /// Gain, one already added, `[head_dim]`.
    pub q_norm: Vec<f32>,
    pub k_norm: Vec<f32>,
    /// `[hidden, heads_q * head_dim]`
    pub out: Matrix,
}

#[derive(Clone, Debug)]
pub enum Mixer {
    Delta(DeltaWeights),
    Attention(AttentionWeights),
}

#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Gain before the mixer, one already added, `[hidden]`.
    pub mixer_norm: Vec<f32>,
    pub mixer: Mixer,
    /// Gain before the experts, one already added, `[hidden]`.
    pub experts_norm: Vec<f32>,
    /// `[experts, hidden]`
    pub router: Matrix,
    /// `[experts, expert_width, hidden]`
    pub gate: Experts,
    /// `[experts, expert_width, hidden]`
    pub up: Experts,
    /// `[experts, hidden, expert_width]`
    pub down: Experts,
    pub shared: SharedExpert,
}

#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab, hidden]`
    pub embedding: Matrix,
    pub layers: Vec<LayerWeights>,
    /// Gain of the final norm, one already added, `[hidden]`.
    pub norm: Vec<f32>,
    /// `[vocab, hidden]`
    pub head: Matrix,
    /// Tensors of the checkpoint that no step uses, by name: vision, multi-token prediction.
    pub ignored: Vec<String>,
}
