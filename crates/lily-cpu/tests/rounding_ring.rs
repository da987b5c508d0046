//! The rings themselves: they pass a device that rounds and records as a GPU does, and they notice a step left out.

mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};

use lily_testkit::generate::tiny_dims;
use lily_testkit::ring::kernel::{ATTENTION_DIMS, CAPACITY, DELTA_DIMS, attention, delta, experts, products, rows};
use lily_testkit::ring::{Bound, layer, model, nano};
use rig::rounding::Rounding;

const ROWS: [usize; 4] = [1, 3, 33, 130];

/// Every check of the kernel ring, with the steps that it must notice the loss of.
type Check = (&'static [&'static str], fn(&Rounding));
const CHECKS: [Check; 6] = [
    (&["delta_update"], |device| delta::check(device, DELTA_DIMS[1], &delta::SPANS)),
    (&["attn_prepare", "attn_mix"], |device| attention::check(device, ATTENTION_DIMS[1], CAPACITY, &attention::BATCHES[..2])),
    (&["embed", "norm", "head"], |device| rows::check(device, &tiny_dims(), &ROWS)),
    (&["delta_project", "attn_project", "mixer_output"], |device| products::check(device, &tiny_dims(), &ROWS)),
    (&["moe_route", "moe_gate_up", "moe_down"], |device| experts::check(device, &tiny_dims(), &ROWS)),
    (&["moe_gate_up", "moe_down"], |device| experts::check_counts(device, &tiny_dims(), &experts::COUNTS)),
];

#[test]
fn a_device_that_rounds_and_records_passes_every_check() {
    let device = Rounding { without: None };
    CHECKS.iter().for_each(|(_, check)| check(&device));
    attention::check_contexts(&device, ATTENTION_DIMS[1], &attention::CONTEXTS[..4]);
    layer::check(&device, "base");
    model::check_golden(&device, "base", Bound::Overall(1e-1));
}

#[test]
fn every_step_left_out_is_noticed() {
    for (steps, check) in CHECKS {
        for step in steps {
            let passed = catch_unwind(AssertUnwindSafe(|| check(&Rounding { without: Some(step) }))).is_ok();
            assert!(!passed, "the ring passes a device without {step}");
        }
    }
}

#[test]
fn rounded_operands_agree_with_exact_ones_on_the_bundled_model() {
    let exact = rig::Cpu::with(lily_cpu::Isa::best(), lily_cpu::Activations::F32, 2);
    nano::agreement(&exact, &Rounding { without: None }).assert_within(1e-2, 0.98);
}
