//! Two steps in flight on the simulator: the chosen token goes to the next step on the device, the host reads behind.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_testkit::ring::ahead;
use rig::Sim;

#[test]
fn tokens_on_the_device_are_those_through_the_host() {
    ahead::check(&Sim::fast(), true);
    ahead::check(&Sim::fast().with(|gpu| gpu.concurrent = false), true);
}

#[test]
fn the_switch_leads_them_through_the_host() {
    ahead::check(&Sim::fast().with(|gpu| gpu.device_tokens = false), false);
}

#[test]
fn the_host_may_read_late_or_never() {
    ahead::check_late(&Sim::fast());
}
