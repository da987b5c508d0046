//! The model's fused steps as GPU kernels, from one source for three devices.
//!
//! Start with [`commands`]: a pass is a list of launches, from which the true dependencies follow. A [`Backend`] runs
//! such lists: the simulator in every test, CUDA, Metal. Kernels are in `kernels/` at the root of the repository.

pub mod backend;
pub mod commands;
pub mod sources;
pub mod translate;

pub use backend::Backend;
pub use commands::{Access, CommandList, Launch, View};
