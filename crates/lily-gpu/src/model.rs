//! The weights as the device holds them.

use lily_model::{LayerWeights, Mixer, ModelError, Weights};

use crate::backend::Backend;
use crate::commands::View;
use crate::entries::check_formats;
use crate::matrix::{GpuExperts, GpuMatrix};

/// All weights.
pub(crate) struct Model {
    pub embedding: GpuMatrix,
    pub layers: Vec<Layer>,
    /// Gain of the final norm.
    pub norm: View,
    pub head: GpuMatrix,
}

pub(crate) struct Layer {
    pub mixer_norm: View,
    pub mixer: LayerMixer,
    pub experts_norm: View,
    pub router: GpuMatrix,
    /// `[1, hidden]`: the shared expert's gate.
    pub shared_route: GpuMatrix,
    pub gate: GpuExperts,
    pub up: GpuExperts,
    pub down: GpuExperts,
    pub shared_gate: GpuMatrix,
    pub shared_up: GpuMatrix,
    pub shared_down: GpuMatrix,
}

#[derive(Clone, Copy)]
pub(crate) enum LayerMixer {
    Delta(DeltaMixer),
    Attention(AttentionMixer),
}

#[derive(Clone, Copy)]
pub(crate) struct DeltaMixer {
    /// Index among the DeltaNet layers.
    pub index: usize,
    /// `qkv | z | b | a`, side by side in `projected`.
    pub projections: [GpuMatrix; 4],
    pub out: GpuMatrix,
    pub conv: View,
    pub decay_rate: View,
    pub dt_bias: View,
    pub norm: View,
}

#[derive(Clone, Copy)]
pub(crate) struct AttentionMixer {
    /// Index among the attention layers.
    pub index: usize,
    /// `q and gate | k | v`, side by side in `projected`.
    pub projections: [GpuMatrix; 3],
    pub out: GpuMatrix,
    pub q_norm: View,
    pub k_norm: View,
}

impl Model {
    pub fn new(backend: &mut impl Backend, weights: &Weights) -> Result<Self, ModelError> {
        let mut loader = Loader { backend, counts: [0, 0] };
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            layers.push(loader.layer(layer)?);
        }
        let model = Model {
            embedding: loader.matrix(&weights.embedding, "embedding")?,
            layers,
            norm: loader.vector(&weights.norm, "final norm")?,
            head: loader.matrix(&weights.head, "head")?,
        };
        check_formats(&model)?;
        Ok(model)
    }

    /// The DeltaNet mixer of a layer.
    pub fn delta(&self, layer: usize) -> DeltaMixer {
        match self.layers[layer].mixer {
            LayerMixer::Delta(mixer) => mixer,
            LayerMixer::Attention(_) => panic!("layer {layer} has attention, not DeltaNet"),
        }
    }

    /// The attention mixer of a layer.
    pub fn attention(&self, layer: usize) -> AttentionMixer {
        match self.layers[layer].mixer {
            LayerMixer::Attention(mixer) => mixer,
            LayerMixer::Delta(_) => panic!("layer {layer} has DeltaNet, not attention"),
        }
    }
}

impl LayerMixer {
    /// The output projection.
    pub fn out(&self) -> GpuMatrix {
        match self {
            LayerMixer::Delta(mixer) => mixer.out,
            LayerMixer::Attention(mixer) => mixer.out,
        }
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a mut B,
    /// DeltaNet and attention layers so far.
    counts: [usize; 2],
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, weights: &LayerWeights) -> Result<Layer, ModelError> {
        let mixer = match &weights.mixer {
            Mixer::Delta(delta) => LayerMixer::Delta(DeltaMixer {
                index: self.next(0),
                projections: [
                    self.matrix(&delta.qkv, "in_proj_qkv")?,
                    self.matrix(&delta.z, "in_proj_z")?,
                    self.matrix(&delta.b, "in_proj_b")?,
                    self.matrix(&delta.a, "in_proj_a")?,
                ],
                out: self.matrix(&delta.out, "out_proj")?,
                conv: self.vector(&delta.conv, "conv1d")?,
                decay_rate: self.vector(&delta.decay_rate, "A_log")?,
                dt_bias: self.vector(&delta.dt_bias, "dt_bias")?,
                norm: self.vector(&delta.norm, "gated norm")?,
            }),
            Mixer::Attention(attention) => LayerMixer::Attention(AttentionMixer {
                index: self.next(1),
                projections: [
                    self.matrix(&attention.q, "q_proj")?,
                    self.matrix(&attention.k, "k_proj")?,
                    self.matrix(&attention.v, "v_proj")?,
                ],
                out: self.matrix(&attention.out, "o_proj")?,
                q_norm: self.vector(&attention.q_norm, "q_norm")?,
                k_norm: self.vector(&attention.k_norm, "k_norm")?,
            }),
        };
        Ok(Layer {
            mixer_norm: self.vector(&weights.mixer_norm, "input_layernorm")?,
            mixer,
            experts_norm: self.vector(&weights.experts_norm, "post_attention_layernorm")?,
            router: self.matrix(&weights.router, "router")?,
            shared_route: self.matrix(&weights.shared.route, "shared_expert_gate")?,
            gate: GpuExperts::new(self.backend, &weights.gate, "experts' gate_proj")?,
            up: GpuExperts::new(self.backend, &weights.up, "experts' up_proj")?,
            down: GpuExperts::new(self.backend, &weights.down, "experts' down_proj")?,
            shared_gate: self.matrix(&weights.shared.gate, "shared gate_proj")?,
            shared_up: self.matrix(&weights.shared.up, "shared up_proj")?,
            shared_down: self.matrix(&weights.shared.down, "shared down_proj")?,
        })
    }

    fn next(&mut self, kind: usize) -> usize {
        self.counts[kind] += 1;
        self.counts[kind] - 1
    }

    fn matrix(&mut self, matrix: &lily_model::Matrix, what: &str) -> Result<GpuMatrix, ModelError> {
        GpuMatrix::new(self.backend, matrix, what)
    }

    /// A small vector, as f32.
    fn vector(&mut self, values: &[f32], what: &str) -> Result<View, ModelError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.backend.import(&lily_model::Bytes::owned(bytes), what)
    }
}
