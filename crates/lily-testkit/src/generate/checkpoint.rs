//! Writes tiny random checkpoints of any shape into a directory, in either layout.
//!
//! [`write_checkpoint`] makes a whole directory that loads and talks (nonsense); error tests then damage it, for
//! instance through [`super::read_tensors`] and [`super::write_tensors`].

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use super::quantised::{Float, random_affine};
use super::rng::Rng;
use super::spec::{CheckpointSpec, Layout, config_json};
use super::tensors::{TensorData, write_tensors};
use super::tokenizer::{END_OF_TEXT, IM_END, TOKENS, byte_tokenizer_json};
use crate::TestkitError;
use crate::reference::MixerKind;

/// Writes config.json, generation_config.json, the tokenizer files and the weights.
pub fn write_checkpoint(directory: &Path, spec: &CheckpointSpec) -> Result<(), TestkitError> {
    assert!(spec.dims.vocab >= TOKENS, "the byte tokenizer needs {TOKENS} rows, not {}", spec.dims.vocab);
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|source| TestkitError::Io { path, source })
    };
    let write_json = |name: &str, value: &Value| write(name, format!("{value:#}\n").as_bytes());
    std::fs::create_dir_all(directory).map_err(|source| TestkitError::Io { path: directory.to_owned(), source })?;
    write_json("config.json", &config_json(spec))?;
    write_json("generation_config.json", &json!({ "eos_token_id": [IM_END, END_OF_TEXT], "do_sample": false }))?;
    write_json("tokenizer.json", &byte_tokenizer_json())?;
    write_json("tokenizer_config.json", &json!({ "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE }))?;
    let tensors = Writer::new(spec).tensors();
    let Some(shards) = spec.shards else {
        return write_tensors(&directory.join("model.safetensors"), &tensors);
    };
    write_json("model.safetensors.index.json", &write_shards(directory, &tensors, shards)?)
}

const CHAT_TEMPLATE: &str = "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + \
    '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

/// Writes the shards and returns their index; layers are spread over shards as the names sort.
fn write_shards(directory: &Path, tensors: &BTreeMap<String, TensorData>, shards: usize) -> Result<Value, TestkitError> {
    let per_shard = tensors.len().div_ceil(shards);
    let entries: Vec<_> = tensors.iter().collect();
    let mut places = serde_json::Map::new();
    for (index, chunk) in entries.chunks(per_shard).enumerate() {
        let file = format!("model-{:05}-of-{shards:05}.safetensors", index + 1);
        let part = chunk.iter().map(|(name, tensor)| ((*name).clone(), (*tensor).clone())).collect();
        write_tensors(&directory.join(&file), &part)?;
        places.extend(chunk.iter().map(|(name, _)| ((*name).clone(), json!(file))));
    }
    let total: usize = tensors.values().map(|t| t.bytes.len()).sum();
    Ok(json!({ "metadata": { "total_size": total }, "weight_map": places }))
}

/// Draws the tensors of a checkpoint one after the other.
struct Writer<'a> {
    spec: &'a CheckpointSpec,
    rng: Rng,
    tensors: BTreeMap<String, TensorData>,
}

impl<'a> Writer<'a> {
    fn new(spec: &'a CheckpointSpec) -> Self {
        Self { spec, rng: Rng::new(spec.seed), tensors: BTreeMap::new() }
    }

    fn tensors(mut self) -> BTreeMap<String, TensorData> {
        let (raw, dims) = (self.raw(), &self.spec.dims);
        let model = if raw { "model.language_model" } else { "language_model.model" };
        let head = if raw { "lm_head" } else { "language_model.lm_head" };
        self.matrix(&format!("{model}.embed_tokens"), &[dims.vocab, dims.hidden]);
        self.matrix(head, &[dims.vocab, dims.hidden]);
        self.gain(&format!("{model}.norm.weight"), dims.hidden, raw);
        for (index, kind) in dims.mixers.iter().enumerate() {
            let at = format!("{model}.layers.{index}");
            self.gain(&format!("{at}.input_layernorm.weight"), dims.hidden, raw);
            self.gain(&format!("{at}.post_attention_layernorm.weight"), dims.hidden, raw);
            match kind {
                MixerKind::Delta => self.delta(&format!("{at}.linear_attn")),
                MixerKind::Attention => self.attention(&format!("{at}.self_attn")),
            }
            self.moe(&format!("{at}.mlp"));
        }
        if self.spec.foreign_tensors {
            let vision = if raw { "model.visual" } else { "vision_tower" };
            self.gain(&format!("{vision}.blocks.0.norm1.weight"), 48, false);
            self.floats(&format!("{vision}.patch_embed.proj.weight"), &[48, 3, 2, 4, 4], 0.0, 0.1);
            self.floats("mtp.fc.weight", &[dims.hidden, 2 * dims.hidden], 0.0, 0.1);
            self.gain("mtp.norm.weight", dims.hidden, true);
        }
        self.tensors
    }

    fn raw(&self) -> bool {
        self.spec.layout == Layout::Raw
    }

    fn float(&self) -> Float {
        match self.spec.layout {
            Layout::Mlx { float, .. } => float,
            Layout::Raw => Float::Bf16,
        }
    }

    fn delta(&mut self, at: &str) {
        let (d, hidden) = (self.spec.dims.delta, self.spec.dims.hidden);
        let (channels, values) = (d.channels(), d.heads_v * d.dim_v);
        self.matrix(&format!("{at}.in_proj_qkv"), &[channels, hidden]);
        self.matrix(&format!("{at}.in_proj_z"), &[values, hidden]);
        self.matrix(&format!("{at}.in_proj_a"), &[d.heads_v, hidden]);
        self.matrix(&format!("{at}.in_proj_b"), &[d.heads_v, hidden]);
        self.matrix(&format!("{at}.out_proj"), &[hidden, values]);
        let conv = if self.raw() { [channels, 1, d.conv_width] } else { [channels, d.conv_width, 1] };
        self.floats(&format!("{at}.conv1d.weight"), &conv, 0.0, 0.5);
        self.floats(&format!("{at}.A_log"), &[d.heads_v], -1.0, 1.0);
        self.floats(&format!("{at}.dt_bias"), &[d.heads_v], 0.0, 1.0);
        self.gain(&format!("{at}.norm.weight"), d.dim_v, false);
    }

    fn attention(&mut self, at: &str) {
        let (a, hidden) = (self.spec.dims.attention, self.spec.dims.hidden);
        self.matrix(&format!("{at}.q_proj"), &[a.heads_q * 2 * a.head_dim, hidden]);
        self.matrix(&format!("{at}.k_proj"), &[a.heads_kv * a.head_dim, hidden]);
        self.matrix(&format!("{at}.v_proj"), &[a.heads_kv * a.head_dim, hidden]);
        self.matrix(&format!("{at}.o_proj"), &[hidden, a.heads_q * a.head_dim]);
        let raw = self.raw();
        self.gain(&format!("{at}.q_norm.weight"), a.head_dim, raw);
        self.gain(&format!("{at}.k_norm.weight"), a.head_dim, raw);
    }

    fn moe(&mut self, at: &str) {
        let (m, hidden) = (self.spec.dims.moe, self.spec.dims.hidden);
        self.matrix(&format!("{at}.gate"), &[m.experts, hidden]);
        self.matrix(&format!("{at}.shared_expert_gate"), &[1, hidden]);
        self.matrix(&format!("{at}.shared_expert.gate_proj"), &[m.shared_width, hidden]);
        self.matrix(&format!("{at}.shared_expert.up_proj"), &[m.shared_width, hidden]);
        self.matrix(&format!("{at}.shared_expert.down_proj"), &[hidden, m.shared_width]);
        if self.raw() {
            self.weights(&format!("{at}.experts.gate_up_proj"), &[m.experts, 2 * m.expert_width, hidden]);
            self.weights(&format!("{at}.experts.down_proj"), &[m.experts, hidden, m.expert_width]);
            return;
        }
        self.matrix(&format!("{at}.switch_mlp.gate_proj"), &[m.experts, m.expert_width, hidden]);
        self.matrix(&format!("{at}.switch_mlp.up_proj"), &[m.experts, m.expert_width, hidden]);
        self.matrix(&format!("{at}.switch_mlp.down_proj"), &[m.experts, hidden, m.expert_width]);
    }

    /// The gain of a norm, around one; `without_one` stores it less one.
    fn gain(&mut self, name: &str, length: usize, without_one: bool) {
        self.floats(name, &[length], if without_one { 0.0 } else { 1.0 }, 0.1);
    }

    /// `NAME.weight`, quantised where the layout quantises; `shape` ends in `[outputs, inputs]`.
    fn matrix(&mut self, name: &str, shape: &[usize]) {
        let Layout::Mlx { bits, group, float, .. } = self.spec.layout else {
            return self.weights(&format!("{name}.weight"), shape);
        };
        let bits = if name.ends_with("mlp.gate") || name.ends_with("shared_expert_gate") { 8 } else { bits };
        let (outer, inputs) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        let drawn = random_affine(&mut self.rng, [outer.iter().product(), inputs], [bits, group], float);
        let with = |last: usize| [outer, &[last]].concat();
        let words = drawn.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.insert(format!("{name}.weight"), Dtype::U32, with(inputs * bits / 32), words);
        let groups = with(inputs / group);
        self.insert(format!("{name}.scales"), float.dtype(), groups.clone(), float.bytes(&drawn.scales));
        self.insert(format!("{name}.biases"), float.dtype(), groups, float.bytes(&drawn.biases));
    }

    /// Dense weights of about `1 / sqrt(inputs)`.
    fn weights(&mut self, name: &str, shape: &[usize]) {
        let inputs = shape[shape.len() - 1];
        self.floats(name, shape, 0.0, 1.0 / (inputs as f64).sqrt());
    }

    fn floats(&mut self, name: &str, shape: &[usize], mean: f64, deviation: f64) {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|_| mean + deviation * self.rng.gaussian()).collect();
        let float = self.float();
        self.insert(name.to_owned(), float.dtype(), shape.to_vec(), float.bytes(&values));
    }

    fn insert(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) {
        self.tensors.insert(name, TensorData { dtype, shape, bytes });
    }
}
