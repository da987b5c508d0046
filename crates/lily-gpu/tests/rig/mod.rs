//! The GPU engine on the simulator as the rings of `lily_testkit::ring` take it, and what they may expect of any GPU.

#![allow(dead_code)] // every ring is a program of its own and uses a part

#[cfg(all(feature = "sim", unix))]
mod sim;

use lily_testkit::generate::Float;
use lily_testkit::reference::{AttentionDims, DeltaDims, ModelDims};
use lily_testkit::ring::kernel::model;
use lily_testkit::ring::{Bound, Numerics, Tolerances};

#[cfg(all(feature = "sim", unix))]
#[allow(unused_imports)]
pub use sim::Sim;

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
    // Margins move by as much as activations: see `lily_testkit::ring::ties`.
    near_tie: 2e-3,
    layer: Bound::Overall(5e-3),
    layer_attention: Bound::Overall(5e-3),
    ..Tolerances::F32
};

/// Logits of whole models whose prompts go through tiles.
pub const MODEL: Bound = Bound::Overall(5e-3);

/// Scales, biases and plain matrices that a checkpoint has finer than this are rounded when they are loaded.
pub const STORED: Float = Float::Bf16;

/// Heads that the kernels cover and that are no powers of two: 6 query heads, 2 key heads, 48 value columns, odd taps.
pub fn awkward() -> ModelDims {
    let attention = AttentionDims { heads_q: 6, heads_kv: 2, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    model(attention, DeltaDims { heads_k: 2, heads_v: 6, dim_k: 32, dim_v: 48, conv_width: 3 })
}
