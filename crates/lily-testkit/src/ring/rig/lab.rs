//! One DeltaNet and one attention layer of any dimensions, on the device and in the f64 reference: steps run one at a
//! time on operands that the test makes up.

use std::borrow::Cow;

use lily_model::{Activations, Batch, Capacity, Device, Logits, PAGE_TOKENS, Page, Slot, Span};

use super::super::subject::round;
use super::super::{Numerics, Subject, Tolerances};
use crate::checkpoint::load_model;
use crate::generate::{CheckpointSpec, Float, Layout, POISON_F32, Rng, write_checkpoint};
use crate::reference::{AttentionWeights, DeltaWeights, LayerWeights, Matrix, MixerKind, MixerWeights, Model, ModelDims};

/// Index of the DeltaNet layer of a lab's model.
pub const DELTA: usize = 0;
/// Index of its attention layer.
pub const ATTENTION: usize = 1;

/// What writing a buffer may lose at most: bf16's last bit.
const STORED: f64 = 1.0 / 256.0;
/// Half a step of half precision's smallest numbers.
const SUBNORMAL: f64 = 3e-8;

/// A model of two layers on both sides.
pub struct Lab<D: Device> {
    /// Names device and options.
    pub label: String,
    /// The f64 side.
    pub reference: Model,
    /// The device's side.
    pub device: D,
    /// The device's buffers; [`Lab::step`] lends them to steps.
    pub buffers: Activations<D::Buffer>,
    /// What the device rounds to.
    pub numerics: Numerics,
    /// See [`Subject::rounded_weights`].
    pub rounded_weights: Option<(usize, Float)>,
    /// How far it may be off.
    pub tolerances: Tolerances,
    /// The source of all operands.
    pub rng: Rng,
}

/// One span of a pass: slot, position of the first token, rows, page ids.
#[derive(Clone, Debug)]
pub struct Part {
    /// Recurrent state.
    pub slot: u32,
    /// Position of the first row.
    pub start: usize,
    /// Number of rows.
    pub rows: usize,
    /// Page table.
    pub pages: Vec<Page>,
}

impl Part {
    /// Rows of a single sequence from position 0, in slot 0 and pages from 0 on.
    pub fn single(rows: usize) -> Self {
        let pages = rows.div_ceil(PAGE_TOKENS).max(1) as u32;
        Part { slot: 0, start: 0, rows, pages: (0..pages).map(Page).collect() }
    }
}

impl<D: Device> Lab<D> {
    /// A random checkpoint with these dimensions (layers aside), loaded by both sides.
    pub fn new<S: Subject<Device = D>>(subject: &S, mut dims: ModelDims, capacity: Capacity) -> Self {
        dims.mixers = vec![MixerKind::Delta, MixerKind::Attention];
        let directory = tempfile::tempdir().expect("a directory for the checkpoint");
        let context_max = capacity.pages * PAGE_TOKENS;
        let mut spec = CheckpointSpec { dims, context_max, ..CheckpointSpec::default() };
        if [spec.dims.hidden, values(&spec.dims), queries(&spec.dims)].iter().any(|inputs| inputs % 64 != 0) {
            spec.layout = Layout::Raw; // 4-bit groups would not fit
        }
        write_checkpoint(directory.path(), &spec).expect("the checkpoint is written");
        let (_, mut device) = super::open_device(subject, directory.path(), capacity);
        let buffers = device.activations().expect("the device has room for activations");
        Lab {
            label: subject.label(),
            reference: load_model(directory.path()).expect("the reference loads it"),
            device,
            buffers,
            numerics: subject.numerics(),
            rounded_weights: subject.rounded_weights(),
            tolerances: subject.tolerances(),
            rng: Rng::new(11),
        }
    }

    /// Stages these spans; every row wants logits. Returns the number of rows.
    pub fn stage(&mut self, parts: &[Part]) -> usize {
        let tokens: Vec<Vec<u32>> = parts.iter().map(|part| vec![0; part.rows]).collect();
        self.stage_tokens(parts, &tokens)
    }

    /// The same with tokens of the caller's.
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

    /// Runs a step to its end, on a device that records as on one that computes at once.
    pub fn step(&mut self, step: impl FnOnce(&mut D, &mut Activations<D::Buffer>)) {
        step(&mut self.device, &mut self.buffers);
        let flushed = self.device.flush();
        flushed.unwrap_or_else(|error| panic!("{}: the step does not run: {error}", self.label));
    }

    /// The head over the residual; returns the logits of all rows, `[rows, vocab]`.
    pub fn head(&mut self, rows: usize) -> Vec<f32> {
        self.step(|device, buffers| device.head(rows, &buffers.residual));
        self.device.finish().expect("the pass ends");
        (0..rows).flat_map(|row| self.device.logits(row).to_vec()).collect()
    }

    /// Rows of the device's largest pass.
    pub fn device_rows(&self) -> usize {
        self.device.capacity().rows
    }

    /// Writes rows of `width` values into the leading columns of a buffer; the rest of it is poisoned. Returns them as
    /// the device stores them, which is what a step sees.
    pub fn fill(&mut self, buffer: Which, values: &[f32], width: usize) -> Vec<f64> {
        let rows = values.len() / width;
        let (device, buffer) = (&mut self.device, buffer.of(&mut self.buffers));
        let stride = device.read(buffer, 1).len();
        assert!(width <= stride, "{width} values do not fit into rows of {stride}");
        let mut padded = vec![poison(); rows * stride];
        for (row, values) in padded.chunks_exact_mut(stride).zip(values.chunks_exact(width)) {
            row[..width].copy_from_slice(values);
        }
        device.write(buffer, rows, &padded);
        let stored = leading(&device.read(buffer, rows), rows, width);
        for (&stored, &value) in stored.iter().zip(values) {
            let kept = if value.is_nan() {
                stored.is_nan()
            } else {
                f64::from((stored - value).abs()) <= STORED * f64::from(value.abs()) + SUBNORMAL
            };
            assert!(kept, "{}: {value} was written and {stored} read back", self.label);
        }
        exact(&stored)
    }

    /// Poisons the first rows of a buffer of activations.
    pub fn poison(&mut self, buffer: Which, rows: usize) {
        let (device, buffer) = (&mut self.device, buffer.of(&mut self.buffers));
        let stride = device.read(buffer, 1).len();
        device.write(buffer, rows, &vec![poison(); rows * stride]);
        assert!(device.read(buffer, rows).iter().all(|value| value.is_nan()), "{}: poison is not kept", self.label);
    }

    /// The leading `width` columns of the first rows of a buffer.
    pub fn columns(&mut self, buffer: Which, rows: usize, width: usize) -> Vec<f32> {
        let values = self.device.read(buffer.of(&mut self.buffers), rows);
        leading(&values, rows, width)
    }

    /// All columns of them.
    pub fn all(&mut self, buffer: Which, rows: usize) -> Vec<f32> {
        self.device.read(buffer.of(&mut self.buffers), rows)
    }

    /// A matrix as the device multiplies with it in a pass of `rows` rows.
    pub fn weights<'a>(&self, matrix: &'a Matrix, rows: usize) -> Cow<'a, Matrix> {
        match self.rounded_weights {
            Some((from, float)) if rows >= from => Cow::Owned(Matrix::new(matrix.outputs, matrix.inputs, round(float, &matrix.values))),
            _ => Cow::Borrowed(matrix),
        }
    }

    /// The product of `rows` rows with operands and weights as the device rounds them.
    pub fn product(&self, matrix: &Matrix, rows: usize, x: &[f64]) -> Vec<f64> {
        self.weights(matrix, rows).apply(&self.numerics.operand(x))
    }

    /// The reference's weights of a layer.
    pub fn layer(&self, index: usize) -> &LayerWeights {
        &self.reference.layers[index]
    }

    /// The mixer of layer [`DELTA`].
    pub fn delta_weights(&self) -> &DeltaWeights {
        match &self.layer(DELTA).mixer {
            MixerWeights::Delta(weights) => weights,
            MixerWeights::Attention(_) => unreachable!("a lab's first layer is DeltaNet"),
        }
    }

    /// The mixer of layer [`ATTENTION`].
    pub fn attention_weights(&self) -> &AttentionWeights {
        match &self.layer(ATTENTION).mixer {
            MixerWeights::Attention(weights) => weights,
            MixerWeights::Delta(_) => unreachable!("a lab's second layer is attention"),
        }
    }
}

/// A buffer by name, where the lab must be borrowed as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// [`Activations::residual`].
    Residual,
    /// [`Activations::normed`].
    Normed,
    /// [`Activations::projected`].
    Projected,
    /// [`Activations::mixed`].
    Mixed,
    /// [`Activations::routes`].
    Routes,
    /// [`Activations::expert_hidden`].
    ExpertHidden,
}

impl Which {
    fn of<B>(self, buffers: &mut Activations<B>) -> &mut B {
        match self {
            Self::Residual => &mut buffers.residual,
            Self::Normed => &mut buffers.normed,
            Self::Projected => &mut buffers.projected,
            Self::Mixed => &mut buffers.mixed,
            Self::Routes => &mut buffers.routes,
            Self::ExpertHidden => &mut buffers.expert_hidden,
        }
    }
}

fn poison() -> f32 {
    f32::from_bits(POISON_F32)
}

fn leading(values: &[f32], rows: usize, width: usize) -> Vec<f32> {
    values.chunks_exact(values.len() / rows).flat_map(|row| row[..width].to_vec()).collect()
}

/// Panics if a step left poison behind, or computed NaN. A device may store the poison in fewer bits, so any NaN counts.
pub fn assert_no_nan(name: &str, values: &[f32]) {
    let left = values.iter().filter(|value| value.is_nan()).count();
    if let Some(first) = values.iter().position(|value| value.is_nan()) {
        panic!("{name}: {left} of {} elements were never written or are NaN, the first at {first}", values.len());
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

/// To f64, the reference's element.
pub fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
