//! What a user or a test may choose about the CPU device.

use crate::isa::Isa;
use crate::matrix;
use crate::quantise::Activations;

/// Choices of the CPU device; the default is the fastest that was shown to be harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads; `None` is one per processor that this process may use (affinity and container quotas count).
    pub threads: Option<usize>,
    pub isa: Isa,
    /// Precision of activations in matrix products of a few rows.
    pub decode: Activations,
    /// The same for many rows, except in the experts.
    pub prefill: Activations,
    /// The same for many rows in the experts.
    pub prefill_experts: Activations,
}

impl Default for CpuOptions {
    fn default() -> Self {
        let matrix::Options { isa, decode, prefill, prefill_experts } = matrix::Options::default();
        CpuOptions { threads: None, isa, decode, prefill, prefill_experts }
    }
}

impl CpuOptions {
    /// One precision everywhere.
    pub fn with_activations(self, activations: Activations) -> Self {
        CpuOptions { decode: activations, prefill: activations, prefill_experts: activations, ..self }
    }

    pub fn with_threads(self, threads: usize) -> Self {
        CpuOptions { threads: Some(threads), ..self }
    }

    pub fn with_isa(self, isa: Isa) -> Self {
        CpuOptions { isa, ..self }
    }

    pub(crate) fn matrix(&self) -> matrix::Options {
        let CpuOptions { isa, decode, prefill, prefill_experts, .. } = *self;
        matrix::Options { isa, decode, prefill, prefill_experts }
    }
}
