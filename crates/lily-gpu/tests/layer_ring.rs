//! The layer ring: every layer of the tiny models on the simulator, against transformers and the reference.
//!
//! `cargo test -p lily-gpu --test layer_ring -- --nocapture` names the rows that take other experts.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_testkit::golden::TINY;
use lily_testkit::ring::layer;
use rig::Sim;

#[test]
fn every_layer_agrees_with_transformers_and_the_reference() {
    for name in TINY {
        layer::check(&Sim::fast(), name);
    }
}
