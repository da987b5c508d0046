//! The dimensions of a model, read from config.json by this crate's own small reader.

use serde_json::Value;

use crate::TestkitError;

/// Dimensions of gated attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDims {
    /// Query heads, a multiple of `heads_kv`.
    pub heads_q: usize,
    /// Key and value heads.
    pub heads_kv: usize,
    /// Values per head.
    pub head_dim: usize,
    /// How many of them RoPE rotates.
    pub rotary_dim: usize,
    /// Base of the rotation frequencies.
    pub rope_theta: f64,
}

/// Dimensions of Gated DeltaNet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaDims {
    /// Query and key heads.
    pub heads_k: usize,
    /// Value heads, a multiple of `heads_k`.
    pub heads_v: usize,
    /// Values per query and key head.
    pub dim_k: usize,
    /// Values per value head.
    pub dim_v: usize,
    /// Taps of the causal convolution.
    pub conv_width: usize,
}

impl DeltaDims {
    /// Width of a convolved row: queries, keys and values of all heads.
    pub fn channels(&self) -> usize {
        2 * self.heads_k * self.dim_k + self.heads_v * self.dim_v
    }
}

/// Dimensions of the mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeDims {
    /// Routed experts.
    pub experts: usize,
    /// How many of them each token visits.
    pub experts_per_token: usize,
    /// Inner width of a routed expert.
    pub expert_width: usize,
    /// Inner width of the shared expert.
    pub shared_width: usize,
    /// Whether the chosen probabilities are divided by their sum.
    pub normalise_top: bool,
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixerKind {
    /// Gated DeltaNet, `linear_attention` in config.json.
    Delta,
    /// Gated softmax attention, `full_attention` in config.json.
    Attention,
}

/// All dimensions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDims {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Epsilon of every RMS norm.
    pub eps: f64,
    /// The mixer of each layer.
    pub mixers: Vec<MixerKind>,
    /// Of the attention layers.
    pub attention: AttentionDims,
    /// Of the DeltaNet layers.
    pub delta: DeltaDims,
    /// Of every layer.
    pub moe: MoeDims,
}

impl ModelDims {
    /// Reads config.json, with the text fields under `text_config` or at the top level.
    pub fn from_config(config: &Value) -> Result<Self, TestkitError> {
        let fields = Fields(config.get("text_config").unwrap_or(config));
        let rope = Fields(fields.0.get("rope_parameters").unwrap_or(fields.0));
        let head_dim = fields.size("head_dim")?;
        Ok(Self {
            hidden: fields.size("hidden_size")?,
            vocab: fields.size("vocab_size")?,
            eps: fields.number("rms_norm_eps")?,
            mixers: fields.mixers()?,
            attention: AttentionDims {
                heads_q: fields.size("num_attention_heads")?,
                heads_kv: fields.size("num_key_value_heads")?,
                head_dim,
                rotary_dim: (head_dim as f64 * rope.number("partial_rotary_factor")?) as usize,
                rope_theta: rope.number("rope_theta")?,
            },
            delta: DeltaDims {
                heads_k: fields.size("linear_num_key_heads")?,
                heads_v: fields.size("linear_num_value_heads")?,
                dim_k: fields.size("linear_key_head_dim")?,
                dim_v: fields.size("linear_value_head_dim")?,
                conv_width: fields.size("linear_conv_kernel_dim")?,
            },
            moe: MoeDims {
                experts: fields.size("num_experts")?,
                experts_per_token: fields.size("num_experts_per_tok")?,
                expert_width: fields.size("moe_intermediate_size")?,
                shared_width: fields.size("shared_expert_intermediate_size")?,
                normalise_top: fields.0.get("norm_topk_prob").and_then(Value::as_bool).unwrap_or(true),
            },
        })
    }
}

struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn size(&self, name: &str) -> Result<usize, TestkitError> {
        let found = self.0.get(name).and_then(Value::as_u64);
        found.map(|n| n as usize).ok_or_else(|| TestkitError::content(format!("config.json {name}"), "not a count"))
    }

    fn number(&self, name: &str) -> Result<f64, TestkitError> {
        let found = self.0.get(name).and_then(Value::as_f64);
        found.ok_or_else(|| TestkitError::content(format!("config.json {name}"), "not a number"))
    }

    /// `layer_types` where present, otherwise every `full_attention_interval`-th layer is attention.
    fn mixers(&self) -> Result<Vec<MixerKind>, TestkitError> {
        let layers = self.size("num_hidden_layers")?;
        let kind = |attention| if attention { MixerKind::Attention } else { MixerKind::Delta };
        let Some(types) = self.0.get("layer_types").and_then(Value::as_array) else {
            let interval = self.size("full_attention_interval").unwrap_or(4);
            return Ok((1..=layers).map(|layer| kind(layer % interval == 0)).collect());
        };
        if types.len() != layers {
            let problem = format!("{} entries for {layers} layers", types.len());
            return Err(TestkitError::content("config.json layer_types", problem));
        }
        Ok(types.iter().map(|t| kind(t == "full_attention")).collect())
    }
}
