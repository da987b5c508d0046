//! The kernel ring: every step on the CPU against the f64 reference, for every instruction set of this machine.
//!
//! The checks are in `lily_testkit::ring::kernel`; here are the cases. Steps with matrix products run with f32
//! activations; what coarser ones cost is in `tests/matrix.rs` and in the model ring.

mod rig;

use lily_cpu::{Activations, Isa};
use lily_model::Capacity;
use lily_testkit::generate::tiny_dims;
use lily_testkit::reference::{AttentionDims, ModelDims};
use lily_testkit::ring::kernel::{ATTENTION_DIMS, CAPACITY, DELTA_DIMS, ROWS, attention, delta, experts, model, nan, nano_heads};
use lily_testkit::ring::kernel::{products, rows};
use rig::Cpu;

const THREADS: usize = 3;

/// Row counts of the products.
const PRODUCT_ROWS: [usize; 6] = [1, 2, 4, 5, 31, 130];

/// Heads that make widths of no whole quantisation groups: the checkpoint is raw.
fn raw_dims() -> ModelDims {
    model(ATTENTION_DIMS[2], DELTA_DIMS[2])
}

fn best() -> Cpu {
    Cpu::with(Isa::best(), Activations::F32, THREADS)
}

#[test]
fn delta_update_advances_every_span() {
    for dims in DELTA_DIMS {
        for cpu in Cpu::every_isa(THREADS) {
            delta::check(&cpu, dims, &delta::SPANS);
        }
    }
}

#[test]
fn attention_sees_its_own_sequence_up_to_its_own_row() {
    for dims in ATTENTION_DIMS {
        for cpu in Cpu::every_isa(THREADS) {
            attention::check(&cpu, dims, CAPACITY, &attention::BATCHES);
        }
    }
}

#[test]
fn attention_over_thousands_of_positions() {
    for dims in [ATTENTION_DIMS[0], ATTENTION_DIMS[2]] {
        for cpu in Cpu::every_isa(THREADS) {
            attention::check(&cpu, dims, CAPACITY, &[&[(8190, 1)], &[(8185, 5)]]);
        }
    }
}

#[test]
fn attention_over_the_longest_context() {
    let dims = AttentionDims { heads_q: 2, heads_kv: 1, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    let capacity = Capacity { pages: 1024, rows: 2048, ..CAPACITY };
    attention::check(&best(), dims, capacity, &[&[(262_143, 1)], &[(131_071, 3)]]);
}

#[test]
fn attention_as_a_context_grows() {
    attention::check_contexts(&best(), ATTENTION_DIMS[1], &attention::CONTEXTS[..5]);
    let dims = AttentionDims { heads_q: 16, heads_kv: 2, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    attention::check_contexts(&best(), dims, &attention::CONTEXTS);
}

#[test]
fn row_steps_match_the_reference() {
    let dims = ModelDims { hidden: 192, ..tiny_dims() };
    let counts: Vec<usize> = (1..=CAPACITY.rows).step_by(13).collect();
    for cpu in Cpu::every_isa(THREADS) {
        rows::check(&cpu, &dims, &counts);
    }
}

#[test]
fn projections_and_experts_match_the_reference() {
    for dims in [tiny_dims(), raw_dims()] {
        for cpu in Cpu::every_isa(THREADS) {
            products::check(&cpu, &dims, &PRODUCT_ROWS);
            experts::check(&cpu, &dims, &PRODUCT_ROWS);
        }
    }
}

#[test]
fn every_row_count_at_the_heads_of_the_bundled_model() {
    products::check(&best(), &nano_heads(), &ROWS);
    experts::check(&best(), &nano_heads(), &ROWS);
}

#[test]
fn experts_with_given_numbers_of_rows() {
    for dims in [tiny_dims(), raw_dims()] {
        for cpu in Cpu::every_isa(THREADS) {
            experts::check_counts(&cpu, &dims, &experts::COUNTS);
        }
    }
}

#[test]
fn nan_comes_out_where_nan_went_in() {
    for cpu in Cpu::every_isa(THREADS) {
        nan::check(&cpu, &raw_dims());
    }
}
