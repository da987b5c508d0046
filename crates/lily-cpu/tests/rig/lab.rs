//! One DeltaNet and one attention layer of any dimensions, on the device and in the f64 reference: steps run one at a
//! time on operands that the test makes up.

use lily_cpu::{Buffer, CpuDevice, CpuOptions};
use lily_model::steps::Activations;
use lily_model::{Batch, Capacity, Checkpoint, Logits, ModelConfig, Page, Slot, Span, Steps, Weights};
use lily_testkit::checkpoint::load_model;
use lily_testkit::generate::{CheckpointSpec, Layout, Rng, poisoned_f32, write_checkpoint};
use lily_testkit::reference::{AttentionWeights, DeltaWeights, LayerWeights, MixerKind, MixerWeights, Model, ModelDims};

/// Index of the DeltaNet layer of a lab's model.
pub const DELTA: usize = 0;
/// Index of its attention layer.
pub const ATTENTION: usize = 1;

pub struct Lab {
    pub reference: Model,
    pub device: CpuDevice,
    pub buffers: Activations<Buffer>,
    pub rng: Rng,
}

/// One span of a pass: slot, position of the first token, rows, page ids.
#[derive(Clone, Debug)]
pub struct Part {
    pub slot: u32,
    pub start: usize,
    pub rows: usize,
    pub pages: Vec<Page>,
}

impl Lab {
    /// A random checkpoint with these dimensions, loaded by both sides.
    pub fn new(mut dims: ModelDims, options: CpuOptions, capacity: Capacity) -> Self {
        dims.mixers = vec![MixerKind::Delta, MixerKind::Attention];
        let directory = tempfile::tempdir().expect("a directory for the checkpoint");
        let mut spec = CheckpointSpec { dims, ..CheckpointSpec::default() };
        if [spec.dims.hidden, values(&spec.dims), queries(&spec.dims)].iter().any(|inputs| inputs % 64 != 0) {
            spec.layout = Layout::Raw; // 4-bit groups would not fit
        }
        write_checkpoint(directory.path(), &spec).expect("the checkpoint is written");
        let checkpoint = Checkpoint::open(directory.path()).expect("it opens");
        let config = ModelConfig::from_checkpoint(&checkpoint).expect("its configuration is valid");
        let weights = Weights::load(&checkpoint, &config).expect("its weights are complete");
        let mut device = CpuDevice::new(&config, &weights, capacity, options).expect("the device has room");
        let buffers = device.activations().expect("the device has room for activations");
        Lab { reference: load_model(directory.path()).expect("the reference loads it"), device, buffers, rng: Rng::new(11) }
    }

    /// Stages these spans; every row wants logits.
    pub fn stage(&mut self, parts: &[Part]) -> usize {
        let tokens: Vec<Vec<u32>> = parts.iter().map(|part| vec![0; part.rows]).collect();
        self.stage_tokens(parts, &tokens)
    }

    pub fn stage_tokens(&mut self, parts: &[Part], tokens: &[Vec<u32>]) -> usize {
        let span = |(part, tokens)| {
            let Part { slot, start, pages, .. }: &Part = part;
            let tokens: &Vec<u32> = tokens;
            Span { slot: Slot(*slot), start: *start, tokens, pages, logits: Logits::All }
        };
        let spans: Vec<Span<'_>> = parts.iter().zip(tokens).map(span).collect();
        self.device.stage(&Batch { spans: &spans });
        tokens.iter().map(Vec::len).sum()
    }

    /// Rows of the device's largest pass.
    pub fn device_rows(&self) -> usize {
        lily_model::Device::capacity(&self.device).rows
    }

    pub fn layer(&self, index: usize) -> &LayerWeights {
        &self.reference.layers[index]
    }

    pub fn delta_weights(&self) -> &DeltaWeights {
        match &self.layer(DELTA).mixer {
            MixerWeights::Delta(weights) => weights,
            MixerWeights::Attention(_) => unreachable!("a lab's first layer is DeltaNet"),
        }
    }

    pub fn attention_weights(&self) -> &AttentionWeights {
        match &self.layer(ATTENTION).mixer {
            MixerWeights::Attention(weights) => weights,
            MixerWeights::Delta(_) => unreachable!("a lab's second layer is attention"),
        }
    }
}

/// Inputs of the output projection of a DeltaNet layer.
pub fn values(dims: &ModelDims) -> usize {
    dims.delta.heads_v * dims.delta.dim_v
}

/// Inputs of the output projection of an attention layer.
pub fn queries(dims: &ModelDims) -> usize {
    dims.attention.heads_q * dims.attention.head_dim
}

/// Writes rows of `width` values into the leading columns of a buffer; the rest of it is poisoned.
pub fn fill(buffer: &mut Buffer, values: &[f32], width: usize) {
    let stride = buffer.values().width();
    poison(buffer, values.len() / width);
    let out = buffer.values_mut().first_mut(values.len() / width);
    for (row, values) in out.chunks_exact_mut(stride).zip(values.chunks_exact(width)) {
        row[..width].copy_from_slice(values);
    }
}

/// Poisons the first rows of a buffer.
pub fn poison(buffer: &mut Buffer, rows: usize) {
    let out = buffer.values_mut().first_mut(rows);
    let poison = poisoned_f32(out.len());
    out.copy_from_slice(&poison);
}

/// The leading `width` columns of the first rows of a buffer.
pub fn columns(buffer: &Buffer, rows: usize, width: usize) -> Vec<f32> {
    let values = buffer.values();
    values.first(rows).chunks_exact(values.width()).flat_map(|row| row[..width].to_vec()).collect()
}

/// To f64, the reference's element.
pub fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
