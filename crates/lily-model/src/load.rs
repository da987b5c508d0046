//! From the checkpoint's tensors to [`Weights`]: names, layouts, checks.
//!
//! Start with [`Weights::load`]. Two layouts are read: MLX (quantised or not; experts stacked in
//! `switch_mlp`; norm gains with one already added; convolution `[channels, width, 1]`) and raw Hugging
//! Face (floats; experts fused in `experts.gate_up_proj`, or one by one; gains without the one;
//! convolution `[channels, 1, width]`). The convolution alone decides whether gains lack the one: it is
//! what converters transpose when they fold the one in.

use std::collections::HashSet;

use half::{bf16, f16};

use crate::checkpoint::{Bytes, Checkpoint, Dtype, Tensor};
use crate::config::{LayerKind, ModelConfig};
use crate::error::ModelError;
use crate::storage::Storage;
use crate::weights::{AttentionWeights, DeltaWeights, Experts, LayerWeights, Matrix, MatrixData, Mixer, SharedExpert, Weights};

/// Before the text model's tensors, and the head's name that goes with it.
const ROOTS: [(&str, &str); 3] =
    [("language_model.model.", "language_model.lm_head"), ("model.language_model.", "lm_head"), ("model.", "lm_head")];

/// Types of plain weights, and of scales.
const FLOATS: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

impl ModelConfig {
    /// The configuration of a checkpoint.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        Self::from_json(&checkpoint.file("config.json")?)
    }
}

impl Weights {
    /// Finds and checks every tensor that the configuration asks for. Matrices stay mapped and unread;
    /// vectors are converted. Errors name the tensor, what was expected and what the file has.
    pub fn load(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<Self, ModelError> {
        let mut loader = Loader::new(checkpoint, config)?;
        let (hidden, vocab) = (config.hidden, config.vocab);
        let (root, head) = (loader.root, loader.head);
        let embedding = loader.matrix(&format!("{root}embed_tokens"), &[vocab], hidden)?;
        let head = if loader.storage.tied_head { embedding.clone() } else { loader.matrix(head, &[vocab], hidden)? };
        let layers = config.layers.iter().enumerate().map(|(layer, &kind)| loader.layer(layer, kind)).collect::<Result<_, _>>()?;
        let norm = loader.gain(&format!("{root}norm.weight"), hidden)?;
        Ok(Weights { embedding, layers, norm, head, ignored: loader.ignored() })
    }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    storage: Storage,
    /// Prefix of the text model's tensors.
    root: &'static str,
    head: &'static str,
    /// Raw layout: gains lack the one, convolutions are `[channels, 1, width]`.
    raw: bool,
    used: HashSet<String>,
}

impl<'a> Loader<'a> {
    fn new(checkpoint: &'a Checkpoint, config: &'a ModelConfig) -> Result<Self, ModelError> {
        let storage = Storage::from_json(&checkpoint.file("config.json")?)?;
        let found = ROOTS.into_iter().find(|(root, _)| checkpoint.tensor(&format!("{root}embed_tokens.weight")).is_some());
        let (root, head) = found.unwrap_or(ROOTS[0]);
        let mut loader = Loader { checkpoint, config, storage, root, head, raw: false, used: HashSet::new() };
        loader.raw = loader.has_raw_convolution()?;
        // Another model's config.json would leave layers out, and the text would be noise.
        let layers = config.layers.len();
        if loader.has(&format!("{root}layers.{layers}.input_layernorm.weight")) {
            return Err(ModelError::Config(format!("num_hidden_layers: expected all layers, found {layers}; the checkpoint has more")));
        }
        Ok(loader)
    }

    /// Looks at the first convolution; without a DeltaNet layer, the layout is taken to be MLX's.
    fn has_raw_convolution(&self) -> Result<bool, ModelError> {
        let Some(layer) = self.config.layers.iter().position(|&kind| kind == LayerKind::Delta) else { return Ok(false) };
        let (channels, width) = (self.config.conv_dim(), self.config.conv_width);
        let name = format!("{}layers.{layer}.linear_attn.conv1d.weight", self.root);
        match self.checkpoint.tensor(&name) {
            Some(conv) if conv.shape == [channels, width, 1] => Ok(false),
            Some(conv) if conv.shape == [channels, 1, width] => Ok(true),
            found => Err(unlike(&name, format!("[{channels}, {width}, 1] or [{channels}, 1, {width}]"), found)),
        }
    }

    fn layer(&mut self, layer: usize, kind: LayerKind) -> Result<LayerWeights, ModelError> {
        let ModelConfig { hidden, experts, expert_width, shared_width, .. } = *self.config;
        let at = format!("{}layers.{layer}.", self.root);
        let mlp = format!("{at}mlp.");
        let (gate, up, down) = self.experts(&mlp, experts, expert_width, hidden)?;
        Ok(LayerWeights {
            mixer_norm: self.gain(&format!("{at}input_layernorm.weight"), hidden)?,
            mixer: match kind {
                LayerKind::Delta => Mixer::Delta(self.delta(&format!("{at}linear_attn."))?),
                LayerKind::Attention => Mixer::Attention(self.attention(&format!("{at}self_attn."))?),
            },
            experts_norm: self.gain(&format!("{at}post_attention_layernorm.weight"), hidden)?,
            router: self.matrix(&format!("{mlp}gate"), &[experts], hidden)?,
            gate,
            up,
            down,
            shared: SharedExpert {
                gate: self.matrix(&format!("{mlp}shared_expert.gate_proj"), &[shared_width], hidden)?,
                up: self.matrix(&format!("{mlp}shared_expert.up_proj"), &[shared_width], hidden)?,
                down: self.matrix(&format!("{mlp}shared_expert.down_proj"), &[hidden], shared_width)?,
                route: self.matrix(&format!("{mlp}shared_expert_gate"), &[1], hidden)?,
            },
        })
    }

    fn delta(&mut self, at: &str) -> Result<DeltaWeights, ModelError> {
        let config = self.config;
        let ModelConfig { hidden, heads_v, dim_v, conv_width, .. } = *config;
        let channels = config.conv_dim();
        let conv_shape = if self.raw { [channels, 1, conv_width] } else { [channels, conv_width, 1] };
        Ok(DeltaWeights {
            qkv: self.matrix(&format!("{at}in_proj_qkv"), &[channels], hidden)?,
            z: self.matrix(&format!("{at}in_proj_z"), &[config.v_width()], hidden)?,
            b: self.matrix(&format!("{at}in_proj_b"), &[heads_v], hidden)?,
            a: self.matrix(&format!("{at}in_proj_a"), &[heads_v], hidden)?,
            conv: self.vector(&format!("{at}conv1d.weight"), &conv_shape)?,
            decay_rate: self.vector(&format!("{at}A_log"), &[heads_v])?.into_iter().map(f32::exp).collect(),
            dt_bias: self.vector(&format!("{at}dt_bias"), &[heads_v])?,
            norm: self.vector(&format!("{at}norm.weight"), &[dim_v])?,
            out: self.matrix(&format!("{at}out_proj"), &[hidden], config.v_width())?,
        })
    }

    fn attention(&mut self, at: &str) -> Result<AttentionWeights, ModelError> {
        let config = self.config;
        let ModelConfig { hidden, head_dim, .. } = *config;
        Ok(AttentionWeights {
            q: self.matrix(&format!("{at}q_proj"), &[2 * config.q_width()], hidden)?,
            k: self.matrix(&format!("{at}k_proj"), &[config.kv_width()], hidden)?,
            v: self.matrix(&format!("{at}v_proj"), &[config.kv_width()], hidden)?,
            q_norm: self.gain(&format!("{at}q_norm.weight"), head_dim)?,
            k_norm: self.gain(&format!("{at}k_norm.weight"), head_dim)?,
            out: self.matrix(&format!("{at}o_proj"), &[hidden], config.q_width())?,
        })
    }

    /// Gate, up and down of every expert, from whichever of the three layouts the layer has.
    fn experts(&mut self, mlp: &str, experts: usize, width: usize, hidden: usize) -> Result<(Experts, Experts, Experts), ModelError> {
        let part = |rows, stride, first_row, data| Experts { experts, rows, stride, first_row, data };
        let fused = format!("{mlp}experts.gate_up_proj");
        if self.has(&fused) {
            let both = self.plain_matrix(&fused, &[experts, 2 * width], hidden)?;
            let down = self.plain_matrix(&format!("{mlp}experts.down_proj"), &[experts, hidden], width)?;
            return Ok((part(width, 2 * width, 0, both.clone()), part(width, 2 * width, width, both), part(hidden, hidden, 0, down)));
        }
        let single = self.has(&format!("{mlp}experts.0.gate_proj.weight"));
        let mut load = |name: &str, rows: usize, cols: usize| {
            let data = match single {
                true => self.gathered(mlp, name, [experts, rows, cols])?,
                false => self.matrix(&format!("{mlp}switch_mlp.{name}"), &[experts, rows], cols)?,
            };
            Ok(part(rows, rows, 0, data))
        };
        Ok((load("gate_proj", width, hidden)?, load("up_proj", width, hidden)?, load("down_proj", hidden, width)?))
    }

    /// One projection of experts that have a tensor each, copied together: the one case where loading
    /// reads matrices. Large checkpoints do not come like this.
    fn gathered(&mut self, mlp: &str, name: &str, [experts, rows, cols]: [usize; 3]) -> Result<Matrix, ModelError> {
        let mut values = Vec::new();
        let mut dtype = None;
        for expert in 0..experts {
            let tensor = self.expect(&format!("{mlp}experts.{expert}.{name}.weight"), &[rows, cols], dtype.as_slice(), "")?;
            dtype = tensor.dtype;
            values.extend_from_slice(&tensor.bytes);
        }
        let dtype = dtype.expect("there is an expert, and its type was checked");
        Ok(Matrix { rows: experts * rows, cols, data: MatrixData::Plain { dtype, values: Bytes::owned(values) } })
    }

    /// `name` with scales if it is quantised, else plain. Shape `[lead.., cols]`; its rows are the product of `lead`.
    fn matrix(&mut self, name: &str, lead: &[usize], cols: usize) -> Result<Matrix, ModelError> {
        if !self.has(&format!("{name}.scales")) {
            return self.plain_matrix(&format!("{name}.weight"), lead, cols);
        }
        let Some(quantization) = &self.storage.quantization else {
            return Err(ModelError::Config(format!(
                "quantization: expected this section, as tensor {name}.scales is there; it is missing"
            )));
        };
        let format = quantization.of(crate::storage::plain_name(name));
        let (bits, group) = (format.bits, format.group);
        if !cols.is_multiple_of(group) {
            let expected = format!("rows of whole groups of {group}");
            return Err(ModelError::Tensor { name: name.into(), expected, found: format!("config.json asks for rows of {cols}") });
        }
        let shape = |last: usize| [lead, &[last]].concat();
        let note = format!(" ({bits}-bit, groups of {group})");
        let codes = self.expect(&format!("{name}.weight"), &shape(cols * bits / 32), &[Dtype::U32], &note)?.bytes.clone();
        let scales = self.expect(&format!("{name}.scales"), &shape(cols / group), &FLOATS, &note)?;
        let (scale_dtype, scales) = (checked(scales.dtype), scales.bytes.clone());
        let biases = self.expect(&format!("{name}.biases"), &shape(cols / group), &[scale_dtype], &note)?.bytes.clone();
        let data = MatrixData::Affine { bits, group, codes, scales, biases, scale_dtype };
        Ok(Matrix { rows: lead.iter().product(), cols, data })
    }

    fn plain_matrix(&mut self, name: &str, lead: &[usize], cols: usize) -> Result<Matrix, ModelError> {
        let tensor = self.expect(name, &[lead, &[cols]].concat(), &FLOATS, "")?;
        let data = MatrixData::Plain { dtype: checked(tensor.dtype), values: tensor.bytes.clone() };
        Ok(Matrix { rows: lead.iter().product(), cols, data })
    }

    /// Gain of a norm, `[width]`, with the one that the raw layout leaves out.
    fn gain(&mut self, name: &str, width: usize) -> Result<Vec<f32>, ModelError> {
        let one = if self.raw { 1.0 } else { 0.0 };
        Ok(self.vector(name, &[width])?.into_iter().map(|w| w + one).collect())
    }

    fn vector(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let tensor = self.expect(name, shape, &FLOATS, "")?;
        Ok(floats(checked(tensor.dtype), &tensor.bytes))
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    /// The tensor `name`, if it has this shape and one of these types (none: any float).
    fn expect(&mut self, name: &str, shape: &[usize], dtypes: &[Dtype], note: &str) -> Result<&'a Tensor, ModelError> {
        let dtypes = if dtypes.is_empty() { &FLOATS } else { dtypes };
        match self.checkpoint.tensor(name) {
            Some(tensor) if tensor.shape == shape && tensor.dtype.is_some_and(|dtype| dtypes.contains(&dtype)) => {
                self.used.insert(name.to_owned());
                Ok(tensor)
            }
            found => {
                let types: Vec<String> = dtypes.iter().map(|dtype| format!("{dtype:?}").to_uppercase()).collect();
                Err(unlike(name, format!("{shape:?} {}{note}", types.join(" or ")), found))
            }
        }
    }

    /// Tensors that nothing asked for, sorted; reported once.
    fn ignored(&self) -> Vec<String> {
        let mut ignored: Vec<String> = self.checkpoint.names().filter(|&name| !self.used.contains(name)).map(str::to_owned).collect();
        ignored.sort_unstable();
        if !ignored.is_empty() {
            let examples = ignored[..ignored.len().min(3)].join(", ");
            tracing::info!(tensors = ignored.len(), examples, "the checkpoint has tensors that this engine does not use");
        }
        ignored
    }
}

fn unlike(name: &str, expected: String, found: Option<&Tensor>) -> ModelError {
    let found = match found {
        Some(tensor) => format!("file has {}", tensor.describe()),
        None => "the checkpoint has no such tensor".into(),
    };
    ModelError::Tensor { name: name.to_owned(), expected, found }
}

/// The type of a tensor that [`Loader::expect`] let through.
fn checked(dtype: Option<Dtype>) -> Dtype {
    dtype.expect("the tensor's type was checked to be one of the allowed ones")
}

/// A float tensor's values.
fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect(),
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|&value| bf16::from_le_bytes(value).to_f32()).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&value| f16::from_le_bytes(value).to_f32()).collect(),
        Dtype::U32 => unreachable!("vectors are checked to be floats"),
    }
}
