//! The kernel ring: every step alone against the f64 reference.
//!
//! Operands are made up, outputs are poisoned before, page ids are shuffled. Each check takes its shapes from the
//! caller; here are the lists to choose from.
//!
//! [`delta`], [`attention`], [`rows`] (embedding, norms, head), [`products`] (projections and the mixer's output),
//! [`experts`] (routing, and experts with given numbers of rows), [`mod@nan`].

pub mod attention;
pub mod delta;
pub mod experts;
pub mod nan;
pub mod products;
pub mod rows;

use lily_model::{Capacity, Device};

use super::rig::{Lab, Part};
use super::subject::round;
use crate::generate::{Distribution, tiny_dims};
use crate::reference::{AttentionDims, DeltaDims, ModelDims, MoeDims};

/// Room for all cases but the long contexts.
pub const CAPACITY: Capacity = Capacity { slots: 4, pages: 40, rows: 200, logit_rows: 200 };

/// Row counts at which a device may change its loops or tiles, 1 to 130.
pub const ROWS: [usize; 21] = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130];

/// Attention heads: the full model, lily-nano, and what may break: odd groups, no grouping, heads that are no whole
/// vectors.
pub const ATTENTION_DIMS: [AttentionDims; 6] = [
    attention_dims(16, 2, 256, 64),
    attention_dims(4, 1, 256, 64),
    attention_dims(6, 2, 24, 8),
    attention_dims(3, 3, 40, 16),
    attention_dims(5, 1, 16, 16),
    attention_dims(64, 1, 16, 4),
];

/// DeltaNet heads: the same choice.
pub const DELTA_DIMS: [DeltaDims; 5] = [
    delta_dims(16, 32, 128, 128, 4),
    delta_dims(2, 4, 128, 128, 4),
    delta_dims(3, 9, 24, 40, 4),
    delta_dims(4, 4, 16, 8, 2),
    delta_dims(1, 2, 36, 100, 3),
];

const fn attention_dims(heads_q: usize, heads_kv: usize, head_dim: usize, rotary_dim: usize) -> AttentionDims {
    AttentionDims { heads_q, heads_kv, head_dim, rotary_dim, rope_theta: 1e7 }
}

const fn delta_dims(heads_k: usize, heads_v: usize, dim_k: usize, dim_v: usize, conv_width: usize) -> DeltaDims {
    DeltaDims { heads_k, heads_v, dim_k, dim_v, conv_width }
}

/// A small model with these mixers.
pub fn model(attention: AttentionDims, delta: DeltaDims) -> ModelDims {
    ModelDims { attention, delta, ..tiny_dims() }
}

/// The full model's widths and heads, with 16 experts of its 256 (the reference holds them in f64: 1.5 GB).
pub fn full_dims() -> ModelDims {
    let moe = MoeDims { experts: 16, experts_per_token: 8, expert_width: 512, shared_width: 512, normalise_top: true };
    ModelDims { hidden: 2048, attention: ATTENTION_DIMS[0], delta: DELTA_DIMS[0], moe, ..tiny_dims() }
}

/// lily-nano's heads in a model whose other widths are small.
pub fn nano_heads() -> ModelDims {
    model(ATTENTION_DIMS[1], DELTA_DIMS[1])
}

/// Stages `rows` rows of one sequence and draws the normalised input of its matrices: as the device stores it.
fn stage_normed<D: Device>(lab: &mut Lab<D>, rows: usize) -> Vec<f64> {
    lab.stage(&[Part::single(rows)]);
    let hidden = lab.reference.dims.hidden;
    let x = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
    lab.fill(super::rig::Which::Normed, &x, hidden)
}
