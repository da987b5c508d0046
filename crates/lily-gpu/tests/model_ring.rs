//! The model ring: whole models on the simulator, against transformers and mlx-lm in f32, and against themselves.
//!
//! `cargo test -p lily-gpu --test model_ring -- --nocapture` prints what was measured.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_testkit::golden::TINY;
use lily_testkit::ring::model;
use rig::{MODEL, Sim};

#[test]
fn tiny_models_agree_with_other_engines() {
    for name in TINY {
        model::check_golden_but_ties(&Sim::fast(), name, MODEL);
    }
}

#[test]
fn chunks_change_nothing_but_rounding() {
    model::check_chunks(&Sim::fast(), &[1, 3, 64, 257], 1e-2);
}

#[test]
fn sequences_of_a_batch_do_not_touch_each_other() {
    model::check_batch(&Sim::fast(), 5e-2);
}

#[test]
fn saved_state_and_copied_pages_continue_as_before() {
    model::check_saved_state(&Sim::fast());
}

#[test]
fn copies_of_another_size_are_refused() {
    model::check_wrong_copies(&Sim::fast());
}
