//! The CPU device as the rings of `lily_testkit::ring` take it.

#![allow(dead_code)] // every ring is a program of its own and uses a part

pub mod rounding;

use lily_cpu::{Activations, CpuDevice, CpuOptions, Isa};
use lily_model::{Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::Float;
use lily_testkit::ring::{Numerics, Subject, Tolerances};

/// The CPU device with these options.
pub struct Cpu(pub CpuOptions);

impl Cpu {
    /// One instruction set, one precision of activations.
    pub fn with(isa: Isa, activations: Activations, threads: usize) -> Self {
        Cpu(CpuOptions::default().with_isa(isa).with_activations(activations).with_threads(threads))
    }

    /// Every instruction set of this machine, with f32 activations.
    pub fn every_isa(threads: usize) -> impl Iterator<Item = Self> {
        Isa::available().into_iter().map(move |isa| Self::with(isa, Activations::F32, threads))
    }
}

impl Subject for Cpu {
    type Device = CpuDevice;

    fn label(&self) -> String {
        let CpuOptions { threads, isa, decode, .. } = self.0;
        let threads = threads.map_or("all".into(), |threads| threads.to_string());
        format!("cpu {isa} {decode:?} {threads} threads")
    }

    fn numerics(&self) -> Numerics {
        Numerics::f32(Float::F16)
    }

    fn tolerances(&self) -> Tolerances {
        Tolerances::F32
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<CpuDevice, ModelError> {
        CpuDevice::new(config, weights, capacity, self.0)
    }
}
