//! The GPU engine on the simulator as the rings of `lily_testkit::ring` take it.

#![allow(dead_code)] // every ring is a program of its own and uses a part

use std::path::Path;

use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator, checked};
use lily_gpu::{GpuDevice, GpuOptions};
use lily_model::{Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::Float;
use lily_testkit::reference::{AttentionDims, DeltaDims, ModelDims};
use lily_testkit::ring::kernel::model;
use lily_testkit::ring::{Bound, Numerics, Subject, Tolerances};

/// The simulator with these options.
#[derive(Clone, Debug)]
pub struct Sim {
    pub gpu: GpuOptions,
    pub sim: SimOptions,
    /// The build that reports races, stray and unset memory.
    pub checked: bool,
}

impl Sim {
    /// The fast build on both cores of a small machine.
    pub fn fast() -> Self {
        let sim = SimOptions { threads: 2, ..SimOptions::default() };
        Sim { gpu: GpuOptions::default(), sim, checked: false }
    }

    /// The checked build, in either order of lanes.
    pub fn checked(reverse_lanes: bool) -> Self {
        let sim = SimOptions { reverse_lanes, poison_buffers: true, ..SimOptions::default() };
        Sim { gpu: GpuOptions::default(), sim, checked: true }
    }

    /// The same with other switches.
    pub fn with(&self, change: impl FnOnce(&mut GpuOptions)) -> Self {
        let mut changed = self.clone();
        change(&mut changed.gpu);
        changed
    }

    pub fn simulator(&self) -> Simulator {
        match self.checked {
            false => Simulator::built_in(),
            true => checked::load(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_else(|fault| panic!("{fault}")),
        }
    }
}

impl Subject for Sim {
    type Device = GpuDevice<SimBackend>;

    fn label(&self) -> String {
        let (build, lanes) = (if self.checked { "checked" } else { "fast" }, if self.sim.reverse_lanes { " reversed" } else { "" });
        format!("sim {build}{lanes} {:?}", self.gpu)
    }

    fn numerics(&self) -> Numerics {
        NUMERICS
    }

    fn tolerances(&self) -> Tolerances {
        TOLERANCES
    }

    fn rounded_weights(&self) -> Option<(usize, Float)> {
        ROUNDED_WEIGHTS
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<GpuDevice<SimBackend>, ModelError> {
        let backend = SimBackend::new(self.simulator(), self.sim.clone())?;
        GpuDevice::new(backend, config, weights, capacity, self.gpu)
    }
}

/// With few rows everything is f32; with many, operands are stored as half, and the rings read them back as such. Keys
/// and values are half always; tiles round queries to it as well.
pub const NUMERICS: Numerics = Numerics::f32(Float::F16);

/// Passes of more than eight rows go through tiles, which round dequantised weights to half.
pub const ROUNDED_WEIGHTS: Option<(usize, Float)> = Some((9, Float::F16));

/// Products on tiles round weights to half, 2^-12 of a value at most, and what they multiply that no buffer holds:
/// experts' activations, queries, attention weights.
pub const TOLERANCES: Tolerances = Tolerances {
    norm: 5e-4,
    delta: 5e-4,
    attention: 1e-3,
    projection: 1e-3,
    routes: 1e-3,
    experts: 1e-3,
    head: 1e-3,
    layer: Bound::Overall(5e-3),
    layer_attention: Bound::Overall(5e-3),
    ..Tolerances::F32
};

/// Heads that the kernels cover and that are no powers of two: 6 query heads, 2 key heads, 48 value columns, odd taps.
pub fn awkward() -> ModelDims {
    let attention = AttentionDims { heads_q: 6, heads_kv: 2, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    model(attention, DeltaDims { heads_k: 2, heads_v: 6, dim_k: 32, dim_v: 48, conv_width: 3 })
}
