//! Choosing tokens where the logits are, against [`select_token`], the one definition.

use lily_model::{Capacity, Device, Selection, select_token};

use super::Subject;
use super::rig::{Lab, Part, Which};
use crate::generate::{Distribution, Rng, tiny_dims};
use crate::reference::ModelDims;

/// Vocabularies beside the edges of any slice: a few words, a whole slice of 2048, one more, one less than two.
pub const VOCABS: [usize; 4] = [272, 2048, 2049, 4095];

/// Most rows that choose at once; more than that, and a device may leave the choice to the host.
const ROWS: usize = 12;

/// Devices sum weights in f32: a draw or a cut so near to a border may fall on its other side.
const BORDER: f64 = 1e-5;

/// Random selections over the logits of random rows; every one that is clear of a border must be the definition's.
/// Panics if too few were.
pub fn check<S: Subject>(subject: &S, vocab: usize, rounds: usize) {
    let dims = ModelDims { vocab, hidden: 64, ..tiny_dims() };
    let mut lab = Lab::new(subject, dims, Capacity { slots: 1, pages: 1, rows: ROWS, logit_rows: ROWS });
    let (mut compared, mut near) = (0, 0);
    for round in 0..rounds {
        let rows = [1, 3, 8, ROWS][round % 4];
        let logits = draw_logits(&mut lab, rows, round % 5 == 4);
        for _ in 0..8 {
            let mut selections: Vec<Selection> = (0..rows).map(|_| draw_selection(&mut lab.rng, vocab)).collect();
            if lab.rng.below(4) == 0 {
                selections[rows - 1] = for_the_host(&mut lab.rng, vocab);
            }
            let found = lab.device.select(&selections).unwrap_or_else(|error| panic!("{}: {error}", lab.label));
            assert_eq!(found.len(), rows, "{}: a token for every row", lab.label);
            for ((row, selection), &found) in selections.iter().enumerate().zip(&found) {
                let logits = &logits[row * vocab..(row + 1) * vocab];
                let expected = select_token(logits, selection);
                compared += 1;
                if found != expected && distance(logits, selection) < BORDER {
                    near += 1;
                    continue;
                }
                assert_eq!(found, expected, "{}: row {row} of {rows}, {vocab} tokens, {selection:?}", lab.label);
            }
        }
        let wrong = vec![Selection::greedy(); rows + 1];
        assert!(lab.device.select(&wrong).is_err(), "{}: {rows} rows, one selection too many", lab.label);
    }
    println!("{}: {vocab} tokens, {compared} selections, {near} on a border", subject.label());
    assert!(near * 50 <= compared, "{}: {near} of {compared} selections differ near a border", subject.label());
}

/// Logits of random rows, by the device's own head; in a broken pass those of the first row are NaN.
fn draw_logits<D: Device>(lab: &mut Lab<D>, rows: usize, broken: bool) -> Vec<f32> {
    let hidden = lab.reference.dims.hidden;
    lab.stage(&[Part::single(rows)]);
    let mut x = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
    if broken {
        x[0] = f32::NAN;
    }
    lab.fill(Which::Residual, &x, hidden);
    lab.head(rows)
}

/// What a device may be asked to do itself.
fn draw_selection(rng: &mut Rng, vocab: usize) -> Selection {
    let mut selection = Selection::greedy();
    if rng.below(4) > 0 {
        selection.temperature = [0.2, 0.7, 1.0, 3.0][rng.below(4)];
        selection.top_k = [1, 2, 20, 63, 64][rng.below(5)];
        selection.top_p = [1.0, 1.0, 0.95, 0.5, 0.01][rng.below(5)];
        selection.min_p = [0.0, 0.0, 0.05, 0.9][rng.below(4)];
        selection.draw = [rng.uniform() as f32, 0.0, 1.0 - f32::EPSILON / 2.0][rng.below(8).saturating_sub(5)];
    }
    if rng.below(3) == 0 {
        selection.repetition_penalty = [1.1, 2.0, 0.5][rng.below(3)];
        selection.repeated = distinct(rng, vocab, 40);
    }
    if rng.below(2) == 0 {
        let most = [3, 64, 500][rng.below(3)];
        // So large a bias rounds the logits away: ties, among them of the largest.
        let kinds = [f32::NAN, f32::NEG_INFINITY, 1e12, 1e12, -1e12, 0.5, -0.5];
        selection.bias = distinct(rng, vocab, most).into_iter().map(|token| (token, kinds[rng.below(kinds.len())])).collect();
    }
    if rng.below(3) == 0 {
        let dense = rng.below(2) == 0;
        let mut bits: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| if dense { rng.word() } else { 0 }).collect();
        for token in distinct(rng, vocab, 5) {
            let token = token as usize % vocab;
            bits[token / 32] |= 1 << (token % 32);
        }
        bits[0] |= 4; // some token always is
        if rng.below(3) == 0 {
            bits.truncate(1 + bits.len() / 2); // tokens beyond the bits are not allowed
        }
        selection.allowed = Some(bits);
    }
    selection
}

/// What no device needs to do itself: many candidates, or many changed logits.
fn for_the_host(rng: &mut Rng, vocab: usize) -> Selection {
    let mut selection = Selection { temperature: 0.8, draw: rng.uniform() as f32, ..Selection::greedy() };
    match rng.below(3) {
        0 => selection.top_k = 65,
        1 => selection.top_p = 0.9,
        _ => {
            selection.top_k = 5;
            // Each token many times, and some that there are not.
            selection.bias = (0..3000).map(|at| ((at % (vocab + 9)) as u32, -0.125)).collect();
        }
    }
    selection
}

/// At most so many tokens, some beyond the vocabulary.
fn distinct(rng: &mut Rng, vocab: usize, most: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..1 + rng.below(most)).map(|_| rng.below(vocab + 3) as u32).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// How near the draw, or a cut of the distribution, is to where the choice changes, in shares of the distribution.
fn distance(logits: &[f32], selection: &Selection) -> f64 {
    let mut adjusted = logits.to_vec();
    for &token in selection.repeated.iter().filter(|&&token| (token as usize) < logits.len()) {
        let logit = &mut adjusted[token as usize];
        *logit = if *logit > 0.0 { *logit / selection.repetition_penalty } else { *logit * selection.repetition_penalty };
    }
    for &(token, bias) in selection.bias.iter().filter(|&&(token, _)| (token as usize) < logits.len()) {
        adjusted[token as usize] += bias;
    }
    let allowed =
        |token: usize| selection.allowed.as_ref().is_none_or(|bits| bits.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1));
    let mut kept: Vec<f64> = adjusted
        .iter()
        .enumerate()
        .filter(|(token, logit)| !logit.is_nan() && allowed(*token))
        .map(|(_, &logit)| f64::from(logit))
        .collect();
    if selection.temperature.is_nan() || selection.temperature <= 0.0 || kept.is_empty() {
        return f64::INFINITY;
    }
    kept.sort_by(|a, b| b.total_cmp(a));
    kept.truncate(if selection.top_k > 0 { selection.top_k } else { kept.len() });
    let top = kept[0];
    let weights: Vec<f64> =
        kept.iter().map(|logit| if *logit == top { 1.0 } else { ((logit - top) / f64::from(selection.temperature)).exp() }).collect();
    let total: f64 = weights.iter().sum();
    let mut nearest = f64::INFINITY;
    let (mut passed, mut cut) = (0.0, weights.len());
    let (top_p, min_p) = (f64::from(selection.top_p), f64::from(selection.min_p));
    for (rank, weight) in weights.iter().enumerate() {
        if rank > 0 && (top_p < 1.0 || min_p > 0.0) {
            nearest = nearest.min((passed / total - top_p).abs()).min((weight - min_p).abs());
            if passed >= top_p * total || *weight < min_p {
                cut = rank;
                break;
            }
        }
        passed += weight;
    }
    let kept_weight: f64 = weights[..cut].iter().sum();
    let point = f64::from(selection.draw) * kept_weight;
    let mut sum = 0.0;
    for weight in &weights[..cut] {
        sum += weight;
        nearest = nearest.min((sum - point).abs() / kept_weight);
    }
    nearest
}
