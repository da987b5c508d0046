//! Shapes known by name, for synthetic checkpoints and for figures without a checkpoint, and the
//! `config.json` that describes a shape.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::config::{LayerKind, ModelConfig};
use crate::storage::{Affine, Quantization, Storage};

impl ModelConfig {
    /// Qwen3.6-35B-A3B.
    pub fn qwen3_6_35b_a3b() -> Self {
        ModelConfig {
            hidden: 2048,
            vocab: 248320,
            layers: every_fourth_attends(40),
            context_max: 262144,
            rms_eps: 1e-6,
            heads_q: 16,
            heads_kv: 2,
            head_dim: 256,
            rotary_dim: 64,
            rope_theta: 1e7,
            heads_k: 16,
            heads_v: 32,
            dim_k: 128,
            dim_v: 128,
            conv_width: 4,
            experts: 256,
            experts_per_token: 8,
            expert_width: 512,
            shared_width: 512,
            eos: vec![248044, 248046],
        }
    }

    /// The shape of the bundled lily-nano: the real head dimensions, few and narrow layers.
    pub fn lily_nano() -> Self {
        ModelConfig {
            hidden: 256,
            vocab: 6144,
            layers: every_fourth_attends(8),
            context_max: 32768,
            heads_q: 4,
            heads_kv: 1,
            heads_k: 2,
            heads_v: 4,
            experts: 16,
            experts_per_token: 4,
            expert_width: 128,
            shared_width: 128,
            eos: vec![0],
            ..Self::qwen3_6_35b_a3b()
        }
    }

    /// The smallest shape that has one of everything: for tests.
    pub fn tiny() -> Self {
        ModelConfig {
            hidden: 128,
            vocab: 320,
            layers: vec![LayerKind::Delta, LayerKind::Delta, LayerKind::Delta, LayerKind::Attention],
            context_max: 4096,
            heads_q: 4,
            heads_kv: 2,
            head_dim: 32,
            rotary_dim: 8,
            heads_k: 2,
            heads_v: 4,
            dim_k: 32,
            dim_v: 32,
            experts: 8,
            experts_per_token: 2,
            expert_width: 64,
            shared_width: 64,
            eos: vec![1],
            ..Self::qwen3_6_35b_a3b()
        }
    }

    /// The `config.json` of a checkpoint in the MLX layout with this shape.
    pub fn to_json(&self, storage: &Storage) -> Value {
        let kind = |kind: &LayerKind| match kind {
            LayerKind::Delta => "linear_attention",
            LayerKind::Attention => "full_attention",
        };
        let mut json = json!({
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "tie_word_embeddings": storage.tied_head,
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "hidden_size": self.hidden,
                "vocab_size": self.vocab,
                "num_hidden_layers": self.layers.len(),
                "layer_types": self.layers.iter().map(kind).collect::<Vec<_>>(),
                "max_position_embeddings": self.context_max,
                "rms_norm_eps": shortest(self.rms_eps),
                "num_attention_heads": self.heads_q,
                "num_key_value_heads": self.heads_kv,
                "head_dim": self.head_dim,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": self.rope_theta,
                    "partial_rotary_factor": self.rotary_dim as f64 / self.head_dim as f64,
                },
                "linear_num_key_heads": self.heads_k,
                "linear_num_value_heads": self.heads_v,
                "linear_key_head_dim": self.dim_k,
                "linear_value_head_dim": self.dim_v,
                "linear_conv_kernel_dim": self.conv_width,
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
                "moe_intermediate_size": self.expert_width,
                "shared_expert_intermediate_size": self.shared_width,
                "hidden_act": "silu",
                "attention_bias": false,
                "attn_output_gate": true,
                "tie_word_embeddings": storage.tied_head,
                "eos_token_id": self.eos,
            },
        });
        if let Some(quantization) = &storage.quantization {
            json["quantization"] = section(quantization);
            json["quantization_config"] = section(quantization);
        }
        json
    }
}

impl Storage {
    /// 4 bits in groups of 64, routers and shared-expert gates at 8 bits: how the published MLX
    /// checkpoints of this architecture are quantised.
    pub fn mlx_4bit(config: &ModelConfig) -> Self {
        let routers = |layer: usize| ["gate", "shared_expert_gate"].map(|name| format!("layers.{layer}.mlp.{name}"));
        let overrides: HashMap<_, _> =
            (0..config.layers.len()).flat_map(routers).map(|name| (name, Affine { bits: 8, group: 64 })).collect();
        let quantization = Quantization { default: Affine { bits: 4, group: 64 }, overrides };
        Storage { quantization: Some(quantization), tied_head: false }
    }
}

fn every_fourth_attends(layers: usize) -> Vec<LayerKind> {
    (0..layers).map(|layer| if layer % 4 == 3 { LayerKind::Attention } else { LayerKind::Delta }).collect()
}

/// `1e-6` and not `9.999999974752427e-7`.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().expect("a float's own text is a number")
}

fn section(quantization: &Quantization) -> Value {
    let Affine { bits, group } = quantization.default;
    let mut section = json!({ "group_size": group, "bits": bits, "mode": "affine" });
    let mut overrides: Vec<_> = quantization.overrides.iter().collect();
    overrides.sort_unstable_by_key(|(name, _)| name.as_str());
    for (name, format) in overrides {
        let inner = if name == "lm_head" { "" } else { "model." };
        section[format!("language_model.{inner}{name}")] = json!({ "group_size": format.group, "bits": format.bits });
    }
    section
}
