//! The proof side of Lily: everything an engine is checked against, and nothing an engine is built from.
//!
//! The reference depends on no other crate of the workspace: it reads checkpoints by itself and computes in f64, so
//! that a mistake shared between an engine and its check is unlikely. Only [`ring`], which drives devices, knows the
//! engine's traits. Start reading at:
//!
//! - [`mod@reference`]: every step of the model as one small f64 function, then whole layers and the whole model;
//! - [`checkpoint`]: loads a checkpoint directory (MLX or raw Hugging Face layout) as dense f64 matrices;
//! - [`generate`]: seeded inputs with awkward distributions, poisoned outputs, tiny random checkpoints on disk;
//! - [`golden`]: committed tensors from transformers and mlx-lm, the tolerances with their reasons, the comparison;
//! - [`ring`]: the tests that every device passes: kernels, layers, models.

pub mod checkpoint;
mod error;
pub mod generate;
pub mod golden;
pub mod reference;
pub mod ring;

pub use error::TestkitError;
