//! The layer ring: what every layer of a tiny model writes, against transformers in f32 and the f64 reference.
//!
//! Steps are compared in their order, so that a failure names the first tensor that is wrong.

use lily_model::{Batch, LayerKind, Logits, ModelConfig, Page, Record, Runner, Slot, Span, Traced};

use super::rig::{CAPACITY, open_device};
use super::ties::Ties;
use super::{Bound, Subject, Tolerances};
use crate::checkpoint::{load_model, load_model_stored};
use crate::golden::{Golden, goldens_directory};
use crate::reference::Trace;

/// Compares every layer of the golden `name` (see [`crate::golden::TINY`]).
pub fn check<S: Subject>(subject: &S, name: &str) {
    let golden = Golden::load(name).expect("the golden loads");
    let tokens = &golden.sequences[0].tokens;
    let directory = goldens_directory().join(name);
    let model = load_model_stored(&directory, subject.stored()).expect("the reference loads it");
    // Where a device cannot hold the checkpoint's own numbers, transformers computes with others.
    let exact = load_model(&directory).expect("the reference loads it").embedding.values == model.embedding.values;
    let mut trace = Trace::on();
    model.forward(tokens, &mut model.state(), &mut trace);
    let (config, records) = records(subject, name, tokens);
    let (label, tolerances) = (format!("{name} {}", subject.label()), subject.tolerances());
    let ties = Ties::new(&label, tolerances.near_tie, &model, &trace);
    let mut ring = Ring { tolerances, config, golden, exact, trace, records, ties };
    ring.against_reference((0, false), "embedding", "embed", ring.config.hidden);
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
    tolerances: Tolerances,
    config: ModelConfig,
    golden: Golden,
    /// Whether the golden speaks of the same numbers.
    exact: bool,
    trace: Trace,
    records: Vec<Record>,
    ties: Ties,
}

impl Ring {
    /// Compares one layer; `before` is the residual that enters it. Returns the residual that leaves it.
    fn check_layer(&mut self, layer: usize, before: &[f32]) -> Vec<f32> {
        let hidden = self.config.hidden;
        let (mixer, experts) = ((layer, false), (layer, true));
        let step = |step: &str| format!("layer {layer} {step}");
        let tensor = |step: &str| format!("layers.{layer}.{step}");
        self.against_golden(mixer, &tensor("input_norm"), &self.columns(&step("mixer_norm"), hidden));
        match self.config.layers[layer] {
            LayerKind::Delta => {
                self.against_reference(mixer, &tensor("qkv"), &step("delta_project"), self.config.conv_dim());
                self.against_reference(mixer, &tensor("gated"), &step("delta_update"), self.config.v_width());
            }
            LayerKind::Attention => self.against_reference(mixer, &tensor("gated"), &step("attn_mix"), self.config.q_width()),
        }
        let residual = self.columns(&step("mixer_output"), hidden);
        self.against_golden(mixer, &tensor("mixer"), &difference(&residual, before));
        self.against_golden(mixer, &tensor("residual"), &residual);
        self.against_reference(mixer, &tensor("post_norm"), &step("experts_norm"), hidden);
        let chosen = self.columns(&step("moe_route"), self.config.experts_per_token);
        for (row, experts) in chosen.chunks_exact(self.config.experts_per_token).enumerate() {
            self.ties.chose(layer, row, experts.iter().map(|&expert| expert as usize).collect());
        }
        let output = self.columns(&step("moe_down"), hidden);
        self.against_golden(experts, &tensor("moe"), &difference(&output, &residual));
        self.against_golden(experts, &tensor("output"), &output);
        output
    }

    fn bound(&self, layer: usize) -> Bound {
        let attention = self.config.layers[..=layer].contains(&LayerKind::Attention);
        if attention { self.tolerances.layer_attention } else { self.tolerances.layer }
    }

    /// `at`: the layer, and whether its experts have been.
    fn against_reference(&self, at: (usize, bool), tensor: &str, record: &str, width: usize) {
        self.all_rows(at, tensor, &format!("{record} (reference {tensor})"), &self.columns(record, width));
    }

    fn all_rows(&self, at: (usize, bool), tensor: &str, label: &str, found: &[f32]) {
        let expected = self.trace.get(tensor).unwrap_or_else(|| panic!("the reference has no {tensor}"));
        let rows: Vec<usize> = (0..self.golden.sequences[0].tokens.len()).collect();
        self.ties.assert_within(at, label, &rows, (found, expected), self.bound(at.0));
    }

    fn against_golden(&self, at: (usize, bool), tensor: &str, found: &[f32]) {
        self.all_rows(at, tensor, &format!("{tensor} (reference)"), found);
        if self.exact {
            let (hidden, rows) = (self.config.hidden, &self.golden.positions);
            let found: Vec<f32> = rows.iter().flat_map(|p| found[p * hidden..(p + 1) * hidden].to_vec()).collect();
            let label = format!("{tensor} (transformers)");
            self.ties.assert_within(at, &label, rows, (&found, self.golden.tensor(tensor)), self.bound(at.0));
        }
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
