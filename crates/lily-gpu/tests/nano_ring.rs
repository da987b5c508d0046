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

/// Over a whole text a GPU keeps [`PERPLEXITY`] (`cuda_ring`). Here one window of each is affordable, a tenth of the shorter
/// text. What is left of the difference is not rounding but rows that take other experts, for better as often as for
/// worse: noise, of which the mean over a tenth of the tokens has the root of ten times as much.
const ONE_WINDOW: f64 = 3.2 * PERPLEXITY;

#[test]
fn the_bundled_model_has_the_perplexity_of_mlx() {
    nano::check_perplexity(&Sim::fast(), 1, ONE_WINDOW);
}
