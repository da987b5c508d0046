//! The layer ring: what every layer of the tiny models writes on the CPU, against transformers in f32 and the f64
//! reference, for every instruction set of this machine.

mod rig;

use lily_testkit::golden::TINY;
use lily_testkit::ring::layer;
use rig::Cpu;

#[test]
fn every_layer_agrees_with_transformers_and_the_reference() {
    for name in TINY {
        for cpu in Cpu::every_isa(2) {
            layer::check(&cpu, name);
        }
    }
}
