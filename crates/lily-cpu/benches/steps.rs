//! Steps that are no matrix products, at the shapes of the full model: `cargo bench -p lily-cpu --bench steps -- [--isa NAME] [--threads N]`.
//!
//! One token is bound by the bytes of its state or of its keys and values: GB/s, to be held against the read bandwidth
//! that the bench `matrix` prints. Many tokens are bound by f32 arithmetic: GFLOP/s, to be held against two fused
//! multiply-adds a cycle and lane. Rates are by processor time, which other jobs on the cores disturb little.

use std::time::{Duration, Instant};

use lily_cpu::{Buffer, CpuDevice, CpuOptions};
use lily_model::steps::Activations;
use lily_model::{
    Batch, Capacity, Checkpoint, LayerKind, Logits, ModelConfig, NormSite, PAGE_TOKENS, Page, Slot, Span, Steps, Synth, Weights,
};

/// Layers of the benched model: DeltaNet, DeltaNet, DeltaNet, attention.
const DELTA_LAYERS: usize = 3;
const ATTENTION: usize = 3;
const CONTEXT_MAX: usize = 32_768;
const ROWS_MAX: usize = 512;
/// So many sequences that their states do not fit in the caches.
const SLOTS: usize = 16;

struct Bench {
    config: ModelConfig,
    device: CpuDevice,
    buffers: Activations<Buffer>,
    threads: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    let mut options = CpuOptions::default();
    if let Some(name) = value("--isa") {
        options = options.with_isa(name.parse().expect("an instruction set of this machine"));
    }
    let threads = value("--threads")
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |count| count.parse().expect("a number"));
    let mut bench = Bench::new(options.with_threads(threads), threads);
    bench.delta();
    bench.attention();
    bench.rows();
}

impl Bench {
    /// The full model's mixers in a checkpoint of four layers with few experts and a small vocabulary.
    fn new(options: CpuOptions, threads: usize) -> Self {
        let mut config = ModelConfig::qwen3_6_35b_a3b();
        config.layers.truncate(DELTA_LAYERS + 1);
        assert_eq!(config.layers[ATTENTION], LayerKind::Attention);
        (config.experts, config.vocab, config.eos) = (8, 1024, vec![0]);
        let directory = tempfile::tempdir().expect("a directory for the checkpoint");
        let place = directory.path().join("model");
        Synth::new(config).write(&place, &mut |_, _| {}).expect("the checkpoint is written");
        let checkpoint = Checkpoint::open(&place).expect("it opens");
        let config = ModelConfig::from_checkpoint(&checkpoint).expect("its configuration is valid");
        let weights = Weights::load(&checkpoint, &config).expect("its weights are complete");
        let capacity = Capacity { slots: SLOTS, pages: CONTEXT_MAX / PAGE_TOKENS, rows: ROWS_MAX, logit_rows: 1 };
        let mut device = CpuDevice::new(&config, &weights, capacity, options).expect("the device has room");
        let mut buffers = device.activations().expect("the device has room for activations");
        println!("{}", lily_model::Device::name(&device));
        for (at, x) in buffers.projected.values_mut().first_mut(ROWS_MAX).iter_mut().enumerate() {
            *x = ((at * 7919 % 1009) as f32 - 504.0) / 504.0;
        }
        Bench { config, device, buffers, threads }
    }

    /// Stages `rows` rows from `start` on in a slot.
    fn stage(&mut self, slot: usize, start: usize, rows: usize) {
        let pages: Vec<Page> = (0..(CONTEXT_MAX / PAGE_TOKENS) as u32).map(Page).collect();
        let tokens = vec![0; rows];
        let span = Span { slot: Slot(slot as u32), start, tokens: &tokens, pages: &pages, logits: Logits::None };
        self.device.stage(&Batch { spans: &[span] });
    }

    fn delta(&mut self) {
        let ModelConfig { heads_v, dim_k, dim_v, .. } = self.config;
        let state = (heads_v * dim_k * dim_v) as f64;
        let mut slot = 0;
        let timing = self.measure(|bench| {
            slot = (slot + 1) % SLOTS;
            bench.stage(slot, 0, 1);
            (0..DELTA_LAYERS).for_each(|layer| bench.device.delta_update(layer, 1, &bench.buffers.projected, &mut bench.buffers.mixed));
        });
        let bytes = 2.0 * 4.0 * state * DELTA_LAYERS as f64;
        print("delta_update, 1 token, state read and written", bytes, timing, "GB/s");
        let timing = self.measure(|bench| {
            bench.stage(0, 0, ROWS_MAX);
            bench.device.delta_update(0, ROWS_MAX, &bench.buffers.projected, &mut bench.buffers.mixed);
        });
        // Decay 1, recall 2, write 2, read 2 operations an element.
        print(&format!("delta_update, {ROWS_MAX} tokens"), 7.0 * state * ROWS_MAX as f64, timing, "GFLOP/s");
        println!("    {:.2} us a token and head on one core", timing * 1e6 * self.threads as f64 / (ROWS_MAX * heads_v) as f64);
    }

    fn attention(&mut self) {
        for start in (0..CONTEXT_MAX).step_by(ROWS_MAX) {
            self.stage(0, start, ROWS_MAX);
            // What the first fill left in `projected` is prepared again and again: finite and of unit scale all the same.
            self.device.attn_prepare(ATTENTION, ROWS_MAX, &mut self.buffers.projected);
        }
        let (kv_width, q_width) = (self.config.kv_width(), self.config.q_width());
        for context in [256, 1024, 4096, 32_768] {
            self.stage(0, context - 1, 1);
            let timing = self.measure(|bench| bench.device.attn_mix(ATTENTION, 1, &bench.buffers.projected, &mut bench.buffers.mixed));
            print(&format!("attn_mix, 1 token at {context}"), (context * kv_width * 4) as f64, timing, "GB/s");
        }
        for start in [0, 3584] {
            self.stage(0, start, ROWS_MAX);
            let timing =
                self.measure(|bench| bench.device.attn_mix(ATTENTION, ROWS_MAX, &bench.buffers.projected, &mut bench.buffers.mixed));
            let seen: usize = (start + 1..=start + ROWS_MAX).sum();
            print(&format!("attn_mix, {ROWS_MAX} tokens from {start}"), (4 * q_width * seen) as f64, timing, "GFLOP/s");
        }
    }

    fn rows(&mut self) {
        self.stage(0, 0, ROWS_MAX);
        let timing = self.measure(|bench| bench.device.attn_prepare(ATTENTION, ROWS_MAX, &mut bench.buffers.projected));
        print(&format!("attn_prepare, {ROWS_MAX} tokens"), ROWS_MAX as f64 * 1e3, timing, "million tokens/s");
        let timing =
            self.measure(|bench| bench.device.norm(NormSite::Mixer(0), ROWS_MAX, &bench.buffers.residual, &mut bench.buffers.normed));
        print(&format!("norm, {ROWS_MAX} tokens"), (ROWS_MAX * self.config.hidden * 8) as f64, timing, "GB/s");
    }

    /// Processor seconds of a member for one step: what the clock would show on idle cores.
    fn measure(&mut self, mut step: impl FnMut(&mut Self)) -> f64 {
        step(self);
        let (mut samples, begin, busy) = (0, Instant::now(), processor_time());
        while samples < 3 || begin.elapsed() < Duration::from_secs(1) {
            step(self);
            samples += 1;
        }
        (processor_time() - busy) / (samples * self.threads) as f64
    }
}

fn print(name: &str, amount: f64, seconds: f64, unit: &str) {
    println!("{name:<50} {:8.1} {unit}, {:9.1} us", amount / seconds * 1e-9, seconds * 1e6);
}

/// Seconds that the threads of this process have run; NaN where the system does not tell.
fn processor_time() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return f64::NAN };
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() * 1e-9
}
