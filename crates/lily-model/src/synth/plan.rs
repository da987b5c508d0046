//! Every tensor of a checkpoint in the MLX layout: name, type, shape, and what kind of values it has.

use crate::config::{LayerKind, ModelConfig};
use crate::error::ModelError;
use crate::shard::Dtype;
use crate::storage::{Affine, Storage, plain_name};

/// What fills a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content {
    /// Uniformly random codes.
    Codes,
    /// Scales of `bits`-bit codes, such that weights have the standard deviation `deviation`.
    Scales { bits: usize, deviation: f32 },
    /// Biases that go with those scales and centre the weights.
    Biases { bits: usize, deviation: f32 },
    /// Normal around `mean`.
    Normal { mean: f32, deviation: f32 },
    /// Uniform between two values.
    Uniform { from: f32, to: f32 },
    /// `ln` of uniform between two values.
    LogUniform { from: f32, to: f32 },
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub content: Content,
}

impl Planned {
    pub fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.bytes()) as u64
    }
}

/// All tensors, in the order in which a forward pass uses them.
pub(crate) fn plan(config: &ModelConfig, storage: &Storage) -> Result<Vec<Planned>, ModelError> {
    let mut plan = Plan { storage, tensors: Vec::new() };
    plan.matrix("language_model.model.embed_tokens", &[config.vocab], config.hidden)?;
    for (layer, kind) in config.layers.iter().enumerate() {
        let at = format!("language_model.model.layers.{layer}");
        plan.gain(&format!("{at}.input_layernorm.weight"), config.hidden);
        match kind {
            LayerKind::Delta => plan.delta(&format!("{at}.linear_attn"), config)?,
            LayerKind::Attention => plan.attention(&format!("{at}.self_attn"), config)?,
        }
        plan.gain(&format!("{at}.post_attention_layernorm.weight"), config.hidden);
        plan.experts(&format!("{at}.mlp"), config)?;
    }
    plan.gain("language_model.model.norm.weight", config.hidden);
    if !storage.tied_head {
        plan.matrix("language_model.lm_head", &[config.vocab], config.hidden)?;
    }
    Ok(plan.tensors)
}

struct Plan<'a> {
    storage: &'a Storage,
    tensors: Vec<Planned>,
}

impl Plan<'_> {
    fn delta(&mut self, at: &str, config: &ModelConfig) -> Result<(), ModelError> {
        let ModelConfig { hidden, heads_v, conv_width, .. } = *config;
        self.matrix(&format!("{at}.in_proj_qkv"), &[config.conv_dim()], hidden)?;
        self.matrix(&format!("{at}.in_proj_z"), &[config.v_width()], hidden)?;
        self.matrix(&format!("{at}.in_proj_b"), &[heads_v], hidden)?;
        self.matrix(&format!("{at}.in_proj_a"), &[heads_v], hidden)?;
        let taps = Content::Normal { mean: 0.0, deviation: 0.4 };
        self.push(format!("{at}.conv1d.weight"), Dtype::Bf16, vec![config.conv_dim(), conv_width, 1], taps);
        // Decay rates and offsets in the range of trained models: memories from one token to thousands.
        self.push(format!("{at}.A_log"), Dtype::F32, vec![heads_v], Content::LogUniform { from: 0.05, to: 16.0 });
        self.push(format!("{at}.dt_bias"), Dtype::Bf16, vec![heads_v], Content::Uniform { from: -6.0, to: 1.0 });
        self.gain(&format!("{at}.norm.weight"), config.dim_v);
        self.matrix(&format!("{at}.out_proj"), &[hidden], config.v_width())
    }

    fn attention(&mut self, at: &str, config: &ModelConfig) -> Result<(), ModelError> {
        self.matrix(&format!("{at}.q_proj"), &[2 * config.q_width()], config.hidden)?;
        self.matrix(&format!("{at}.k_proj"), &[config.kv_width()], config.hidden)?;
        self.matrix(&format!("{at}.v_proj"), &[config.kv_width()], config.hidden)?;
        self.gain(&format!("{at}.q_norm.weight"), config.head_dim);
        self.gain(&format!("{at}.k_norm.weight"), config.head_dim);
        self.matrix(&format!("{at}.o_proj"), &[config.hidden], config.q_width())
    }

    fn experts(&mut self, at: &str, config: &ModelConfig) -> Result<(), ModelError> {
        let ModelConfig { hidden, experts, expert_width, shared_width, .. } = *config;
        self.matrix(&format!("{at}.gate"), &[experts], hidden)?;
        self.matrix(&format!("{at}.switch_mlp.gate_proj"), &[experts, expert_width], hidden)?;
        self.matrix(&format!("{at}.switch_mlp.up_proj"), &[experts, expert_width], hidden)?;
        self.matrix(&format!("{at}.switch_mlp.down_proj"), &[experts, hidden], expert_width)?;
        self.matrix(&format!("{at}.shared_expert.gate_proj"), &[shared_width], hidden)?;
        self.matrix(&format!("{at}.shared_expert.up_proj"), &[shared_width], hidden)?;
        self.matrix(&format!("{at}.shared_expert.down_proj"), &[hidden], shared_width)?;
        self.matrix(&format!("{at}.shared_expert_gate"), &[1], hidden)
    }

    /// `[lead.., cols]`, quantised as the storage says. The deviation keeps a product's variance at that
    /// of its input, which keeps activations sane through any number of layers.
    fn matrix(&mut self, name: &str, lead: &[usize], cols: usize) -> Result<(), ModelError> {
        let deviation = 1.0 / (cols as f32).sqrt();
        let shape = |last: usize| [lead, &[last]].concat();
        let Some(quantization) = &self.storage.quantization else {
            self.push(format!("{name}.weight"), Dtype::Bf16, shape(cols), Content::Normal { mean: 0.0, deviation });
            return Ok(());
        };
        let Affine { bits, group } = quantization.of(plain_name(name));
        if !cols.is_multiple_of(group) {
            return Err(ModelError::Config(format!("{name} has rows of {cols}: expected a multiple of the quantisation group, {group}")));
        }
        self.push(format!("{name}.weight"), Dtype::U32, shape(cols * bits / 32), Content::Codes);
        self.push(format!("{name}.scales"), Dtype::Bf16, shape(cols / group), Content::Scales { bits, deviation });
        self.push(format!("{name}.biases"), Dtype::Bf16, shape(cols / group), Content::Biases { bits, deviation });
        Ok(())
    }

    fn gain(&mut self, name: &str, width: usize) {
        self.push(name.into(), Dtype::Bf16, vec![width], Content::Normal { mean: 1.0, deviation: 0.1 });
    }

    fn push(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, content: Content) {
        self.tensors.push(Planned { name, dtype, shape, content });
    }
}
