//! The mixers' products: input projections side by side, output projections onto the residual.

use lily_model::{Capacity, Device};

use super::{CAPACITY, stage_normed};
use crate::generate::Distribution;
use crate::golden::assert_rows_close;
use crate::reference::{self, ModelDims};
use crate::ring::Subject;
use crate::ring::rig::{ATTENTION, DELTA, Lab, Which, queries, values};

/// Every row count. Dimensions whose widths are no whole groups of 64 make a checkpoint that is not quantised.
pub fn check<S: Subject>(subject: &S, dims: &ModelDims, rows: &[usize]) {
    let most = rows.iter().copied().max().unwrap_or(1).max(CAPACITY.rows);
    let mut lab = Lab::new(subject, dims.clone(), Capacity { rows: most, logit_rows: most, ..CAPACITY });
    for &rows in rows {
        let name = format!("{} {rows} rows", lab.label);
        let x = stage_normed(&mut lab, rows);
        check_projections(&mut lab, &name, &x);
        check_outputs(&mut lab, &name, rows);
    }
}

fn check_projections<D: Device>(lab: &mut Lab<D>, name: &str, x: &[f64]) {
    let rows = x.len() / lab.reference.dims.hidden;
    let weights = lab.delta_weights();
    let expected = [&weights.in_proj_qkv, &weights.in_proj_z, &weights.in_proj_b, &weights.in_proj_a].map(|w| lab.product(w, rows, x));
    lab.poison(Which::Projected, rows);
    lab.step(|device, b| device.delta_project(DELTA, rows, &b.normed, &mut b.projected));
    check_side_by_side(lab, &format!("{name} delta_project"), rows, &expected);

    let weights = lab.attention_weights();
    let expected = [&weights.q_proj, &weights.k_proj, &weights.v_proj].map(|w| lab.product(w, rows, x));
    lab.poison(Which::Projected, rows);
    lab.step(|device, b| device.attn_project(ATTENTION, rows, &b.normed, &mut b.projected));
    check_side_by_side(lab, &format!("{name} attn_project"), rows, &expected);
}

/// The projections of one input, in the columns that the contract gives them.
fn check_side_by_side<D: Device>(lab: &mut Lab<D>, name: &str, rows: usize, jobs: &[Vec<f64>]) {
    let found = lab.all(Which::Projected, rows);
    let stride = found.len() / rows;
    let mut at = 0;
    for (job, expected) in jobs.iter().enumerate() {
        let width = expected.len() / rows;
        let found: Vec<f32> = found.chunks_exact(stride).flat_map(|row| row[at..at + width].to_vec()).collect();
        assert_rows_close(&format!("{name} matrix {job}"), &found, expected, width, lab.tolerances.projection);
        at += width;
    }
}

fn check_outputs<D: Device>(lab: &mut Lab<D>, name: &str, rows: usize) {
    let hidden = lab.reference.dims.hidden;
    for (layer, width) in [(DELTA, values(&lab.reference.dims)), (ATTENTION, queries(&lab.reference.dims))] {
        let mixed = Distribution::Gaussian.draw(&mut lab.rng, rows, width);
        let residual = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
        let mixed = lab.fill(Which::Mixed, &mixed, width);
        let residual = lab.fill(Which::Residual, &residual, hidden);
        lab.step(|device, b| device.mixer_output(layer, rows, &b.mixed, &mut b.residual));
        let out = if layer == DELTA { &lab.delta_weights().out_proj } else { &lab.attention_weights().o_proj };
        let expected = reference::add(&residual, &lab.product(out, rows, &mixed));
        let found = lab.columns(Which::Residual, rows, hidden);
        assert_rows_close(&format!("{name} mixer_output of layer {layer}"), &found, &expected, hidden, lab.tolerances.projection);
    }
}
