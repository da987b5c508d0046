//! The device's choice of tokens, on the simulator.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_testkit::ring::select;
use rig::Sim;

#[test]
fn the_device_chooses_what_the_definition_chooses() {
    for vocab in select::VOCABS {
        select::check(&Sim::fast(), vocab, 16);
    }
}
