//! The model's shape, from `config.json`.

use serde_json::Value;

use crate::error::ModelError;
use crate::fields::{Fields, parse};

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

    /// Bytes of keys and values of one position in all attention layers: 16 bits a value, bf16 on GPUs and f16
    /// on the CPU.
    pub fn kv_bytes(&self) -> usize {
        2 * 2 * self.kv_width() * self.layers_of(LayerKind::Attention)
    }

    /// Bytes of one KV page.
    pub fn page_bytes(&self) -> usize {
        self.kv_bytes() * crate::batch::PAGE_TOKENS
    }

    /// Layers of one kind.
    pub fn layers_of(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&layer| layer == kind).count()
    }

    /// Reads the text of `config.json`: the text model's fields under `text_config` or at the top level.
    /// Errors name the field, what was expected and what was found.
    pub fn from_json(text: &[u8]) -> Result<Self, ModelError> {
        let json = parse(text)?;
        let root = Fields::root(&json)?;
        check_architecture(&root)?;
        let fields = root.object("text_config")?.unwrap_or_else(|| root.clone());
        refuse_variants(&fields)?;
        let head_dim = fields.count("head_dim", HEAD_MAX)?;
        let (rope_theta, rotary_dim) = rotary(&root, &fields, head_dim)?;
        let config = ModelConfig {
            hidden: fields.count("hidden_size", DIM_MAX)?,
            vocab: fields.count("vocab_size", VOCAB_MAX)?,
            layers: layers(&fields)?,
            context_max: fields.count("max_position_embeddings", CONTEXT_MAX)?,
            rms_eps: fields.positive("rms_norm_eps")? as f32,
            heads_q: fields.count("num_attention_heads", HEAD_MAX)?,
            heads_kv: fields.count("num_key_value_heads", HEAD_MAX)?,
            head_dim,
            rotary_dim,
            rope_theta,
            heads_k: fields.count("linear_num_key_heads", HEAD_MAX)?,
            heads_v: fields.count("linear_num_value_heads", HEAD_MAX)?,
            dim_k: fields.count("linear_key_head_dim", HEAD_MAX)?,
            dim_v: fields.count("linear_value_head_dim", HEAD_MAX)?,
            conv_width: fields.count("linear_conv_kernel_dim", CONV_MAX)?,
            experts: fields.count("num_experts", EXPERTS_MAX)?,
            experts_per_token: fields.count("num_experts_per_tok", EXPERTS_MAX)?,
            expert_width: fields.count("moe_intermediate_size", DIM_MAX)?,
            shared_width: fields.count("shared_expert_intermediate_size", DIM_MAX)?,
            eos: eos(&root, &fields)?,
        };
        config.check_relations()?;
        Ok(config)
    }

    /// Relations between fields that the steps rely on.
    fn check_relations(&self) -> Result<(), ModelError> {
        let divides = |whole: (&str, usize), part: (&str, usize)| {
            if whole.1.is_multiple_of(part.1) {
                return Ok(());
            }
            Err(ModelError::Config(format!("{}: expected a multiple of {} ({}), found {}", whole.0, part.0, part.1, whole.1)))
        };
        divides(("num_attention_heads", self.heads_q), ("num_key_value_heads", self.heads_kv))?;
        divides(("linear_num_value_heads", self.heads_v), ("linear_num_key_heads", self.heads_k))?;
        if self.experts_per_token > self.experts {
            let (chosen, all) = (self.experts_per_token, self.experts);
            return Err(ModelError::Config(format!("num_experts_per_tok: expected at most num_experts ({all}), found {chosen}")));
        }
        if self.conv_width < 2 {
            // One tap would leave no rows to carry, and [channels, 1, 1] would fit both layouts.
            return Err(ModelError::Config(format!("linear_conv_kernel_dim: expected at least 2, found {}", self.conv_width)));
        }
        if let Some(&id) = self.eos.iter().find(|&&id| id as usize >= self.vocab) {
            return Err(ModelError::Config(format!("eos_token_id: expected ids below vocab_size ({}), found {id}", self.vocab)));
        }
        Ok(())
    }
}

/// Bounds that keep products of dimensions within 64 bits; far beyond any model of this architecture.
const DIM_MAX: usize = 1 << 18;
/// Of heads, and of a head's dimensions.
const HEAD_MAX: usize = 1 << 12;
const VOCAB_MAX: usize = 1 << 24;
const CONTEXT_MAX: usize = 1 << 28;
const EXPERTS_MAX: usize = 1 << 14;
const LAYERS_MAX: usize = 1 << 10;
const CONV_MAX: usize = 64;

/// The names under which this architecture appears; the second is the text model alone.
const MODEL_TYPES: [&str; 2] = ["qwen3_5_moe", "qwen3_5_moe_text"];

fn check_architecture(root: &Fields<'_>) -> Result<(), ModelError> {
    let expected = "\"qwen3_5_moe\" (Qwen3.5 and Qwen3.6 mixture-of-experts models)";
    match root.get("model_type") {
        Some(Value::String(found)) if MODEL_TYPES.contains(&found.as_str()) => Ok(()),
        Some(other) => Err(root.unlike("model_type", expected, other)),
        None => Err(root.missing("model_type", expected)),
    }
}

/// Refuses settings that would change the computation: better no answer than a wrong one.
fn refuse_variants(fields: &Fields<'_>) -> Result<(), ModelError> {
    for (name, expected) in [("norm_topk_prob", true), ("attn_output_gate", true), ("attention_bias", false)] {
        if fields.optional_flag(name)?.is_some_and(|found| found != expected) {
            let why = format!("{expected} or no such field (this engine computes nothing else)");
            return Err(fields.unlike(name, &why, &Value::Bool(!expected)));
        }
    }
    if let Some(found) = fields.optional_text("hidden_act")?.filter(|&act| act != "silu") {
        return Err(fields.unlike("hidden_act", "\"silu\"", &Value::from(found)));
    }
    if let Some(step) = fields.get("decoder_sparse_step").filter(|&step| step != 1) {
        return Err(fields.unlike("decoder_sparse_step", "1 (experts in every layer)", step));
    }
    if let Some(dense) = fields.get("mlp_only_layers").filter(|&list| list.as_array().is_none_or(|list| !list.is_empty())) {
        return Err(fields.unlike("mlp_only_layers", "[] (experts in every layer)", dense));
    }
    Ok(())
}

/// `layer_types`, else every `full_attention_interval`-th layer, else every fourth, is attention.
fn layers(fields: &Fields<'_>) -> Result<Vec<LayerKind>, ModelError> {
    let count = fields.count("num_hidden_layers", LAYERS_MAX)?;
    let Some(types) = fields.get("layer_types") else {
        let interval = fields.optional_count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
        let kind = |layer: usize| if layer % interval == interval - 1 { LayerKind::Attention } else { LayerKind::Delta };
        return Ok((0..count).map(kind).collect());
    };
    let list = types.as_array().filter(|list| list.len() == count);
    let list = list.ok_or_else(|| fields.unlike("layer_types", &format!("a list of num_hidden_layers ({count}) entries"), types))?;
    let kind = |(layer, name): (usize, &Value)| match name.as_str() {
        Some("linear_attention") => Ok(LayerKind::Delta),
        Some("full_attention") => Ok(LayerKind::Attention),
        _ => Err(fields.unlike(&format!("layer_types[{layer}]"), "\"linear_attention\" or \"full_attention\"", name)),
    };
    list.iter().enumerate().map(kind).collect()
}

/// Base frequency and rotated dimensions: `rope_parameters` or plain fields, of the text model or of the whole.
fn rotary(root: &Fields<'_>, fields: &Fields<'_>, head_dim: usize) -> Result<(f64, usize), ModelError> {
    let mut places = Vec::new();
    for level in [fields, root] {
        for section in [level.object("rope_parameters")?, level.object("rope_scaling")?].into_iter().flatten() {
            let kind = section.optional_text("rope_type")?.or(section.optional_text("type")?);
            if let Some(found) = kind.filter(|&kind| kind != "default") {
                return Err(section.unlike("rope_type", "\"default\" (nothing scaled is supported)", &Value::from(found)));
            }
            places.push(section);
        }
        places.push(level.clone());
    }
    let number = |name: &str| {
        for place in &places {
            if let Some(value) = place.optional_positive(name)? {
                return Ok(value);
            }
        }
        Err(places[0].missing(name, "a number above 0"))
    };
    let theta = number("rope_theta")?;
    let share = number("partial_rotary_factor")?;
    let rotary_dim = (share * head_dim as f64).round() as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        return Err(ModelError::Config(format!(
            "partial_rotary_factor: expected an even number of head_dim's {head_dim} dimensions, found {share} of them ({rotary_dim})"
        )));
    }
    Ok((theta, rotary_dim))
}

/// `eos_token_id`, a number or a list, of the text model and of the whole: the union.
fn eos(root: &Fields<'_>, fields: &Fields<'_>) -> Result<Vec<u32>, ModelError> {
    let mut ids = Vec::new();
    for level in [fields, root] {
        let Some(value) = level.get("eos_token_id") else { continue };
        let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for id in listed {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            ids.push(id.ok_or_else(|| level.unlike("eos_token_id", "a token id or a list of them", value))?);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
