//! Reads a checkpoint directory into the dense f64 [`Model`], in the MLX layout or the raw Hugging Face layout.
//!
//! Start at [`load_model`]. Bits and group size are worked out from the shapes of a quantised matrix, never from the
//! `quantization` section of config.json: an engine that misreads an override then disagrees with this reader. The
//! gain of a norm is `1 + w` exactly where the convolution is stored `[channels, 1, width]` (raw), `w` where it is
//! stored `[channels, width, 1]` (MLX).

use std::collections::HashMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use crate::TestkitError;
use crate::error::read_file;
use crate::generate::Float;
use crate::reference::{
    Affine, AttentionWeights, DeltaWeights, Expert, LayerWeights, Matrix, MixerKind, MixerWeights, Model, ModelDims, MoeWeights, dequantise,
};

/// Loads every text tensor of the checkpoint in `directory` (config.json beside one or several `*.safetensors`).
pub fn load_model(directory: &Path) -> Result<Model, TestkitError> {
    load_model_stored(directory, Float::F32)
}

/// The same as an engine has it that keeps scales, biases and plain matrices in this type.
pub fn load_model_stored(directory: &Path, matrices: Float) -> Result<Model, TestkitError> {
    let config = serde_json::from_slice(&read_file(&directory.join("config.json"))?)
        .map_err(|e| TestkitError::content("config.json", e.to_string()))?;
    let dims = ModelDims::from_config(&config)?;
    let tensors = Tensors { matrices, ..Tensors::read(directory)? };
    let (hidden, vocab) = (dims.hidden, dims.vocab);
    let embedding = tensors.matrix("embed_tokens", vocab, hidden)?;
    let head = if tensors.map.contains_key("lm_head.weight") {
        tensors.matrix("lm_head", vocab, hidden)?
    } else {
        embedding.clone() // tied
    };
    let layers = (0..dims.mixers.len()).map(|index| load_layer(&tensors, index, &dims)).collect::<Result<_, _>>()?;
    Ok(Model { final_norm: tensors.gain("norm.weight", hidden)?, embedding, layers, head, dims })
}

fn load_layer(tensors: &Tensors, index: usize, dims: &ModelDims) -> Result<LayerWeights, TestkitError> {
    let at = format!("layers.{index}");
    let mixer = match dims.mixers[index] {
        MixerKind::Delta => MixerWeights::Delta(Box::new(load_delta(tensors, &format!("{at}.linear_attn"), dims)?)),
        MixerKind::Attention => MixerWeights::Attention(Box::new(load_attention(tensors, &format!("{at}.self_attn"), dims)?)),
    };
    Ok(LayerWeights {
        input_norm: tensors.gain(&format!("{at}.input_layernorm.weight"), dims.hidden)?,
        mixer,
        post_norm: tensors.gain(&format!("{at}.post_attention_layernorm.weight"), dims.hidden)?,
        moe: load_moe(tensors, &format!("{at}.mlp"), dims)?,
    })
}

fn load_delta(tensors: &Tensors, at: &str, dims: &ModelDims) -> Result<DeltaWeights, TestkitError> {
    let (d, hidden) = (&dims.delta, dims.hidden);
    let values = d.heads_v * d.dim_v;
    let matrix = |name: &str, outputs, inputs| tensors.matrix(&format!("{at}.{name}"), outputs, inputs);
    let vector = |name: &str, length| tensors.vector(&format!("{at}.{name}"), length);
    Ok(DeltaWeights {
        in_proj_qkv: matrix("in_proj_qkv", d.channels(), hidden)?,
        in_proj_z: matrix("in_proj_z", values, hidden)?,
        in_proj_a: matrix("in_proj_a", d.heads_v, hidden)?,
        in_proj_b: matrix("in_proj_b", d.heads_v, hidden)?,
        conv: vector("conv1d.weight", d.channels() * d.conv_width)?, // both layouts hold [channels, width] in order
        a_log: vector("A_log", d.heads_v)?,
        dt_bias: vector("dt_bias", d.heads_v)?,
        norm: vector("norm.weight", d.dim_v)?,
        out_proj: matrix("out_proj", hidden, values)?,
    })
}

fn load_attention(tensors: &Tensors, at: &str, dims: &ModelDims) -> Result<AttentionWeights, TestkitError> {
    let (a, hidden) = (&dims.attention, dims.hidden);
    let matrix = |name: &str, outputs, inputs| tensors.matrix(&format!("{at}.{name}"), outputs, inputs);
    Ok(AttentionWeights {
        q_proj: matrix("q_proj", a.heads_q * 2 * a.head_dim, hidden)?,
        k_proj: matrix("k_proj", a.heads_kv * a.head_dim, hidden)?,
        v_proj: matrix("v_proj", a.heads_kv * a.head_dim, hidden)?,
        o_proj: matrix("o_proj", hidden, a.heads_q * a.head_dim)?,
        q_norm: tensors.gain(&format!("{at}.q_norm.weight"), a.head_dim)?,
        k_norm: tensors.gain(&format!("{at}.k_norm.weight"), a.head_dim)?,
    })
}

fn load_moe(tensors: &Tensors, at: &str, dims: &ModelDims) -> Result<MoeWeights, TestkitError> {
    let (m, hidden) = (&dims.moe, dims.hidden);
    let matrix = |name: &str, outputs, inputs| tensors.matrix(&format!("{at}.{name}"), outputs, inputs);
    let shared = |name: &str, outputs, inputs| matrix(&format!("shared_expert.{name}"), outputs, inputs);
    Ok(MoeWeights {
        router: matrix("gate", m.experts, hidden)?,
        experts: load_experts(tensors, at, dims)?,
        shared_gate: matrix("shared_expert_gate", 1, hidden)?,
        shared: Expert {
            gate: shared("gate_proj", m.shared_width, hidden)?,
            up: shared("up_proj", m.shared_width, hidden)?,
            down: shared("down_proj", hidden, m.shared_width)?,
        },
    })
}

/// Stacked `switch_mlp` matrices (MLX), or the fused `experts.gate_up_proj` (raw), whose gate rows come first.
fn load_experts(tensors: &Tensors, at: &str, dims: &ModelDims) -> Result<Vec<Expert>, TestkitError> {
    let (count, width, hidden) = (dims.moe.experts, dims.moe.expert_width, dims.hidden);
    let rows = |from: &Matrix, first: usize, rows: usize| {
        Matrix::new(rows, from.inputs, from.values[first * from.inputs..(first + rows) * from.inputs].to_vec())
    };
    let down_name = |fused| if fused { "experts.down_proj" } else { "switch_mlp.down_proj" };
    let fused = tensors.map.contains_key(&format!("{at}.experts.gate_up_proj"));
    let down = tensors.matrix(&format!("{at}.{}", down_name(fused)), count * hidden, width)?;
    let down = |e: usize| rows(&down, e * hidden, hidden);
    if fused {
        let both = tensors.matrix(&format!("{at}.experts.gate_up_proj"), count * 2 * width, hidden)?;
        let part = |e: usize, half: usize| rows(&both, (2 * e + half) * width, width);
        return Ok((0..count).map(|e| Expert { gate: part(e, 0), up: part(e, 1), down: down(e) }).collect());
    }
    let gate = tensors.matrix(&format!("{at}.switch_mlp.gate_proj"), count * width, hidden)?;
    let up = tensors.matrix(&format!("{at}.switch_mlp.up_proj"), count * width, hidden)?;
    let expert = |e: usize| Expert { gate: rows(&gate, e * width, width), up: rows(&up, e * width, width), down: down(e) };
    Ok((0..count).map(expert).collect())
}

/// One tensor as stored.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The text tensors of a checkpoint under their names without the layout's prefix (`layers.0.mlp.gate.weight`).
struct Tensors {
    map: HashMap<String, Stored>,
    norms_lack_one: bool,
    /// What numbers of matrices are rounded to.
    matrices: Float,
}

impl Tensors {
    fn read(directory: &Path) -> Result<Self, TestkitError> {
        let listing = std::fs::read_dir(directory).map_err(|source| TestkitError::Io { path: directory.to_owned(), source })?;
        let mut map = HashMap::new();
        for path in listing.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|e| e != "safetensors") {
                continue;
            }
            let file = read_file(&path)?;
            let parsed = SafeTensors::deserialize(&file).map_err(|e| TestkitError::content(path.display().to_string(), e.to_string()))?;
            for (name, view) in parsed.iter() {
                if let Some(name) = plain_name(name) {
                    let (dtype, shape, bytes) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                    map.insert(name, Stored { dtype, shape, bytes });
                }
            }
        }
        let conv = map.iter().find(|(name, _)| name.ends_with("conv1d.weight"));
        let norms_lack_one = conv.is_some_and(|(_, conv)| conv.shape.last() != Some(&1));
        Ok(Self { map, norms_lack_one, matrices: Float::F32 })
    }

    fn get(&self, name: &str) -> Result<&Stored, TestkitError> {
        self.map.get(name).ok_or_else(|| TestkitError::content(name, "no such tensor in the checkpoint"))
    }

    fn round(&self, mut values: Vec<f64>) -> Vec<f64> {
        values.iter_mut().for_each(|value| *value = self.matrices.round(*value));
        values
    }

    /// A float tensor of `length` values, whatever its rank.
    fn vector(&self, name: &str, length: usize) -> Result<Vec<f64>, TestkitError> {
        let values = floats(name, self.get(name)?)?;
        if values.len() != length {
            return Err(TestkitError::content(name, format!("expected {length} values, file has {}", values.len())));
        }
        Ok(values)
    }

    /// The gain of a plain RMS norm, with the one added where the layout leaves it out.
    fn gain(&self, name: &str, length: usize) -> Result<Vec<f64>, TestkitError> {
        let one = if self.norms_lack_one { 1.0 } else { 0.0 };
        Ok(self.vector(name, length)?.into_iter().map(|w| w + one).collect())
    }

    /// `NAME.weight` (or `NAME` itself, for fused experts) as dense `[outputs, inputs]`, dequantised if it has scales.
    fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix, TestkitError> {
        let (weight, scales) = (format!("{name}.weight"), format!("{name}.scales"));
        if self.map.contains_key(&scales) {
            return self.quantised(name, outputs, inputs);
        }
        let stored = if self.map.contains_key(&weight) { &weight } else { name };
        Ok(Matrix::new(outputs, inputs, self.round(self.vector(stored, outputs * inputs)?)))
    }

    fn quantised(&self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix, TestkitError> {
        let weight = self.get(&format!("{name}.weight"))?;
        let scales = self.round(floats(name, self.get(&format!("{name}.scales"))?)?);
        let biases = self.round(floats(name, self.get(&format!("{name}.biases"))?)?);
        let words: Vec<u32> = weight.bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        let (bits, groups) = (words.len() * 32 / (outputs * inputs), scales.len() / outputs);
        let consistent = weight.dtype == Dtype::U32
            && [4, 8].contains(&bits)
            && words.len() * 32 == bits * outputs * inputs
            && scales.len() == groups * outputs
            && biases.len() == scales.len()
            && groups > 0
            && inputs.is_multiple_of(groups);
        if !consistent {
            let found = format!("{:?} {:?}, {} scales", weight.dtype, weight.shape, scales.len());
            return Err(TestkitError::content(name, format!("expected [{outputs}, {inputs}], file has {found}")));
        }
        Ok(dequantise(&Affine { bits, group: inputs / groups, inputs, words, scales, biases }))
    }
}

/// The name without the prefix of either layout; none for vision and multi-token-prediction tensors.
fn plain_name(name: &str) -> Option<String> {
    let text = name.strip_prefix("language_model.model.").or_else(|| name.strip_prefix("model.language_model."));
    if let Some(rest) = text {
        return Some(rest.to_owned());
    }
    let head = name.strip_prefix("language_model.").unwrap_or(name);
    if head.starts_with("lm_head.") {
        return Some(head.to_owned());
    }
    let rest = name.strip_prefix("model.")?;
    (!rest.starts_with("visual.")).then(|| rest.to_owned())
}

fn floats(name: &str, stored: &Stored) -> Result<Vec<f64>, TestkitError> {
    let bytes = &stored.bytes;
    match stored.dtype {
        Dtype::F32 => Ok(bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()),
        Dtype::BF16 => Ok(bytes.as_chunks().0.iter().map(|&b| half::bf16::from_le_bytes(b).to_f64()).collect()),
        Dtype::F16 => Ok(bytes.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f64()).collect()),
        other => Err(TestkitError::content(name, format!("expected f32, bf16 or f16, file has {other:?}"))),
    }
}
