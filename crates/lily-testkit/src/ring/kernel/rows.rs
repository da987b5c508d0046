//! Steps that treat each row alone: embedding, norms, the head.

use lily_model::{Capacity, Device, NormSite};

use super::CAPACITY;
use crate::generate::Distribution;
use crate::golden::assert_rows_close;
use crate::reference::{ModelDims, rms_norm};
use crate::ring::Subject;
use crate::ring::rig::{ATTENTION, DELTA, Lab, Part, Which};

/// Every row count with the next distribution.
pub fn check<S: Subject>(subject: &S, dims: &ModelDims, rows: &[usize]) {
    let most = rows.iter().copied().max().unwrap_or(1).max(CAPACITY.rows);
    let mut lab = Lab::new(subject, dims.clone(), Capacity { rows: most, logit_rows: most, ..CAPACITY });
    for (&rows, distribution) in rows.iter().zip(Distribution::ALL.into_iter().cycle()) {
        let name = format!("{} {rows} rows {distribution:?}", lab.label);
        check_embed(&mut lab, &name, rows);
        let x = distribution.draw(&mut lab.rng, rows, dims.hidden);
        let x = lab.fill(Which::Residual, &x, dims.hidden);
        check_norms(&mut lab, &name, &x);
        check_head(&mut lab, &name, &x);
    }
}

fn check_embed<D: Device>(lab: &mut Lab<D>, name: &str, rows: usize) {
    let (vocab, hidden) = (lab.reference.dims.vocab, lab.reference.dims.hidden);
    let tokens: Vec<u32> = (0..rows).map(|_| lab.rng.below(vocab) as u32).collect();
    lab.stage_tokens(&[Part::single(rows)], std::slice::from_ref(&tokens));
    lab.poison(Which::Residual, rows);
    lab.step(|device, b| device.embed(rows, &mut b.residual));
    let expected: Vec<f64> = tokens.iter().flat_map(|&token| lab.reference.embedding.row(token as usize).to_vec()).collect();
    let found = lab.columns(Which::Residual, rows, hidden);
    assert_rows_close(&format!("{name} embed"), &found, &expected, hidden, lab.tolerances.embed);
}

fn check_norms<D: Device>(lab: &mut Lab<D>, name: &str, x: &[f64]) {
    let (hidden, eps) = (lab.reference.dims.hidden, lab.reference.dims.eps);
    let rows = x.len() / hidden;
    for site in [NormSite::Mixer(ATTENTION), NormSite::Experts(DELTA)] {
        lab.poison(Which::Normed, rows);
        lab.step(|device, b| device.norm(site, rows, &b.residual, &mut b.normed));
        let gain = match site {
            NormSite::Mixer(layer) => &lab.reference.layers[layer].input_norm,
            NormSite::Experts(layer) => &lab.reference.layers[layer].post_norm,
        };
        let expected = rms_norm(x, gain, eps);
        let found = lab.columns(Which::Normed, rows, hidden);
        assert_rows_close(&format!("{name} {site:?}"), &found, &expected, hidden, lab.tolerances.norm);
    }
}

fn check_head<D: Device>(lab: &mut Lab<D>, name: &str, x: &[f64]) {
    let dims = &lab.reference.dims;
    let (hidden, vocab) = (dims.hidden, dims.vocab);
    let normed = rms_norm(x, &lab.reference.final_norm, dims.eps);
    let expected = lab.product(&lab.reference.head, x.len() / hidden, &normed);
    let found = lab.head(x.len() / hidden);
    assert_rows_close(&format!("{name} head"), &found, &expected, vocab, lab.tolerances.head);
}
