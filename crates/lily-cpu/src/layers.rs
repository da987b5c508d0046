//! The weights as this device keeps them: matrices as views of the mapped file, small vectors as f32.

use lily_model::{LayerWeights, Mixer, ModelConfig, ModelError, Weights};

use crate::delta::{DeltaDims, DeltaLayer};
use crate::matrix::{PackedExperts, PackedMatrix};

/// All weights.
pub(crate) struct Model {
    pub embedding: PackedMatrix,
    pub layers: Vec<Layer>,
    /// Gain of the final norm.
    pub norm: Vec<f32>,
    pub head: PackedMatrix,
}

pub(crate) struct Layer {
    pub mixer_norm: Vec<f32>,
    pub mixer: LayerMixer,
    pub experts_norm: Vec<f32>,
    pub router: PackedMatrix,
    /// `[1, hidden]`: the shared expert's gate.
    pub shared_route: PackedMatrix,
    pub gate: PackedExperts,
    pub up: PackedExperts,
    pub down: PackedExperts,
    pub shared_gate: PackedMatrix,
    pub shared_up: PackedMatrix,
    pub shared_down: PackedMatrix,
}

pub(crate) enum LayerMixer {
    Delta(DeltaMixer),
    Attention(AttentionMixer),
}

pub(crate) struct DeltaMixer {
    /// Index among the DeltaNet layers.
    pub index: usize,
    pub qkv: PackedMatrix,
    pub z: PackedMatrix,
    pub b: PackedMatrix,
    pub a: PackedMatrix,
    pub out: PackedMatrix,
    pub vectors: DeltaLayer,
}

pub(crate) struct AttentionMixer {
    /// Index among the attention layers.
    pub index: usize,
    pub q: PackedMatrix,
    pub k: PackedMatrix,
    pub v: PackedMatrix,
    pub out: PackedMatrix,
    pub q_norm: Vec<f32>,
    pub k_norm: Vec<f32>,
}

impl Model {
    pub fn new(config: &ModelConfig, weights: &Weights) -> Result<Self, ModelError> {
        let mut counts = [0, 0];
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            layers.push(Layer::new(config, layer, &mut counts)?);
        }
        Ok(Model {
            embedding: PackedMatrix::new(&weights.embedding)?,
            layers,
            norm: weights.norm.clone(),
            head: PackedMatrix::new(&weights.head)?,
        })
    }

    /// The DeltaNet mixer of a layer.
    pub fn delta(&self, layer: usize) -> &DeltaMixer {
        match &self.layers[layer].mixer {
            LayerMixer::Delta(mixer) => mixer,
            LayerMixer::Attention(_) => panic!("layer {layer} has attention, not DeltaNet"),
        }
    }

    /// The attention mixer of a layer.
    pub fn attention(&self, layer: usize) -> &AttentionMixer {
        match &self.layers[layer].mixer {
            LayerMixer::Attention(mixer) => mixer,
            LayerMixer::Delta(_) => panic!("layer {layer} has DeltaNet, not attention"),
        }
    }
}

impl LayerMixer {
    /// The output projection.
    pub fn out(&self) -> &PackedMatrix {
        match self {
            LayerMixer::Delta(mixer) => &mixer.out,
            LayerMixer::Attention(mixer) => &mixer.out,
        }
    }
}

impl Layer {
    /// `counts`: DeltaNet and attention layers so far.
    fn new(config: &ModelConfig, weights: &LayerWeights, counts: &mut [usize; 2]) -> Result<Self, ModelError> {
        let mut next = |kind: usize| {
            counts[kind] += 1;
            counts[kind] - 1
        };
        let mixer = match &weights.mixer {
            Mixer::Delta(delta) => LayerMixer::Delta(DeltaMixer {
                index: next(0),
                qkv: PackedMatrix::new(&delta.qkv)?,
                z: PackedMatrix::new(&delta.z)?,
                b: PackedMatrix::new(&delta.b)?,
                a: PackedMatrix::new(&delta.a)?,
                out: PackedMatrix::new(&delta.out)?,
                vectors: DeltaLayer::new(delta, &DeltaDims::new(config)),
            }),
            Mixer::Attention(attention) => LayerMixer::Attention(AttentionMixer {
                index: next(1),
                q: PackedMatrix::new(&attention.q)?,
                k: PackedMatrix::new(&attention.k)?,
                v: PackedMatrix::new(&attention.v)?,
                out: PackedMatrix::new(&attention.out)?,
                q_norm: attention.q_norm.clone(),
                k_norm: attention.k_norm.clone(),
            }),
        };
        Ok(Layer {
            mixer_norm: weights.mixer_norm.clone(),
            mixer,
            experts_norm: weights.experts_norm.clone(),
            router: PackedMatrix::new(&weights.router)?,
            shared_route: PackedMatrix::new(&weights.shared.route)?,
            gate: PackedExperts::new(&weights.gate)?,
            up: PackedExperts::new(&weights.up)?,
            down: PackedExperts::new(&weights.down)?,
            shared_gate: PackedMatrix::new(&weights.shared.gate)?,
            shared_up: PackedMatrix::new(&weights.shared.up)?,
            shared_down: PackedMatrix::new(&weights.shared.down)?,
        })
    }
}
