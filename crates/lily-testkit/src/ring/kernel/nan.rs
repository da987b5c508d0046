//! A NaN that enters a sequence comes out of it, and of no other.

use lily_model::{NormSite, Page, Steps};

use super::CAPACITY;
use crate::generate::Distribution;
use crate::reference::ModelDims;
use crate::ring::Subject;
use crate::ring::rig::{ATTENTION, DELTA, Lab, Part, Which};

/// Two sequences of three rows through both layers and the head, with one NaN in the first row of the second one.
pub fn check<S: Subject>(subject: &S, dims: &ModelDims) {
    let mut lab = Lab::new(subject, dims.clone(), CAPACITY);
    let (hidden, rows) = (dims.hidden, 6);
    let parts = [0, 1].map(|slot| Part { slot, start: 0, rows: rows / 2, pages: vec![Page(slot)] });
    lab.stage(&parts);
    let mut x = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
    x[rows / 2 * hidden + 7] = f32::NAN;
    lab.fill(Which::Residual, &x, hidden);
    lab.step(|device, b| device.norm(NormSite::Mixer(DELTA), rows, &b.residual, &mut b.normed));
    lab.step(|device, b| device.delta_project(DELTA, rows, &b.normed, &mut b.projected));
    lab.step(|device, b| device.delta_update(DELTA, rows, &b.projected, &mut b.mixed));
    lab.step(|device, b| device.mixer_output(DELTA, rows, &b.mixed, &mut b.residual));
    lab.step(|device, b| device.norm(NormSite::Mixer(ATTENTION), rows, &b.residual, &mut b.normed));
    lab.step(|device, b| device.attn_project(ATTENTION, rows, &b.normed, &mut b.projected));
    lab.step(|device, b| device.attn_prepare(ATTENTION, rows, &mut b.projected));
    lab.step(|device, b| device.attn_mix(ATTENTION, rows, &b.projected, &mut b.mixed));
    lab.step(|device, b| device.mixer_output(ATTENTION, rows, &b.mixed, &mut b.residual));
    lab.step(|device, b| device.norm(NormSite::Experts(ATTENTION), rows, &b.residual, &mut b.normed));
    lab.step(|device, b| device.moe_route(ATTENTION, rows, &b.normed, &mut b.routes));
    lab.step(|device, b| device.moe_gate_up(ATTENTION, rows, &b.normed, &b.routes, &mut b.expert_hidden));
    lab.step(|device, b| device.moe_down(ATTENTION, rows, &b.routes, &b.expert_hidden, &mut b.residual));
    let logits = lab.head(rows);
    for (row, logits) in logits.chunks_exact(dims.vocab).enumerate() {
        let poisoned = row >= rows / 2;
        assert!(logits.iter().all(|logit| logit.is_nan() == poisoned), "{}: row {row}", lab.label);
    }
}
