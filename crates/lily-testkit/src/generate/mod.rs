//! Seeded material for tests: inputs that real activations resemble and that break careless kernels, quantised
//! matrices, poisoned outputs, and tiny checkpoints on disk to load, run and damage.
//!
//! Everything follows from the seed alone, on every machine.

mod checkpoint;
mod inputs;
mod poison;
mod quantised;
mod rng;
mod spec;
mod tensors;
mod tokenizer;

pub use checkpoint::write_checkpoint;
pub use inputs::Distribution;
pub use poison::{POISON_BF16, POISON_F32, assert_written, poisoned_bf16, poisoned_f32};
pub use quantised::{Float, random_affine};
pub use rng::Rng;
pub use spec::{CheckpointSpec, Layout, OverrideSpelling, config_json, tiny_dims};
pub use tensors::{TensorData, read_tensors, write_tensors};
pub use tokenizer::byte_tokenizer_json;
