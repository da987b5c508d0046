//! A model on the CPU device, driven by hand, and single steps of it ([`lab`]): what the rings share.

#![allow(dead_code)] // every ring is a program of its own and uses a part

pub mod lab;

use std::path::Path;

use lily_cpu::{CpuDevice, CpuOptions};
use lily_model::{Batch, Capacity, Checkpoint, Logits, ModelConfig, PAGE_TOKENS, Page, Runner, Slot, Span, Weights};
use lily_testkit::golden::goldens_directory;

/// Room for the rings' sequences.
pub const CAPACITY: Capacity = Capacity { slots: 4, pages: 16, rows: 320, logit_rows: 320 };

/// Opens `tests/goldens/NAME`, or any other checkpoint, on a fresh device.
pub fn open(name: &str, options: CpuOptions) -> Runner<CpuDevice> {
    open_directory(&goldens_directory().join(name), options, CAPACITY)
}

pub fn open_directory(directory: &Path, options: CpuOptions, capacity: Capacity) -> Runner<CpuDevice> {
    let checkpoint = Checkpoint::open(directory).expect("the checkpoint opens");
    let config = ModelConfig::from_checkpoint(&checkpoint).expect("its configuration is valid");
    let weights = Weights::load(&checkpoint, &config).expect("its weights are complete");
    let device = CpuDevice::new(&config, &weights, capacity, options).expect("the device has room");
    Runner::new(config, device).expect("the device has room for activations")
}

/// One sequence on a device.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub slot: Slot,
    pub pages: Vec<Page>,
    /// Tokens fed so far.
    pub position: usize,
}

impl Sequence {
    /// A sequence in `slot` with the given pages, in this order. Clears the slot.
    pub fn start(runner: &mut Runner<CpuDevice>, slot: u32, pages: &[u32]) -> Self {
        use lily_model::Device;
        runner.device.state_clear(Slot(slot));
        Sequence { slot: Slot(slot), pages: pages.iter().map(|&page| Page(page)).collect(), position: 0 }
    }

    /// The span that feeds `tokens` next.
    pub fn span<'a>(&'a self, tokens: &'a [u32], logits: Logits) -> Span<'a> {
        assert!(self.position + tokens.len() <= self.pages.len() * PAGE_TOKENS, "the ring gave too few pages");
        Span { slot: self.slot, start: self.position, tokens, pages: &self.pages, logits }
    }

    /// Feeds `tokens` in chunks; returns the logits of all of them, `[tokens, vocab]`.
    pub fn feed(&mut self, runner: &mut Runner<CpuDevice>, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let mut logits = Vec::new();
        for tokens in tokens.chunks(chunk) {
            run(runner, &[self.span(tokens, Logits::All)]);
            self.position += tokens.len();
            logits.extend(rows(runner, 0..tokens.len()));
        }
        logits
    }

    /// Continues greedily from the last row of `logits`, one token a pass.
    pub fn greedy(&mut self, runner: &mut Runner<CpuDevice>, logits: &[f32], count: usize) -> Vec<u32> {
        let mut tokens = vec![largest(&logits[logits.len() - runner.config.vocab..])];
        while tokens.len() < count {
            let next = self.feed(runner, &tokens[tokens.len() - 1..], 1);
            tokens.push(largest(&next));
        }
        tokens
    }
}

/// Runs one batch.
pub fn run(runner: &mut Runner<CpuDevice>, spans: &[Span<'_>]) {
    runner.run(&Batch { spans }).expect("the batch is in range");
}

/// Logit rows of the last pass.
pub fn rows(runner: &Runner<CpuDevice>, rows: std::ops::Range<usize>) -> Vec<f32> {
    use lily_model::Device;
    rows.flat_map(|row| runner.device.logits(row).to_vec()).collect()
}

/// The greedy choice.
pub fn largest(logits: &[f32]) -> u32 {
    lily_model::select_token(logits, &lily_model::Selection::greedy())
}
