//! The model ring on the bundled model: logits, greedy text and perplexity against mlx-lm in f32, on the simulator.
//!
//! `cargo test -p lily-gpu --test nano_ring -- --nocapture` prints what was measured.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_testkit::golden::tolerance::{LOGITS_BF16, PERPLEXITY};
use lily_testkit::ring::nano;
use rig::Sim;

#[test]
fn the_bundled_model_agrees_with_mlx() {
    nano::check_golden(&Sim::fast(), LOGITS_BF16);
}

#[test]
fn the_bundled_model_has_the_perplexity_of_mlx() {
    nano::check_perplexity(&Sim::fast(), 1, PERPLEXITY);
}
