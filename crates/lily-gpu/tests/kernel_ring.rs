//! The kernel ring: every step on the simulator against the f64 reference.
//!
//! The checks are in `lily_testkit::ring::kernel`; here are the cases.

mod rig;

use lily_model::Capacity;
use lily_testkit::generate::tiny_dims;
use lily_testkit::reference::{AttentionDims, DeltaDims, ModelDims};
use lily_testkit::ring::kernel::{ATTENTION_DIMS, CAPACITY, DELTA_DIMS, attention, delta, experts, model, nan, nano_heads, products, rows};
use rig::Sim;

/// Rows on both sides of every border: vector kernels, tiles of 16, 32 and 64 rows.
const ROWS: [usize; 9] = [1, 2, 3, 5, 8, 9, 33, 64, 130];

/// Heads that the kernels cover and that are no powers of two: 6 query heads, 2 key heads, 48 value columns, odd taps.
fn awkward() -> ModelDims {
    let attention = AttentionDims { heads_q: 6, heads_kv: 2, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    model(attention, DeltaDims { heads_k: 2, heads_v: 6, dim_k: 32, dim_v: 48, conv_width: 3 })
}

#[test]
fn row_steps_match_the_reference() {
    rows::check(&Sim::fast(), &ModelDims { hidden: 192, ..tiny_dims() }, &[1, 14, 27, 131]);
}

#[test]
fn projections_match_the_reference() {
    for dims in [awkward(), nano_heads()] {
        products::check(&Sim::fast(), &dims, &ROWS);
    }
}

#[test]
fn experts_match_the_reference() {
    for dims in [awkward(), nano_heads()] {
        experts::check(&Sim::fast(), &dims, &ROWS);
    }
    experts::check_counts(&Sim::fast(), &tiny_dims(), &experts::COUNTS);
}

#[test]
fn delta_update_advances_every_span() {
    for dims in [awkward().delta, DELTA_DIMS[1]] {
        delta::check(&Sim::fast(), dims, &delta::SPANS);
    }
}

#[test]
fn attention_sees_its_own_sequence_up_to_its_own_row() {
    for dims in [awkward().attention, ATTENTION_DIMS[1]] {
        attention::check(&Sim::fast(), dims, CAPACITY, &attention::BATCHES);
    }
}
