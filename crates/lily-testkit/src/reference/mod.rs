//! Every step of the model in f64, written from the mathematics alone, slowly and plainly.
//!
//! All steps take and return plain row-major slices: `x [tokens, hidden]` means that `hidden` runs fastest. Steps
//! panic on a length that contradicts the dimensions: a caller that passes one has a bug.
//!
//! Reading order: [`norm`], [`mod@linear`] (matrices and affine dequantisation), [`mod@rope`], [`mod@attention`], [`delta`],
//! [`mod@moe`] hold the steps; [`mod@layer`] chains them into one decoder layer and [`model`] into logits. [`dims`] names
//! the dimensions as config.json gives them.

pub mod attention;
pub mod delta;
pub mod dims;
pub mod layer;
pub mod linear;
pub mod model;
pub mod moe;
pub mod norm;
pub mod rope;
pub mod trace;

pub use attention::{KvCache, attention, gate_output, split_query_gate};
pub use delta::{DeltaState, DeltaTokens, beta, causal_conv, decay, delta_update, split_qkv};
pub use dims::{AttentionDims, DeltaDims, MixerKind, ModelDims, MoeDims};
pub use layer::{AttentionWeights, DeltaWeights, LayerState, LayerWeights, MixerWeights, Pass, attention_mixer, delta_mixer, layer};
pub use linear::{Affine, Matrix, dequantise, linear};
pub use model::{GreedyStep, Model, State, greedy_step, negative_log_likelihood};
pub use moe::{Expert, MoeWeights, Route, experts_output, moe, route, shared_output, swiglu};
pub use norm::{gated_rms_norm, l2_norm, rms_norm};
pub use rope::rope;
pub use trace::Trace;

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, without overflow for large `x` and without cancellation for very negative `x`.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Element-wise `a + b`.
pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    assert_eq!(a.len(), b.len(), "add: lengths differ");
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
