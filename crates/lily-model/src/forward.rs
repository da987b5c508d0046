//! The forward pass: Qwen3.6's layers, top to bottom, once for every device.

use crate::config::{LayerKind, ModelConfig};
use crate::steps::{Activations, NormSite, Steps};

/// Runs the staged batch of `rows` rows through every layer and the head.
pub fn forward<S: Steps>(config: &ModelConfig, steps: &mut S, buffers: &mut Activations<S::Buffer>, rows: usize) {
    let Activations { residual, normed, projected, mixed, routes, expert_hidden } = buffers;
    steps.embed(rows, residual);
    for (layer, kind) in config.layers.iter().enumerate() {
        steps.norm(NormSite::Mixer(layer), rows, residual, normed);
        match kind {
            LayerKind::Delta => {
                steps.delta_project(layer, rows, normed, projected); // [rows, qkv | z | b | a]
                steps.delta_update(layer, rows, projected, mixed); // [rows, heads_v * dim_v]
            }
            LayerKind::Attention => {
                steps.attn_project(layer, rows, normed, projected); // [rows, q+gate | k | v]
                steps.attn_prepare(layer, rows, projected);
                steps.attn_mix(layer, rows, projected, mixed); // [rows, heads_q * head_dim]
            }
        }
        steps.mixer_output(layer, rows, mixed, residual);

        steps.norm(NormSite::Experts(layer), rows, residual, normed);
        steps.moe_route(layer, rows, normed, routes);
        steps.moe_gate_up(layer, rows, normed, routes, expert_hidden);
        steps.moe_down(layer, rows, routes, expert_hidden, residual);
    }
    steps.head(rows, residual);
}
