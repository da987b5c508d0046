//! The model's shape, from `config.json`.

/// Which mixer a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet: constant-size recurrent state.
    Delta,
    /// Gated full attention: keys and values of the whole context.
    Attention,
}

/// Every dimension that the model needs. Field names are the project's glossary.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub hidden: usize,
    pub vocab: usize,
    /// One entry per layer.
    pub layers: Vec<LayerKind>,
    /// Positions the model was made for.
    pub context_max: usize,
    pub rms_eps: f32,

    pub heads_q: usize,
    pub heads_kv: usize,
    pub head_dim: usize,
    /// Leading dimensions of a head that are rotated.
    pub rotary_dim: usize,
    pub rope_theta: f64,

    /// Key heads of DeltaNet; queries have as many.
    pub heads_k: usize,
    /// Value heads of DeltaNet; one state each.
    pub heads_v: usize,
    pub dim_k: usize,
    pub dim_v: usize,
    /// Taps of the causal convolution.
    pub conv_width: usize,

    pub experts: usize,
    pub experts_per_token: usize,
    pub expert_width: usize,
    pub shared_width: usize,

    /// End-of-sequence ids named by `config.json`.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Channels of the convolution: `q | k | v`.
    pub fn conv_dim(&self) -> usize {
        2 * self.heads_k * self.dim_k + self.heads_v * self.dim_v
    }

    /// Width of a DeltaNet mixer's result.
    pub fn v_width(&self) -> usize {
        self.heads_v * self.dim_v
    }

    /// Width of an attention mixer's result.
    pub fn q_width(&self) -> usize {
        self.heads_q * self.head_dim
    }

    /// Width of keys, and of values, of one position.
    pub fn kv_width(&self) -> usize {
        self.heads_kv * self.head_dim
    }

    /// Layers of one kind.
    pub fn layers_of(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&layer| layer == kind).count()
    }
}
