//! The simulator, fast and checked.

use std::path::Path;

use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator, checked};
use lily_gpu::{GpuDevice, GpuOptions};
use lily_model::{Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::Float;
use lily_testkit::ring::{Bound, Numerics, Subject, Tolerances};

use super::{MODEL, NUMERICS, ROUNDED_WEIGHTS, STORED, TOLERANCES};

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

    /// The same with native kernels where they cover a matrix.
    pub fn native(&self) -> Self {
        Sim { sim: SimOptions { native: true, ..self.sim.clone() }, ..self.clone() }
    }

    /// The same with other switches.
    pub fn with(&self, change: impl FnOnce(&mut GpuOptions)) -> Self {
        let mut changed = self.clone();
        change(&mut changed.gpu);
        changed
    }

    /// Matrices that are expanded in memory are bf16 there, with three bits less than half.
    fn coarser(&self) -> f64 {
        if self.gpu.fused_dequantise { 1.0 } else { 8.0 }
    }

    /// Of the logits of whole models, beside near-ties.
    pub fn model_bound(&self) -> Bound {
        Bound::Overall(MODEL.tolerance() * self.coarser())
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
        let kernels = if self.sim.native { " native" } else { "" };
        format!("sim {build}{lanes}{kernels} {:?}", self.gpu)
    }

    fn numerics(&self) -> Numerics {
        NUMERICS
    }

    fn tolerances(&self) -> Tolerances {
        Tolerances { near_tie: TOLERANCES.near_tie * self.coarser(), ..TOLERANCES }
    }

    fn rounded_weights(&self) -> Option<(usize, Float)> {
        if self.gpu.fused_dequantise { ROUNDED_WEIGHTS } else { Some((9, Float::Bf16)) }
    }

    fn stored(&self) -> Float {
        STORED
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<GpuDevice<SimBackend>, ModelError> {
        let backend = SimBackend::new(self.simulator(), self.sim.clone())?;
        GpuDevice::new(backend, config, weights, capacity, self.gpu)
    }
}
