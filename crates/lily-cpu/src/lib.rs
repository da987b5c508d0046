//! The model's fused steps on the processor: SIMD with run-time dispatch, weights read from the mapped file.
//!
//! Start with [`CpuDevice`] and [`steps`] (what each step does and how it is cut into parallel work). Matrix products,
//! nearly all of the time, are in [`matrix`], with activations from [`quantise`]; the threads are a [`team`]. The rest:
//! `delta` and `attention` (the two mixers), `state` and `kv` (what a sequence keeps), `simd` (vectors for all of it).

mod arena;
mod attention;
pub mod buffer;
pub mod convert;
mod delta;
mod device;
pub mod isa;
mod kv;
mod layers;
pub mod matrix;
mod norm;
mod options;
pub mod quantise;
mod rope;
mod route;
mod simd;
mod staged;
mod state;
pub mod steps;
pub mod team;

pub use buffer::Buffer;
pub use device::CpuDevice;
pub use isa::Isa;
pub use options::CpuOptions;
pub use quantise::Activations;
