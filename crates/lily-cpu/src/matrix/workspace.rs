//! What the steps reuse from call to call, so that none allocates: quantised activations, the sorted
//! routing, and scratch for every member of the team.

use super::experts::Grouping;
use super::integer::{PanelScratch, Tiles};
use crate::isa::Isa;
use crate::quantise::{Activations, Quantised};

/// How the matrices are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub isa: Isa,
    /// Up to [`super::integer::GEMV_ROWS`] rows: decode.
    pub decode: Activations,
    /// More rows, except in the routed experts.
    pub prefill: Activations,
    /// More rows, in the routed and shared experts.
    pub prefill_experts: Activations,
}

impl Default for Options {
    fn default() -> Options {
        Options { isa: Isa::best(), decode: Activations::I16, prefill: Activations::I16, prefill_experts: Activations::I16 }
    }
}

/// Buffers of the matrix steps; they grow to the largest step seen and stay.
pub struct Workspace {
    pub options: Options,
    /// The input of a projection, of the experts, or what the routed experts' down projections read.
    pub(super) input: Quantised,
    /// What the shared expert's down projection reads.
    pub(super) shared_input: Quantised,
    /// The same two as tiles, where the instruction set multiplies those.
    pub(super) tiles: Tiles,
    pub(super) shared_tiles: Tiles,
    pub(super) grouping: Grouping,
    /// `0, 1, 2, ...`: the index of a projection's rows.
    pub(super) identity: Vec<u32>,
    /// One for each member of the team.
    pub(super) scratch: Vec<Scratch>,
}

/// One member's buffers.
#[derive(Default)]
pub struct Scratch {
    /// Products of one block of weight rows, `[rows of x, weight rows]`.
    pub(super) out: Vec<f32>,
    /// The same for the up projection.
    pub(super) other: Vec<f32>,
    /// The experts' weighted sum of a block of outputs, `[rows, weight rows]`.
    pub(super) sum: Vec<f32>,
    pub(super) loops: LoopScratch,
}

/// Buffers inside the loops.
#[derive(Default)]
pub struct LoopScratch {
    /// Weight rows as f32.
    pub(super) floats: Vec<f32>,
    pub(super) panel: PanelScratch,
}

impl Workspace {
    /// A workspace for a team of `count` members.
    pub fn new(options: Options, count: usize) -> Workspace {
        Workspace {
            options,
            input: Quantised::default(),
            shared_input: Quantised::default(),
            tiles: Tiles::default(),
            shared_tiles: Tiles::default(),
            grouping: Grouping::default(),
            identity: Vec::new(),
            scratch: (0..count).map(|_| Scratch::default()).collect(),
        }
    }
}
