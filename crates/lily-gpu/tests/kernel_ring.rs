//! The kernel ring: every step on the simulator against the f64 reference.
//!
//! The checks are in `lily_testkit::ring::kernel`; here are the cases.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_testkit::generate::tiny_dims;
use lily_testkit::reference::{AttentionDims, DeltaDims, ModelDims};
use lily_testkit::ring::kernel::{ATTENTION_DIMS, CAPACITY, DELTA_DIMS, attention, delta, experts, nano_heads, products, rows};
use rig::{FITTED_COUNTS, Sim, THIN_COUNTS, awkward, fitted, spans, thin, wide_spans};

/// Rows on both sides of every border: vector kernels, tiles of 16, 32 and 64 rows.
const ROWS: [usize; 9] = [1, 2, 3, 5, 8, 9, 33, 64, 130];

#[test]
fn row_steps_match_the_reference() {
    rows::check(&Sim::fast(), &ModelDims { hidden: 192, ..tiny_dims() }, &[1, 14, 27, 131]);
}

#[test]
fn projections_match_the_reference() {
    for dims in [awkward(), nano_heads()] {
        products::check(&Sim::fast(), &dims, &ROWS);
    }
    products::check(&Sim::fast().native(), &awkward(), &ROWS[5..]);
    products::check(&Sim::fast().native(), &spans(), &ROWS);
    // The widest tiles, two of them; and the next narrower.
    products::check(&Sim::fast().native(), &spans(), &[300]);
    products::check(&Sim::fast().native(), &tiny_dims(), &[130]);
    products::check(&Sim::fast().native(), &wide_spans(), &[1, 2, 4, 7]);
}

#[test]
fn experts_match_the_reference() {
    for dims in [awkward(), nano_heads()] {
        experts::check(&Sim::fast(), &dims, &ROWS);
    }
    experts::check(&Sim::fast().native(), &awkward(), &ROWS[5..]);
    experts::check(&Sim::fast().native(), &spans(), &ROWS);
    // So many rows that the router has tiles of 64.
    experts::check(&Sim::fast().native(), &spans(), &[260]);
    experts::check_counts(&Sim::fast(), &tiny_dims(), &experts::COUNTS);
    experts::check_counts(&Sim::fast().native(), &fitted(), &FITTED_COUNTS);
    experts::check_counts(&Sim::fast().native(), &thin(), &THIN_COUNTS);
    let many = Sim::fast().native().with(|options| options.thin_experts = false);
    experts::check(&many, &spans(), &ROWS[5..]);
    experts::check(&many.with(|options| options.fitted_experts = false), &spans(), &ROWS[5..]);
}

#[test]
fn delta_update_advances_every_span() {
    let unfused = Sim::fast().with(|options| options.fused_chains = false);
    for dims in [awkward().delta, DELTA_DIMS[1]] {
        delta::check(&Sim::fast(), dims, &delta::SPANS);
        delta::check(&Sim::fast().native(), dims, &delta::SPANS);
        delta::check(&unfused, dims, &delta::SPANS[..1]);
        // More rows than are few.
        delta::check(&Sim::fast(), dims, &[&[1; 10]]);
    }
    // The last tile of values ends in the middle of eight.
    delta::check(&Sim::fast().native(), DeltaDims { dim_v: 100, ..awkward().delta }, &delta::SPANS[2..4]);
}

#[test]
fn attention_sees_its_own_sequence_up_to_its_own_row() {
    for dims in [awkward().attention, ATTENTION_DIMS[1]] {
        attention::check(&Sim::fast(), dims, CAPACITY, &attention::BATCHES);
        attention::check(&Sim::fast().native(), dims, CAPACITY, &attention::BATCHES);
        let one_simdgroup = Sim::fast().native().with(|options| options.wgmma_prefill = false);
        attention::check(&one_simdgroup, dims, CAPACITY, &attention::BATCHES);
        attention::check(&Sim::fast(), dims, CAPACITY, &attention::FEW);
    }
    // As many query heads as a threadgroup takes, more, and fewer.
    let heads = |heads_q, heads_kv, head_dim| AttentionDims { heads_q, heads_kv, head_dim, ..ATTENTION_DIMS[0] };
    for dims in [ATTENTION_DIMS[0], heads(24, 2, 128), heads(3, 3, 64)] {
        attention::check(&Sim::fast().native(), dims, CAPACITY, &attention::FEW);
    }
    // The other head sizes of tiles; groups of heads that do not divide them.
    for dims in [heads(24, 2, 128), heads(3, 3, 64)] {
        attention::check(&Sim::fast().native(), dims, CAPACITY, &attention::BATCHES);
    }
}
