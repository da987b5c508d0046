//! The proof side of Lily: everything an engine is checked against, and nothing an engine is built from.
//!
//! This crate depends on no other crate of the workspace. It reads checkpoints by itself and computes in f64, so
//! that a mistake shared between an engine and its check is unlikely. Start reading at:
//!
//! - [`mod@reference`]: every step of the model as one small f64 function, then whole layers and the whole model;
//! - [`checkpoint`]: loads a checkpoint directory (MLX or raw Hugging Face layout) as dense f64 matrices;
//! - [`generate`]: seeded inputs with awkward distributions, poisoned outputs, tiny random checkpoints on disk;
//! - [`golden`]: committed tensors from transformers and mlx-lm, the tolerances with their reasons, the comparison.

pub mod checkpoint;
mod error;
pub mod generate;
pub mod golden;
pub mod reference;

pub use error::TestkitError;
