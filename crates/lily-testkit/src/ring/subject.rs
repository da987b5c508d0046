//! What a ring must know of a device: how to open it, what it rounds to, how far it may be off.

use lily_model::{Capacity, Device, ModelConfig, ModelError, Weights};

use crate::generate::Float;
use crate::golden::{Comparison, Element, compare, tolerance::STEP_F32, worst_row};

/// A device under test, with its options.
pub trait Subject {
    /// The device.
    type Device: Device;

    /// Names device and options in every message.
    fn label(&self) -> String;

    /// What it rounds operands to; the reference does the same, so that tolerances stay tight.
    fn numerics(&self) -> Numerics;

    /// From how many rows of a pass on its products round the dequantised weights too, and to what, as tiles do; `None`
    /// if they never do. Router and shared expert's gate are not meant.
    fn rounded_weights(&self) -> Option<(usize, Float)> {
        None
    }

    /// What it keeps scales, biases and plain matrices in, where a checkpoint has finer numbers.
    fn stored(&self) -> Float {
        Float::F32
    }

    /// How far it may be off in the kernel and layer rings.
    fn tolerances(&self) -> Tolerances;

    /// A fresh device. The files behind the weights may be gone by the time it is used.
    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<Self::Device, ModelError>;
}

/// What a device rounds to on the way into a product. What it stores in buffers needs no mention: the rings read every
/// operand back after they wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// Keys and values in the KV pages.
    pub cache: Float,
    /// Inputs of projections, experts and head, and the experts' activations before the second product.
    pub operands: Float,
    /// Inputs of the router and of the shared expert's gate.
    pub router: Float,
    /// Queries, before their products with keys.
    pub queries: Float,
}

impl Numerics {
    /// f32 throughout but for the pages.
    pub const fn f32(cache: Float) -> Self {
        Self { cache, operands: Float::F32, router: Float::F32, queries: Float::F32 }
    }

    /// Rounds what enters a product.
    pub(crate) fn operand(&self, values: &[f64]) -> Vec<f64> {
        round(self.operands, values)
    }
}

/// Every value as this type would hold it.
pub(crate) fn round(float: Float, values: &[f64]) -> Vec<f64> {
    values.iter().map(|&value| float.round(value)).collect()
}

/// How far the tensors of a whole pass may be off, relative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Every row.
    EveryRow(f64),
    /// All rows together: for activations so coarse that a row here and there takes other experts.
    Overall(f64),
}

impl Bound {
    /// The relative error that is tolerated.
    pub fn tolerance(self) -> f64 {
        match self {
            Self::EveryRow(tolerance) | Self::Overall(tolerance) => tolerance,
        }
    }

    /// The worst row, or all rows: what the tolerance applies to.
    pub(crate) fn compare<R: Element>(self, label: &str, found: &[f32], expected: &[R], width: usize) -> Comparison {
        match self {
            Self::EveryRow(_) => worst_row(label, found, expected, width),
            Self::Overall(_) => compare(label, found, expected),
        }
    }
}

/// Relative errors that a device may make: of a row, `‖out - reference‖ / ‖reference‖`, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// A row of the embedding.
    pub embed: f64,
    /// An RMS norm.
    pub norm: f64,
    /// Keys after norm and rotation. On top of it comes the rounding of the angle to f32, which grows with the position.
    pub keys: f64,
    /// DeltaNet's update over all rows of a span; a single row may be four times as far off.
    pub delta: f64,
    /// Attention; the angles come on top as for keys.
    pub attention: f64,
    /// Projections, and the mixer's output onto the residual.
    pub projection: f64,
    /// The routes' weights and the shared expert's gate.
    pub routes: f64,
    /// Both products of the experts, onto the residual.
    pub experts: f64,
    /// Final norm and language-model head.
    pub head: f64,
    /// Margin of the router's probabilities below which rounding may choose another expert: see [`super::ties`].
    pub near_tie: f64,
    /// The layer ring before the first attention layer.
    pub layer: Bound,
    /// The layer ring from the first attention layer on.
    pub layer_attention: Bound,
}

impl Tolerances {
    /// A device that computes in f32 and holds keys and values in half precision.
    pub const F32: Self = Self {
        embed: 1e-6,
        norm: STEP_F32,
        keys: STEP_F32,
        delta: STEP_F32,
        // Where keys round to another half float than the reference's, weights shift.
        attention: 4e-5,
        projection: STEP_F32,
        routes: STEP_F32,
        experts: STEP_F32,
        head: STEP_F32,
        near_tie: 1e-6,
        layer: Bound::EveryRow(3e-5),
        // Keys and values are held in half precision (2^-12 of an element), and where scores are large a key's rounding
        // shifts weights by as much as a thousandth.
        layer_attention: Bound::EveryRow(1e-3),
    };
}
