//! A model on a device, driven by hand, and single steps of it ([`Lab`]): what the rings share.

mod lab;

use std::path::Path;

use lily_model::{Batch, Capacity, Checkpoint, Device, Logits, ModelConfig, PAGE_TOKENS, Page, Runner, Slot, Span, Weights};

pub use lab::{ATTENTION, DELTA, Lab, Part, Which, assert_no_nan, exact, queries, values};

use super::Subject;
use crate::golden::goldens_directory;

/// Room for the sequences of the layer, model and nano rings.
pub const CAPACITY: Capacity = Capacity { slots: 4, pages: 16, rows: 320, logit_rows: 320 };

/// Opens `tests/goldens/NAME` on a fresh device.
pub fn open<S: Subject>(subject: &S, name: &str) -> Runner<S::Device> {
    let (config, device) = open_device(subject, &goldens_directory().join(name), CAPACITY);
    Runner::new(config, device).expect("the device has room for activations")
}

/// Opens the bundled model on a fresh device.
pub fn open_nano<S: Subject>(subject: &S) -> Runner<S::Device> {
    let (config, device) = open_device(subject, &goldens_directory().join("../../models/lily-nano"), CAPACITY);
    Runner::new(config, device).expect("the device has room for activations")
}

/// Loads any checkpoint onto a fresh device.
pub fn open_device<S: Subject>(subject: &S, directory: &Path, capacity: Capacity) -> (ModelConfig, S::Device) {
    let checkpoint = Checkpoint::open(directory).expect("the checkpoint opens");
    let config = ModelConfig::from_checkpoint(&checkpoint).expect("its configuration is valid");
    let weights = Weights::load(&checkpoint, &config).expect("its weights are complete");
    let device = subject.open(&config, &weights, capacity);
    let device = device.unwrap_or_else(|error| panic!("{}: the device does not open: {error}", subject.label()));
    (config, device)
}

/// One sequence on a device.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Its recurrent state.
    pub slot: Slot,
    /// Its pages, in order of position.
    pub pages: Vec<Page>,
    /// Tokens fed so far.
    pub position: usize,
}

impl Sequence {
    /// A sequence in `slot` with the given pages, in this order. Clears the slot.
    pub fn start<D: Device>(runner: &mut Runner<D>, slot: u32, pages: &[u32]) -> Self {
        runner.device.state_clear(Slot(slot));
        Sequence { slot: Slot(slot), pages: pages.iter().map(|&page| Page(page)).collect(), position: 0 }
    }

    /// The span that feeds `tokens` next.
    pub fn span<'a>(&'a self, tokens: &'a [u32], logits: Logits) -> Span<'a> {
        assert!(self.position + tokens.len() <= self.pages.len() * PAGE_TOKENS, "the ring gave too few pages");
        Span { slot: self.slot, start: self.position, tokens, pages: &self.pages, logits }
    }

    /// Feeds `tokens` in chunks; returns the logits of all of them, `[tokens, vocab]`.
    pub fn feed<D: Device>(&mut self, runner: &mut Runner<D>, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let mut logits = Vec::new();
        for tokens in tokens.chunks(chunk) {
            run(runner, &[self.span(tokens, Logits::All)]);
            self.position += tokens.len();
            logits.extend(rows(runner, 0..tokens.len()));
        }
        logits
    }

    /// Continues greedily from the last row of `logits`, one token a pass.
    pub fn greedy<D: Device>(&mut self, runner: &mut Runner<D>, logits: &[f32], count: usize) -> Vec<u32> {
        let mut tokens = vec![largest(&logits[logits.len() - runner.config.vocab..])];
        while tokens.len() < count {
            let next = self.feed(runner, &tokens[tokens.len() - 1..], 1);
            tokens.push(largest(&next));
        }
        tokens
    }
}

/// Runs one batch.
pub fn run<D: Device>(runner: &mut Runner<D>, spans: &[Span<'_>]) {
    runner.run(&Batch { spans }).expect("the batch is in range");
}

/// Logit rows of the last pass.
pub fn rows<D: Device>(runner: &Runner<D>, rows: std::ops::Range<usize>) -> Vec<f32> {
    rows.flat_map(|row| runner.device.logits(row).to_vec()).collect()
}

/// The greedy choice.
pub fn largest(logits: &[f32]) -> u32 {
    lily_model::select_token(logits, &lily_model::Selection::greedy())
}
