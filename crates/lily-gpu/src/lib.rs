//! The model's fused steps as GPU kernels, from one source for three devices.
//!
//! Start with [`GpuDevice`] and [`steps`] (which launches make up a step). A pass is a [`CommandList`] of launches, from
//! which the true dependencies follow; a [`Backend`] runs such lists: the simulator in every test, CUDA, Metal. Kernels
//! are in `kernels/` at the root of the repository, [`translate`] reads them, [`launch`] binds them, [`policy`] chooses.

mod arena;
pub mod backend;
mod buffer;
pub mod commands;
mod device;
mod entries;
mod entry;
pub mod launch;
mod matrix;
mod model;
pub mod options;
mod pass;
pub mod policy;
mod select;
pub mod sources;
pub mod steps;
pub mod translate;

pub use backend::Backend;
pub use buffer::GpuBuffer;
pub use commands::{Access, CommandList, Launch, View};
pub use device::GpuDevice;
pub use options::{DeltaScan, GpuOptions, TileRows};
