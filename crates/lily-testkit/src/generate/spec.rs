//! What a random checkpoint is to be, and the config.json that says so.

use serde_json::{Value, json};

use super::quantised::Float;
use super::tokenizer::END_OF_TEXT;
use crate::reference::{AttentionDims, DeltaDims, MixerKind, ModelDims, MoeDims};

/// How tensors are named and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Affine-quantised, `language_model.model.*`, convolution `[channels, width, 1]`, norms as whole gains.
    Mlx {
        /// Bits of every matrix but the router and the shared expert's gate, which have 8.
        bits: usize,
        /// Inputs per group, of every matrix.
        group: usize,
        /// Type of scales, biases and all unquantised tensors.
        float: Float,
        /// How the per-layer overrides are spelled in config.json.
        spelling: OverrideSpelling,
    },
    /// bf16, `model.language_model.*`, fused experts, convolution `[channels, 1, width]`, norms without the one.
    Raw,
}

/// The two prefixes under which quantisation overrides occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideSpelling {
    /// `language_model.model.layers.N.mlp.gate`
    LanguageModelFirst,
    /// `model.language_model.layers.N.mlp.gate`
    ModelFirst,
}

/// What to write.
#[derive(Clone, Debug)]
pub struct CheckpointSpec {
    /// Dimensions; the vocabulary must hold the byte tokenizer (at least 265).
    pub dims: ModelDims,
    /// Layout.
    pub layout: Layout,
    /// One `model.safetensors`, or this many shards with an index.
    pub shards: Option<usize>,
    /// Whether the fields of config.json sit under `text_config`.
    pub nested_config: bool,
    /// Whether to add a few vision and multi-token-prediction tensors, which a loader must ignore.
    pub foreign_tensors: bool,
    /// `max_position_embeddings`.
    pub context_max: usize,
    /// Seed of every weight.
    pub seed: u64,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            dims: tiny_dims(),
            layout: Layout::Mlx { bits: 4, group: 64, float: Float::Bf16, spelling: OverrideSpelling::LanguageModelFirst },
            shards: None,
            nested_config: true,
            foreign_tensors: false,
            context_max: 4096,
            seed: 1,
        }
    }
}

/// Three DeltaNet layers and one of attention, hidden 128, 8 experts of which 2 are chosen, 272 tokens.
pub fn tiny_dims() -> ModelDims {
    ModelDims {
        hidden: 128,
        vocab: 272,
        eps: 1e-6,
        mixers: vec![MixerKind::Delta, MixerKind::Delta, MixerKind::Delta, MixerKind::Attention],
        attention: AttentionDims { heads_q: 4, heads_kv: 2, head_dim: 64, rotary_dim: 16, rope_theta: 1e7 },
        delta: DeltaDims { heads_k: 2, heads_v: 4, dim_k: 32, dim_v: 32, conv_width: 4 },
        moe: MoeDims { experts: 8, experts_per_token: 2, expert_width: 64, shared_width: 64, normalise_top: true },
    }
}

/// config.json of a checkpoint.
pub fn config_json(spec: &CheckpointSpec) -> Value {
    let mut text = text_config(&spec.dims, spec.context_max);
    if !spec.nested_config {
        text["architectures"] = json!(["Qwen3_5MoeForCausalLM"]);
        text["model_type"] = json!("qwen3_5_moe");
        add_quantization(&mut text, spec);
        return text;
    }
    let mut config = json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
        "tie_word_embeddings": false, "text_config": text,
    });
    add_quantization(&mut config, spec);
    config
}

fn text_config(dims: &ModelDims, context_max: usize) -> Value {
    let (a, d, m) = (&dims.attention, &dims.delta, &dims.moe);
    let name = |kind: &MixerKind| if *kind == MixerKind::Attention { "full_attention" } else { "linear_attention" };
    let mut config = json!({
        "model_type": "qwen3_5_moe_text", "hidden_size": dims.hidden, "vocab_size": dims.vocab,
        "num_hidden_layers": dims.mixers.len(), "layer_types": dims.mixers.iter().map(name).collect::<Vec<_>>(),
        "rms_norm_eps": dims.eps, "hidden_act": "silu", "attn_output_gate": true,
        "num_attention_heads": a.heads_q, "num_key_value_heads": a.heads_kv, "head_dim": a.head_dim,
        "linear_num_key_heads": d.heads_k, "linear_num_value_heads": d.heads_v,
        "linear_key_head_dim": d.dim_k, "linear_value_head_dim": d.dim_v, "linear_conv_kernel_dim": d.conv_width,
        "num_experts": m.experts, "num_experts_per_tok": m.experts_per_token,
        "moe_intermediate_size": m.expert_width, "shared_expert_intermediate_size": m.shared_width,
        "max_position_embeddings": context_max, "tie_word_embeddings": false, "eos_token_id": END_OF_TEXT,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": a.rope_theta, "mrope_interleaved": true,
            "partial_rotary_factor": a.rotary_dim as f64 / a.head_dim as f64,
        },
    });
    if let Some(first) = dims.mixers.iter().position(|&kind| kind == MixerKind::Attention) {
        config["full_attention_interval"] = json!(first + 1);
    }
    if !m.normalise_top {
        config["norm_topk_prob"] = json!(false);
    }
    config
}

fn add_quantization(config: &mut Value, spec: &CheckpointSpec) {
    let Layout::Mlx { bits, group, spelling, .. } = spec.layout else { return };
    let mut section = json!({ "group_size": group, "bits": bits, "mode": "affine" });
    let prefix = match spelling {
        OverrideSpelling::LanguageModelFirst => "language_model.model",
        OverrideSpelling::ModelFirst => "model.language_model",
    };
    for layer in 0..spec.dims.mixers.len() {
        for name in ["gate", "shared_expert_gate"] {
            section[format!("{prefix}.layers.{layer}.mlp.{name}")] = json!({ "group_size": group, "bits": 8 });
        }
    }
    config["quantization"] = section.clone();
    config["quantization_config"] = section;
}
