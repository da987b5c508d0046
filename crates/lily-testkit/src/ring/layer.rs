//! The layer ring: what every layer of a tiny model writes, against transformers in f32 and the f64 reference.
//!
//! Steps are compared in their order, so that a failure names the first tensor that is wrong.

use lily_model::{Batch, LayerKind, Logits, ModelConfig, Page, Record, Runner, Slot, Span, Traced};

use super::rig::{CAPACITY, open_device};
use super::{Bound, Subject, Tolerances};
use crate::checkpoint::load_model;
use crate::golden::{Element, Golden, goldens_directory};
use crate::reference::Trace;

/// Compares every layer of the golden `name` (see [`crate::golden::TINY`]).
pub fn check<S: Subject>(subject: &S, name: &str) {
    let golden = Golden::load(name).expect("the golden loads");
    let tokens = &golden.sequences[0].tokens;
    let model = load_model(&goldens_directory().join(name)).expect("the reference loads it");
    let mut trace = Trace::on();
    model.forward(tokens, &mut model.state(), &mut trace);
    let (config, records) = records(subject, name, tokens);
    let ring = Ring { label: format!("{name} {}", subject.label()), tolerances: subject.tolerances(), config, golden, trace, records };
    ring.against_reference(0, "embedding", "embed", ring.config.hidden);
    let mut before = ring.columns("embed", ring.config.hidden);
    for layer in 0..ring.config.layers.len() {
        before = ring.check_layer(layer, &before);
    }
}

/// One pass over the golden's first sequence, every step kept.
fn records<S: Subject>(subject: &S, name: &str, tokens: &[u32]) -> (ModelConfig, Vec<Record>) {
    let (config, device) = open_device(subject, &goldens_directory().join(name), CAPACITY);
    let mut runner: Runner<Traced<S::Device>> = Runner::new(config, Traced::new(device)).expect("the device has room");
    let span = Span { slot: Slot(2), start: 0, tokens, pages: &[Page(5)], logits: Logits::All };
    runner.run(&Batch { spans: &[span] }).expect("the batch is in range");
    (runner.config, runner.device.take())
}

/// What a device wrote, beside what it should have written.
struct Ring {
    label: String,
    tolerances: Tolerances,
    config: ModelConfig,
    golden: Golden,
    trace: Trace,
    records: Vec<Record>,
}

impl Ring {
    /// Compares one layer; `before` is the residual that enters it. Returns the residual that leaves it.
    fn check_layer(&self, layer: usize, before: &[f32]) -> Vec<f32> {
        let (config, hidden) = (&self.config, self.config.hidden);
        let step = |step: &str| format!("layer {layer} {step}");
        let tensor = |step: &str| format!("layers.{layer}.{step}");
        self.against_golden(layer, &tensor("input_norm"), &self.columns(&step("mixer_norm"), hidden));
        match config.layers[layer] {
            LayerKind::Delta => {
                self.against_reference(layer, &tensor("qkv"), &step("delta_project"), config.conv_dim());
                self.against_reference(layer, &tensor("gated"), &step("delta_update"), config.v_width());
            }
            LayerKind::Attention => self.against_reference(layer, &tensor("gated"), &step("attn_mix"), config.q_width()),
        }
        let residual = self.columns(&step("mixer_output"), hidden);
        self.against_golden(layer, &tensor("mixer"), &difference(&residual, before));
        self.against_golden(layer, &tensor("residual"), &residual);
        self.against_reference(layer, &tensor("post_norm"), &step("experts_norm"), hidden);
        let output = self.columns(&step("moe_down"), hidden);
        self.against_golden(layer, &tensor("moe"), &difference(&output, &residual));
        self.against_golden(layer, &tensor("output"), &output);
        output
    }

    fn bound(&self, layer: usize) -> Bound {
        let attention = self.config.layers[..=layer].contains(&LayerKind::Attention);
        if attention { self.tolerances.layer_attention } else { self.tolerances.layer }
    }

    fn assert_within(&self, layer: usize, label: &str, (found, expected): (&[f32], &[impl Element]), width: usize) {
        let bound = self.bound(layer);
        bound.compare(&format!("{} {label}", self.label), found, expected, width).assert_within(bound.tolerance());
    }

    fn against_reference(&self, layer: usize, tensor: &str, record: &str, width: usize) {
        let expected = self.trace.get(tensor).unwrap_or_else(|| panic!("the reference has no {tensor}"));
        let label = format!("{record} (reference {tensor})");
        self.assert_within(layer, &label, (&self.columns(record, width), expected), width);
    }

    fn against_golden(&self, layer: usize, tensor: &str, found: &[f32]) {
        let hidden = self.config.hidden;
        let found: Vec<f32> = self.golden.positions.iter().flat_map(|p| found[p * hidden..(p + 1) * hidden].to_vec()).collect();
        self.assert_within(layer, &format!("{tensor} (transformers)"), (&found, self.golden.tensor(tensor)), hidden);
    }

    /// The leading `width` columns of a record.
    fn columns(&self, name: &str, width: usize) -> Vec<f32> {
        let record = self.records.iter().find(|record| record.name == name).unwrap_or_else(|| panic!("no record {name}"));
        let stride = record.values.len() / record.rows;
        record.values.chunks_exact(stride).flat_map(|row| row[..width].to_vec()).collect()
    }
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
