//! DeltaNet between its projections: convolution, state update, gated norm, over several spans at once.

use lily_model::{Capacity, Device, Page, Slot};

use super::model;
use crate::generate::{Distribution, tiny_dims};
use crate::golden::{assert_close, assert_rows_close};
use crate::reference::{self, DeltaDims, DeltaState, DeltaTokens};
use crate::ring::Subject;
use crate::ring::rig::{DELTA, Lab, Part, Which, assert_no_nan};

/// Rows of the spans of a pass: decode, prefill, both.
pub const SPANS: [&[usize]; 5] = [&[1], &[2], &[3, 1, 31], &[33, 1, 1], &[130, 5]];

/// Every list of spans, each in two passes over the same slots: the second starts from the state that the first left.
pub fn check<S: Subject>(subject: &S, dims: DeltaDims, spans: &[&[usize]]) {
    let slots = spans.iter().map(|spans| spans.len()).max().unwrap_or(1).max(super::CAPACITY.slots);
    let mut lab = Lab::new(subject, model(tiny_dims().attention, dims), Capacity { slots, ..super::CAPACITY });
    spans.iter().for_each(|spans| check_spans(&mut lab, dims, spans));
}

fn check_spans<D: Device>(lab: &mut Lab<D>, dims: DeltaDims, spans: &[usize]) {
    let last = lab.device.capacity().slots - 1;
    let part = |(at, &rows): (usize, &usize)| Part {
        slot: (last - at) as u32,
        start: 0,
        rows,
        pages: vec![Page(2 * at as u32), Page(2 * at as u32 + 1)],
    };
    let mut parts: Vec<Part> = spans.iter().enumerate().map(part).collect();
    let mut states: Vec<DeltaState> = parts.iter().map(|_| DeltaState::new(&dims)).collect();
    parts.iter().for_each(|part| lab.device.state_clear(Slot(part.slot)));
    let values = dims.heads_v * dims.dim_v;
    let width = dims.channels() + values + 2 * dims.heads_v;
    for (pass, distribution) in [Distribution::Gaussian, Distribution::HeavyTails].into_iter().enumerate() {
        let rows = lab.stage(&parts);
        let projected = distribution.draw(&mut lab.rng, rows, width);
        let projected = lab.fill(Which::Projected, &projected, width);
        lab.poison(Which::Mixed, rows);
        lab.step(|device, b| device.delta_update(DELTA, rows, &b.projected, &mut b.mixed));
        let found = lab.columns(Which::Mixed, rows, values);
        let mut first = 0;
        for (part, state) in parts.iter().zip(&mut states) {
            let range = first..first + part.rows;
            let rows: Vec<&[f64]> = projected[first * width..][..part.rows * width].chunks_exact(width).collect();
            let expected = reference_delta(lab, &rows, state, dims);
            let name = format!("{} {dims:?} spans {spans:?} pass {pass} slot {}", lab.label, part.slot);
            let found = &found[range.start * values..range.end * values];
            assert_no_nan(&name, found);
            assert_close(&name, found, &expected, lab.tolerances.delta);
            assert_rows_close(&name, found, &expected, values, 4.0 * lab.tolerances.delta);
            first = range.end;
        }
        parts.iter_mut().for_each(|part| part.start += part.rows);
    }
}

/// `rows`: each `qkv | z | b | a`.
fn reference_delta<D: Device>(lab: &Lab<D>, rows: &[&[f64]], state: &mut DeltaState, dims: DeltaDims) -> Vec<f64> {
    let weights = lab.delta_weights();
    let (channels, values, heads) = (dims.channels(), dims.heads_v * dims.dim_v, dims.heads_v);
    let part = |range: std::ops::Range<usize>| -> Vec<f64> { rows.iter().flat_map(|row| row[range.clone()].to_vec()).collect() };
    let convolved = reference::causal_conv(&part(0..channels), &weights.conv, &mut state.conv, dims.conv_width);
    let (query, key, value) = reference::split_qkv(&convolved, &dims);
    let gates = channels + values;
    let tokens = DeltaTokens {
        query,
        key,
        value,
        decay: reference::decay(&part(gates + heads..gates + 2 * heads), &weights.a_log, &weights.dt_bias),
        beta: reference::beta(&part(gates..gates + heads)),
    };
    let reads = reference::delta_update(&tokens, &mut state.memory, &dims);
    reference::gated_rms_norm(&reads, &part(channels..gates), &weights.norm, lab.reference.dims.eps)
}
