//! The model, named by no device: configuration, checkpoint, weights, and the one forward pass.
//!
//! Start with [`forward`]: the whole model on one page, written over the trait of fused steps in
//! [`steps`]. A device (CPU, Metal, CUDA, simulator) implements those steps; [`runner`] joins the two
//! into what the engine drives.

pub mod apple;
pub mod batch;
pub mod checkpoint;
pub mod config;
pub mod error;
mod fields;
mod fingerprint;
pub mod footprint;
pub mod forward;
mod load;
mod presets;
pub mod runner;
pub mod select;
mod shard;
pub mod steps;
pub mod storage;
pub mod synth;
pub mod trace;
pub mod weights;

pub use batch::{Batch, Logits, NEXT, PAGE_TOKENS, Page, Slot, Span};
pub use checkpoint::{Bytes, Checkpoint, Dtype, Tensor};
pub use config::{LayerKind, ModelConfig};
pub use error::ModelError;
pub use footprint::Footprint;
pub use runner::{Capacity, Choice, Device, Runner, StateCopy, Ticket};
pub use select::{Selection, select_token};
pub use steps::{Activations, NormSite, Steps};
pub use storage::{Affine, Quantization, Storage};
pub use synth::Synth;
pub use trace::{Record, Traced};
pub use weights::{AttentionWeights, DeltaWeights, Experts, LayerWeights, Matrix, MatrixData, Mixer, SharedExpert, Weights};
