//! The layer ring: what every layer of the tiny models writes, against transformers in f32 and the f64 reference.
//!
//! Steps are compared in their order, so that a failure names the first tensor that is wrong.

mod rig;

use lily_cpu::{Activations, CpuDevice, CpuOptions, Isa};
use lily_model::{Batch, LayerKind, Logits, Page, Record, Runner, Slot, Span, Traced};
use lily_testkit::checkpoint::load_model;
use lily_testkit::golden::{Golden, TINY, assert_rows_close, goldens_directory};
use lily_testkit::reference::Trace;

/// Relative error of a row before the first attention layer: f32 throughout.
const TOLERANCE_F32: f64 = 3e-5;
/// From the first attention layer on: keys and values are held in half precision (2^-12 of an element), and where scores
/// are large a key's rounding shifts weights by as much as a thousandth.
const TOLERANCE_ATTENTION: f64 = 1e-3;

/// One pass over the golden's first sequence, every step kept.
fn records(name: &str, isa: Isa, tokens: &[u32]) -> Vec<Record> {
    let options = CpuOptions::default().with_isa(isa).with_activations(Activations::F32).with_threads(2);
    let Runner { config, device, .. } = rig::open(name, options);
    let mut runner: Runner<Traced<CpuDevice>> = Runner::new(config, Traced::new(device)).expect("the device has room");
    let span = Span { slot: Slot(2), start: 0, tokens, pages: &[Page(5)], logits: Logits::All };
    runner.run(&Batch { spans: &[span] }).expect("the batch is in range");
    runner.device.take()
}

/// The leading `width` columns of a record.
fn columns(records: &[Record], name: &str, width: usize) -> Vec<f32> {
    let record = records.iter().find(|record| record.name == name).unwrap_or_else(|| panic!("no record {name}"));
    let stride = record.values.len() / record.rows;
    record.values.chunks_exact(stride).flat_map(|row| row[..width].to_vec()).collect()
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn check(name: &str, isa: Isa) {
    let golden = Golden::load(name).expect("the golden loads");
    let tokens = &golden.sequences[0].tokens;
    let model = load_model(&goldens_directory().join(name)).expect("the reference loads it");
    let mut trace = Trace::on();
    model.forward(tokens, &mut model.state(), &mut trace);
    let records = records(name, isa, tokens);
    let config = rig::open(name, CpuOptions::default()).config;
    let hidden = config.hidden;

    let first_attention = config.layers.iter().position(|&kind| kind == LayerKind::Attention).unwrap_or(usize::MAX);
    let tolerance = |layer: usize| if layer < first_attention { TOLERANCE_F32 } else { TOLERANCE_ATTENTION };
    let against_reference = |layer: usize, step: &str, record: &str, width: usize| {
        let expected = trace.get(step).unwrap_or_else(|| panic!("the reference has no {step}"));
        let label = format!("{name} {isa} {record} (reference {step})");
        assert_rows_close(&label, &columns(&records, record, width), expected, width, tolerance(layer));
    };
    let against_golden = |layer: usize, tensor: &str, found: &[f32]| {
        let found: Vec<f32> = golden.positions.iter().flat_map(|p| found[p * hidden..(p + 1) * hidden].to_vec()).collect();
        assert_rows_close(&format!("{name} {isa} {tensor} (transformers)"), &found, golden.tensor(tensor), hidden, tolerance(layer));
    };

    against_reference(0, "embedding", "embed", hidden);
    let mut before = columns(&records, "embed", hidden);
    for (layer, kind) in config.layers.iter().enumerate() {
        let step = |step: &str| format!("layer {layer} {step}");
        let tensor = |step: &str| format!("layers.{layer}.{step}");
        against_golden(layer, &tensor("input_norm"), &columns(&records, &step("mixer_norm"), hidden));
        match kind {
            LayerKind::Delta => {
                against_reference(layer, &tensor("qkv"), &step("delta_project"), config.conv_dim());
                against_reference(layer, &tensor("gated"), &step("delta_update"), config.v_width());
            }
            LayerKind::Attention => against_reference(layer, &tensor("gated"), &step("attn_mix"), config.q_width()),
        }
        let residual = columns(&records, &step("mixer_output"), hidden);
        against_golden(layer, &tensor("mixer"), &difference(&residual, &before));
        against_golden(layer, &tensor("residual"), &residual);
        against_reference(layer, &tensor("post_norm"), &step("experts_norm"), hidden);
        let output = columns(&records, &step("moe_down"), hidden);
        against_golden(layer, &tensor("moe"), &difference(&output, &residual));
        against_golden(layer, &tensor("output"), &output);
        before = output;
    }
}

#[test]
fn every_layer_agrees_with_transformers_and_the_reference() {
    for name in TINY {
        for isa in Isa::available() {
            check(name, isa);
        }
    }
}
