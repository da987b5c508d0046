//! The kernel ring: every step on the CPU against the f64 reference, for every instruction set of this machine.
//!
//! Operands are made up, outputs are poisoned before, page ids are shuffled. Steps with matrix products run with f32
//! activations here; what coarser ones cost is in `tests/matrix.rs` and in the model ring.

mod rig;

use lily_cpu::{Activations, CpuOptions, Isa};
use lily_model::{Capacity, NormSite, PAGE_TOKENS, Page, Steps};
use lily_testkit::generate::{Distribution, Rng, assert_written, tiny_dims};
use lily_testkit::golden::{assert_close, assert_rows_close, tolerance::STEP_F32};
use lily_testkit::reference::{
    self, AttentionDims, DeltaDims, DeltaState, DeltaTokens, KvCache, ModelDims, experts_output, rms_norm, shared_output,
};
use rig::lab::{ATTENTION, DELTA, Lab, Part, columns, exact, fill, poison, queries, values};

fn options(isa: Isa) -> CpuOptions {
    CpuOptions::default().with_isa(isa).with_activations(Activations::F32).with_threads(3)
}

const CAPACITY: Capacity = Capacity { slots: 4, pages: 40, rows: 200, logit_rows: 200 };

/// Page ids in an order of their own for every seed.
fn shuffled_pages(count: usize, seed: u64) -> Vec<Page> {
    let mut pages: Vec<Page> = (0..count as u32).map(Page).collect();
    let mut rng = Rng::new(seed);
    for at in (1..count).rev() {
        pages.swap(at, rng.below(at + 1));
    }
    pages
}

fn model(attention: AttentionDims, delta: DeltaDims) -> ModelDims {
    ModelDims { attention, delta, ..tiny_dims() }
}

fn attention_dims() -> Vec<AttentionDims> {
    let dims = |heads_q, heads_kv, head_dim, rotary_dim| AttentionDims { heads_q, heads_kv, head_dim, rotary_dim, rope_theta: 1e7 };
    // The full model, lily-nano, and what may break: odd groups, no grouping, heads that are no whole vectors.
    vec![dims(16, 2, 256, 64), dims(4, 1, 256, 64), dims(6, 2, 24, 8), dims(3, 3, 40, 16), dims(5, 1, 16, 16), dims(64, 1, 16, 4)]
}

fn delta_dims() -> Vec<DeltaDims> {
    let dims = |heads_k, heads_v, dim_k, dim_v, conv_width| DeltaDims { heads_k, heads_v, dim_k, dim_v, conv_width };
    vec![dims(16, 32, 128, 128, 4), dims(2, 4, 128, 128, 4), dims(3, 9, 24, 40, 4), dims(4, 4, 16, 8, 2), dims(1, 2, 36, 100, 3)]
}

#[test]
fn delta_update_advances_every_span() {
    for delta in delta_dims() {
        for isa in Isa::available() {
            let mut lab = Lab::new(model(tiny_dims().attention, delta), options(isa), CAPACITY);
            for spans in [vec![1], vec![2], vec![3, 1, 31], vec![33, 1, 1], vec![130, 5]] {
                check_delta(&mut lab, isa, delta, &spans);
            }
        }
    }
}

/// Two passes over the same slots: the second starts from the state that the first left.
fn check_delta(lab: &mut Lab, isa: Isa, dims: DeltaDims, spans: &[usize]) {
    use lily_model::{Device, Slot};
    let parts: Vec<Part> =
        spans.iter().enumerate().map(|(at, &rows)| Part { slot: 3 - at as u32, start: 0, rows, pages: vec![Page(at as u32)] }).collect();
    let mut states: Vec<DeltaState> = parts.iter().map(|_| DeltaState::new(&dims)).collect();
    parts.iter().for_each(|part| lab.device.state_clear(Slot(part.slot)));
    let (channels, values) = (dims.channels(), dims.heads_v * dims.dim_v);
    let width = channels + values + 2 * dims.heads_v;
    for (pass, distribution) in [Distribution::Gaussian, Distribution::HeavyTails].into_iter().enumerate() {
        let rows = lab.stage(&parts);
        let projected = distribution.draw(&mut lab.rng, rows, width);
        fill(&mut lab.buffers.projected, &projected, width);
        poison(&mut lab.buffers.mixed, rows);
        lab.device.delta_update(DELTA, rows, &lab.buffers.projected, &mut lab.buffers.mixed);
        let found = columns(&lab.buffers.mixed, rows, values);
        let mut first = 0;
        for (part, state) in parts.iter().zip(&mut states) {
            let range = first..first + part.rows;
            let rows: Vec<Vec<f64>> = projected[first * width..][..part.rows * width].chunks_exact(width).map(exact).collect();
            let expected = reference_delta(lab, &rows, state, dims);
            let name = format!("{isa} {dims:?} spans {spans:?} pass {pass} slot {}", part.slot);
            let found = &found[range.start * values..range.end * values];
            assert_written(&name, found);
            assert_close(&name, found, &expected, STEP_F32);
            assert_rows_close(&name, found, &expected, values, 4.0 * STEP_F32);
            first = range.end;
        }
    }
}

/// `rows`: each `qkv | z | b | a`.
fn reference_delta(lab: &Lab, rows: &[Vec<f64>], state: &mut DeltaState, dims: DeltaDims) -> Vec<f64> {
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

/// A sequence of the attention checks, with its cache as the reference has it.
struct Context {
    part: Part,
    cache: KvCache,
}

#[test]
fn attention_sees_its_own_sequence_up_to_its_own_row() {
    for attention in attention_dims() {
        for isa in Isa::available() {
            let mut lab = Lab::new(model(attention, tiny_dims().delta), options(isa), CAPACITY);
            // (context before, rows): decode and prefill in one batch, at the edges of pages and tiles.
            for parts in
                [vec![(0, 1)], vec![(254, 1), (255, 1), (256, 1), (0, 130)], vec![(999, 1), (0, 2), (250, 9), (511, 3)], vec![(767, 65)]]
            {
                check_attention(&mut lab, isa, &parts);
            }
        }
    }
}

#[test]
fn attention_over_thousands_of_positions() {
    for attention in [attention_dims()[0], attention_dims()[2]] {
        for isa in Isa::available() {
            let mut lab = Lab::new(model(attention, tiny_dims().delta), options(isa), CAPACITY);
            check_attention(&mut lab, isa, &[(8190, 1)]);
            check_attention(&mut lab, isa, &[(8185, 5)]);
        }
    }
}

#[test]
fn attention_over_the_longest_context() {
    let attention = AttentionDims { heads_q: 2, heads_kv: 1, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    let capacity = Capacity { pages: 1024, rows: 2048, ..CAPACITY };
    let mut lab = Lab::new(model(attention, tiny_dims().delta), options(Isa::best()), capacity);
    check_attention(&mut lab, Isa::best(), &[(262_143, 1)]);
    check_attention(&mut lab, Isa::best(), &[(131_071, 3)]);
}

fn check_attention(lab: &mut Lab, isa: Isa, parts: &[(usize, usize)]) {
    let dims = lab.reference.dims.attention;
    let (width, kv_width) = (2 * (dims.heads_q + dims.heads_kv) * dims.head_dim, dims.heads_kv * dims.head_dim);
    let longest = parts.iter().map(|(start, rows)| start + rows).max().expect("a part");
    let mut free = shuffled_pages(parts.len() * longest.div_ceil(PAGE_TOKENS), longest as u64).into_iter();
    let mut contexts: Vec<Context> = Vec::new();
    for (at, &(start, rows)) in parts.iter().enumerate() {
        let pages = free.by_ref().take((start + rows).div_ceil(PAGE_TOKENS)).collect();
        let mut context = Context { part: Part { slot: at as u32, start: 0, rows: 0, pages }, cache: KvCache::default() };
        while context.part.start < start {
            let rows = (start - context.part.start).min(lab.device_rows());
            context.part.rows = rows;
            // Only keys and values matter here, and drawing numbers is what takes the time.
            let kv = Distribution::Gaussian.draw(&mut lab.rng, rows, 2 * kv_width);
            let rows = kv.chunks_exact(2 * kv_width).flat_map(|kv| [vec![0.0; width - 2 * kv_width], kv.to_vec()].concat());
            advance(lab, std::slice::from_mut(&mut context), &rows.collect::<Vec<f32>>());
            context.part.start += context.part.rows;
        }
        context.part.rows = rows;
        contexts.push(context);
    }
    let rows = parts.iter().map(|(_, rows)| rows).sum();
    let projected = Distribution::Gaussian.draw(&mut lab.rng, rows, width);
    advance(lab, &mut contexts, &projected);
    poison(&mut lab.buffers.mixed, rows);
    lab.device.attn_mix(ATTENTION, rows, &lab.buffers.projected, &mut lab.buffers.mixed);
    let q_width = dims.heads_q * dims.head_dim;
    let found = columns(&lab.buffers.mixed, rows, q_width);
    let mut first = 0;
    for context in &contexts {
        let Part { start, rows, .. } = context.part;
        let projected: Vec<f64> = exact(&projected[first * width..(first + rows) * width]);
        let queries: Vec<f64> = projected.chunks_exact(width).flat_map(|row| row[..2 * q_width].to_vec()).collect();
        let (query, gate) = reference::split_query_gate(&queries, dims.head_dim);
        let query = rotated(lab, &query, &lab.attention_weights().q_norm, start, rows);
        let expected = reference::gate_output(&reference::attention(&query, &context.cache, &dims), &gate);
        let name = format!("{isa} {dims:?} rows {rows} at {start} of {parts:?}");
        let found = &found[first * q_width..(first + rows) * q_width];
        assert_written(&name, found);
        // Where keys round to another half float than the reference's, and where angles of some hundred thousand
        // radians are rounded to f32, weights shift.
        let angles = 1e-7 * start as f64;
        assert_rows_close(&name, found, &expected, q_width, 4e-5 + angles);
        assert_eq!(context.cache.keys.len() / kv_width, start + rows, "the test's own cache");
        first += rows;
    }
}

/// Prepares the next rows of some sequences, on both sides; checks keys in place.
fn advance(lab: &mut Lab, contexts: &mut [Context], projected: &[f32]) {
    let dims = lab.reference.dims.attention;
    let parts: Vec<Part> = contexts.iter().map(|context| context.part.clone()).collect();
    let rows = lab.stage(&parts);
    let width = projected.len() / rows;
    fill(&mut lab.buffers.projected, projected, width);
    lab.device.attn_prepare(ATTENTION, rows, &mut lab.buffers.projected);
    let prepared = columns(&lab.buffers.projected, rows, width);
    let (keys_at, kv_width) = (2 * dims.heads_q * dims.head_dim, dims.heads_kv * dims.head_dim);
    let mut first = 0;
    for context in contexts {
        let Part { start, rows, .. } = context.part;
        let raw = exact(&projected[first * width..(first + rows) * width]);
        let prepared = &prepared[first * width..(first + rows) * width];
        let part = |at: usize| -> Vec<f64> { raw.chunks_exact(width).flat_map(|row| row[at..at + kv_width].to_vec()).collect() };
        let keys = rotated(lab, &part(keys_at), &lab.attention_weights().k_norm, start, rows);
        let found: Vec<f32> = prepared.chunks_exact(width).flat_map(|row| row[keys_at..keys_at + kv_width].to_vec()).collect();
        assert_rows_close(&format!("keys from {start}"), &found, &keys, kv_width, STEP_F32 + 1.2e-7 * (start + rows) as f64);
        let half = |x: &f64| half::f16::from_f64(*x).to_f64();
        context.cache.keys.extend(keys.iter().map(half));
        context.cache.values.extend(part(keys_at + kv_width).iter().map(half));
        first += rows;
    }
}

/// Norm and rotation of heads at consecutive positions.
fn rotated(lab: &Lab, heads: &[f64], gain: &[f64], start: usize, rows: usize) -> Vec<f64> {
    let dims = &lab.reference.dims;
    let positions: Vec<usize> = (start..start + rows).collect();
    let AttentionDims { head_dim, rotary_dim, rope_theta, .. } = dims.attention;
    reference::rope(&rms_norm(heads, gain, dims.eps), &positions, head_dim, rotary_dim, rope_theta)
}

#[test]
fn row_steps_match_the_reference() {
    let dims = ModelDims { hidden: 192, ..tiny_dims() };
    for isa in Isa::available() {
        let mut lab = Lab::new(dims.clone(), options(isa), CAPACITY);
        for (rows, distribution) in (1..=CAPACITY.rows).step_by(13).zip(Distribution::ALL.into_iter().cycle()) {
            let name = format!("{isa} {rows} rows {distribution:?}");
            let hidden = dims.hidden;
            let tokens: Vec<u32> = (0..rows).map(|_| lab.rng.below(dims.vocab) as u32).collect();
            let part = Part { slot: 0, start: 0, rows, pages: vec![Page(0)] };
            lab.stage_tokens(&[part], std::slice::from_ref(&tokens));

            poison(&mut lab.buffers.residual, rows);
            lab.device.embed(rows, &mut lab.buffers.residual);
            let expected: Vec<f64> = tokens.iter().flat_map(|&token| lab.reference.embedding.row(token as usize).to_vec()).collect();
            assert_rows_close(&format!("{name} embed"), lab.buffers.residual.values().first(rows), &expected, hidden, 1e-6);

            let x = distribution.draw(&mut lab.rng, rows, hidden);
            fill(&mut lab.buffers.residual, &x, hidden);
            for (site, gain) in [
                (NormSite::Mixer(ATTENTION), &lab.reference.layers[ATTENTION].input_norm),
                (NormSite::Experts(DELTA), &lab.reference.layers[DELTA].post_norm),
            ] {
                poison(&mut lab.buffers.normed, rows);
                lab.device.norm(site, rows, &lab.buffers.residual, &mut lab.buffers.normed);
                let expected = rms_norm(&exact(&x), gain, dims.eps);
                assert_rows_close(&format!("{name} {site:?}"), lab.buffers.normed.values().first(rows), &expected, hidden, STEP_F32);
            }

            lab.device.head(rows, &lab.buffers.residual);
            let expected = lab.reference.head.apply(&rms_norm(&exact(&x), &lab.reference.final_norm, dims.eps));
            let found: Vec<f32> = (0..rows).flat_map(|row| lily_model::Device::logits(&lab.device, row).to_vec()).collect();
            assert_rows_close(&format!("{name} head"), &found, &expected, dims.vocab, STEP_F32);
        }
    }
}

#[test]
fn projections_and_experts_match_the_reference() {
    // 4-bit, and raw where the widths are no whole groups.
    for dims in [tiny_dims(), model(attention_dims()[2], delta_dims()[2])] {
        for isa in Isa::available() {
            let mut lab = Lab::new(dims.clone(), options(isa), CAPACITY);
            for rows in [1, 2, 4, 5, 31, 130] {
                let name = format!("{isa} {rows} rows");
                lab.stage(&[Part { slot: 0, start: 0, rows, pages: vec![Page(0)] }]);
                let x = Distribution::Gaussian.draw(&mut lab.rng, rows, dims.hidden);
                fill(&mut lab.buffers.normed, &x, dims.hidden);
                check_projections(&name, &mut lab, rows, &exact(&x));
                check_outputs(&name, &mut lab, rows);
                check_experts(&name, &mut lab, rows, &exact(&x));
            }
        }
    }
}

fn check_projections(name: &str, lab: &mut Lab, rows: usize, x: &[f64]) {
    let weights = lab.delta_weights();
    let expected = [&weights.in_proj_qkv, &weights.in_proj_z, &weights.in_proj_b, &weights.in_proj_a].map(|w| w.apply(x));
    lab.device.delta_project(DELTA, rows, &lab.buffers.normed, &mut lab.buffers.projected);
    check_side_by_side(&format!("{name} delta_project"), lab, rows, &expected);

    let weights = lab.attention_weights();
    let expected = [&weights.q_proj, &weights.k_proj, &weights.v_proj].map(|w| w.apply(x));
    lab.device.attn_project(ATTENTION, rows, &lab.buffers.normed, &mut lab.buffers.projected);
    check_side_by_side(&format!("{name} attn_project"), lab, rows, &expected);
}

fn check_outputs(name: &str, lab: &mut Lab, rows: usize) {
    let dims = lab.reference.dims.clone();
    for (layer, width) in [(DELTA, values(&dims)), (ATTENTION, queries(&dims))] {
        let mixed = Distribution::Gaussian.draw(&mut lab.rng, rows, width);
        let residual = Distribution::Gaussian.draw(&mut lab.rng, rows, dims.hidden);
        fill(&mut lab.buffers.mixed, &mixed, width);
        fill(&mut lab.buffers.residual, &residual, dims.hidden);
        lab.device.mixer_output(layer, rows, &lab.buffers.mixed, &mut lab.buffers.residual);
        let out = if layer == DELTA { &lab.delta_weights().out_proj } else { &lab.attention_weights().o_proj };
        let expected = reference::add(&exact(&residual), &out.apply(&exact(&mixed)));
        let found = lab.buffers.residual.values().first(rows);
        assert_rows_close(&format!("{name} mixer_output of layer {layer}"), found, &expected, dims.hidden, STEP_F32);
    }
}

fn check_experts(name: &str, lab: &mut Lab, rows: usize, x: &[f64]) {
    let hidden = lab.reference.dims.hidden;
    let routes = check_routes(name, lab, rows, x);
    let residual = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
    fill(&mut lab.buffers.residual, &residual, hidden);
    poison(&mut lab.buffers.expert_hidden, rows);
    let buffers = &mut lab.buffers;
    lab.device.moe_gate_up(DELTA, rows, &buffers.normed, &buffers.routes, &mut buffers.expert_hidden);
    assert_written(&format!("{name} moe_gate_up"), buffers.expert_hidden.values().first(rows));
    lab.device.moe_down(DELTA, rows, &buffers.routes, &buffers.expert_hidden, &mut buffers.residual);
    let weights = &lab.reference.layers[DELTA].moe;
    let sum = reference::add(&experts_output(x, &routes, &weights.experts), &shared_output(x, weights));
    let expected = reference::add(&exact(&residual), &sum);
    assert_rows_close(&format!("{name} experts"), buffers.residual.values().first(rows), &expected, hidden, STEP_F32);
}

/// The projections of one input, in the columns that the contract gives them.
fn check_side_by_side(name: &str, lab: &Lab, rows: usize, jobs: &[Vec<f64>]) {
    let mut at = 0;
    for (job, expected) in jobs.iter().enumerate() {
        let width = expected.len() / rows;
        let found = columns(&lab.buffers.projected, rows, at + width);
        let found: Vec<f32> = found.chunks_exact(at + width).flat_map(|row| row[at..].to_vec()).collect();
        assert_rows_close(&format!("{name} matrix {job}"), &found, expected, width, STEP_F32);
        at += width;
    }
}

/// Routes on both sides; experts must agree wherever the margin is more than rounding. Returns the reference's routes,
/// with the experts that the device chose.
fn check_routes(name: &str, lab: &mut Lab, rows: usize, x: &[f64]) -> Vec<reference::Route> {
    let dims = lab.reference.dims.moe;
    let weights = &lab.reference.layers[DELTA].moe;
    lab.device.moe_route(DELTA, rows, &lab.buffers.normed, &mut lab.buffers.routes);
    let found = lab.device.read(&lab.buffers.routes, rows);
    let gates = weights.shared_gate.apply(x);
    let routes = reference::route(&weights.router.apply(x), &dims);
    for ((found, route), gate) in found.chunks_exact(2 * dims.experts_per_token + 1).zip(&routes).zip(gates) {
        let (experts, rest) = found.split_at(dims.experts_per_token);
        assert!(route.margin > 1e-6, "{name}: the seed gives a tie, which checks nothing");
        let expected: Vec<f32> = route.experts.iter().map(|&expert| expert as f32).collect();
        assert_eq!(experts, expected, "{name}: experts");
        assert_close(&format!("{name}: weights"), &rest[..dims.experts_per_token], &route.weights, STEP_F32);
        assert_close(&format!("{name}: shared gate"), &rest[dims.experts_per_token..], &[reference::sigmoid(gate)], STEP_F32);
    }
    routes
}

#[test]
fn nan_comes_out_where_nan_went_in() {
    let dims = model(attention_dims()[2], delta_dims()[2]);
    for isa in Isa::available() {
        let mut lab = Lab::new(dims.clone(), options(isa), CAPACITY);
        let hidden = dims.hidden;
        let rows = 6;
        let parts = [0, 1].map(|slot| Part { slot, start: 0, rows: rows / 2, pages: vec![Page(slot)] });
        lab.stage(&parts);
        // One NaN in the first row of the second sequence: the first sequence must not notice.
        let mut x = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
        x[rows / 2 * hidden + 7] = f32::NAN;
        fill(&mut lab.buffers.residual, &x, hidden);
        let b = &mut lab.buffers;
        lab.device.norm(NormSite::Mixer(DELTA), rows, &b.residual, &mut b.normed);
        lab.device.delta_project(DELTA, rows, &b.normed, &mut b.projected);
        lab.device.delta_update(DELTA, rows, &b.projected, &mut b.mixed);
        lab.device.mixer_output(DELTA, rows, &b.mixed, &mut b.residual);
        lab.device.norm(NormSite::Mixer(ATTENTION), rows, &b.residual, &mut b.normed);
        lab.device.attn_project(ATTENTION, rows, &b.normed, &mut b.projected);
        lab.device.attn_prepare(ATTENTION, rows, &mut b.projected);
        lab.device.attn_mix(ATTENTION, rows, &b.projected, &mut b.mixed);
        lab.device.mixer_output(ATTENTION, rows, &b.mixed, &mut b.residual);
        lab.device.norm(NormSite::Experts(ATTENTION), rows, &b.residual, &mut b.normed);
        lab.device.moe_route(ATTENTION, rows, &b.normed, &mut b.routes);
        lab.device.moe_gate_up(ATTENTION, rows, &b.normed, &b.routes, &mut b.expert_hidden);
        lab.device.moe_down(ATTENTION, rows, &b.routes, &b.expert_hidden, &mut b.residual);
        lab.device.head(rows, &b.residual);
        for row in 0..rows {
            let logits = lily_model::Device::logits(&lab.device, row);
            let poisoned = row >= rows / 2;
            assert!(logits.iter().all(|logit| logit.is_nan() == poisoned), "{isa}: row {row}");
        }
    }
}
