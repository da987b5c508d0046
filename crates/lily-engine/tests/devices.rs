//! The engine over real devices and a random tiny checkpoint: cold, warm, alone and in company, in chunks of any size, the
//! greedy answer is the same. Every test runs on the processor, on the simulator of a GPU,
//! and on a GPU where there is one (`tools/cuda`); elsewhere it skips there, and says so.
//!
//! A pass of many rows sums in another order than one of few, so logits may differ by rounding. Where two answers part, the
//! two best tokens must have been closer than that ([`On::margin`]).

use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions};
use lily_engine::{DiskOptions, Engine, Event, Options, Request, Sampling};
#[cfg(any(target_os = "linux", target_os = "windows"))]
use lily_gpu::backend::cuda::{CudaBackend, CudaOptions};
#[cfg(unix)]
use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator};
use lily_gpu::{GpuDevice, GpuOptions};
use lily_model::{Capacity, Checkpoint, ModelConfig, Runner, Weights};
use lily_testkit::generate::{CheckpointSpec, Rng, write_checkpoint};

const CAPACITY: Capacity = Capacity { slots: 4, pages: 24, rows: 132, logit_rows: 8 };

/// Where a test runs.
#[derive(Clone, Copy)]
enum On {
    Cpu,
    /// A GPU's kernels, on the processor.
    #[cfg(unix)]
    Sim,
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    Cuda,
}

impl On {
    /// Natural logarithm of the ratio of two tokens' probabilities below which either may be chosen.
    fn margin(self) -> f32 {
        match self {
            On::Cpu => 2e-3,
            // Passes of more than eight rows multiply halves.
            #[cfg(unix)]
            On::Sim => 5e-2,
            #[cfg(any(target_os = "linux", target_os = "windows"))]
            On::Cuda => 5e-2,
        }
    }

    fn start(self, options: Options) -> Engine {
        let directory = tempfile::tempdir().unwrap();
        write_checkpoint(directory.path(), &CheckpointSpec::default()).unwrap();
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
        let weights = Weights::load(&checkpoint, &config).unwrap();
        match self {
            On::Cpu => {
                let device = CpuDevice::new(&config, &weights, CAPACITY, CpuOptions::default().with_threads(1)).unwrap();
                Engine::start(Runner::new(config, device).unwrap(), options)
            }
            #[cfg(unix)]
            On::Sim => {
                let backend = SimBackend::new(Simulator::built_in(), SimOptions::default()).unwrap();
                let device = GpuDevice::new(backend, &config, &weights, CAPACITY, GpuOptions::default()).unwrap();
                Engine::start(Runner::new(config, device).unwrap(), options)
            }
            #[cfg(any(target_os = "linux", target_os = "windows"))]
            On::Cuda => {
                let cache = Some(std::env::temp_dir().join("lily-cuda-kernels"));
                let backend = CudaBackend::new(CudaOptions { cache, ..CudaOptions::default() }).unwrap();
                let device = GpuDevice::new(backend, &config, &weights, CAPACITY, GpuOptions::default()).unwrap();
                Engine::start(Runner::new(config, device).unwrap(), options)
            }
        }
    }
}

/// Whether there is a GPU; says so where there is none.
#[cfg(any(target_os = "linux", target_os = "windows"))]
fn finds_a_gpu() -> bool {
    match CudaBackend::new(CudaOptions::default()) {
        Ok(_) => true,
        Err(error) if ["no NVIDIA driver found", "finds no GPU"].iter().any(|reason| error.to_string().contains(reason)) => {
            eprintln!("skips: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs these tests on every device.
macro_rules! on_every_device {
    ($($test:ident),* $(,)?) => {
        mod cpu {
            $(#[test] fn $test() { super::$test(super::On::Cpu); })*
        }
        #[cfg(unix)]
        mod sim {
            $(#[test] fn $test() { super::$test(super::On::Sim); })*
        }
        #[cfg(any(target_os = "linux", target_os = "windows"))]
        mod cuda {
            $(#[test] fn $test() {
                if super::finds_a_gpu() {
                    super::$test(super::On::Cuda);
                }
            })*
        }
    };
}

on_every_device! {
    warm_equals_cold,
    a_conversation_equals_its_turns_from_scratch,
    simultaneous_prompts_equal_solo_runs,
    chunks_of_any_size_equal_each_other,
    a_restart_resumes_from_disk_exactly,
}

fn options() -> Options {
    Options { chunk: 128, chunk_shared: 32, cache_bytes: 64 << 20, ..Options::default() }
}

fn prompt(length: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.below(256) as u32).collect()
}

fn request(prompt: Vec<u32>, keep_at: Vec<usize>) -> Request {
    let stop_tokens = Arc::new([]);
    Request { prompt, sampling: Sampling::default(), max_tokens: Some(40), stop_tokens, logprobs: Some(2), constraint: None, keep_at }
}

/// Tokens, each with its lead over the second best, and how many prompt tokens came from the cache.
struct Answer {
    tokens: Vec<u32>,
    leads: Vec<f32>,
    cached: usize,
}

fn hear(mut generation: lily_engine::Generation) -> Answer {
    let mut answer = Answer { tokens: Vec::new(), leads: Vec::new(), cached: 0 };
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Started { cached_tokens, .. } => answer.cached = cached_tokens,
            Event::Token { id, logprobs } => {
                let top = logprobs.unwrap().top;
                answer.tokens.push(id);
                answer.leads.push(top[0].1 - top[1].1);
            }
            Event::Failed(error) => panic!("{error}"),
            Event::Prefilled { .. } | Event::Finished { .. } => {}
        }
    }
    answer
}

fn assert_same(on: On, what: &str, answer: &Answer, expected: &Answer) {
    assert_eq!(answer.tokens.len(), expected.tokens.len());
    if let Some(at) = (0..answer.tokens.len()).find(|&at| answer.tokens[at] != expected.tokens[at]) {
        let lead = expected.leads[at].min(answer.leads[at]);
        assert!(lead < on.margin(), "{what}: token {at} is {} instead of {}, which led by {lead}", answer.tokens[at], expected.tokens[at]);
    }
}

fn warm_equals_cold(on: On) {
    let engine = on.start(options());
    for (length, keep_at, cached) in [(300, vec![], 256), (300, vec![290], 290), (1100, vec![40, 1000, 1090], 1090)] {
        let prompt = prompt(length, cached as u64);
        let cold = hear(engine.submit(request(prompt.clone(), keep_at.clone())).unwrap());
        let warm = hear(engine.submit(request(prompt, keep_at)).unwrap());
        assert_eq!((cold.cached, warm.cached), (0, cached));
        // Both were cut into the same chunks, so that not even rounding differs.
        assert_eq!(warm.tokens, cold.tokens);
        assert_eq!(warm.leads, cold.leads);
    }
}

fn a_conversation_equals_its_turns_from_scratch(on: On) {
    let (engine, scratch) = (on.start(options()), on.start(Options { cache_bytes: 0, ..options() }));
    let mut history = prompt(700, 1);
    for turn in 0..8 {
        history.extend(prompt([30, 200, 5][turn % 3], 10 + turn as u64));
        let keep_at = vec![history.len() - 2];
        let cold = hear(scratch.submit(request(history.clone(), keep_at.clone())).unwrap());
        let warm = hear(engine.submit(request(history.clone(), keep_at)).unwrap());
        assert!(turn == 0 || warm.cached >= 700);
        assert_same(on, &format!("turn {turn}"), &warm, &cold);
        history.extend(&warm.tokens);
    }
}

fn simultaneous_prompts_equal_solo_runs(on: On) {
    let (engine, solo) = (on.start(options()), on.start(Options { cache_bytes: 0, ..options() }));
    for round in 0..4 {
        let prompts: Vec<Vec<u32>> = (0..3).map(|at| prompt([600, 9, 150][at], round * 3 + at as u64)).collect();
        let generations: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt.clone(), vec![])).unwrap()).collect();
        for (prompt, generation) in prompts.into_iter().zip(generations) {
            let what = format!("round {round}, prompt of {}", prompt.len());
            let alone = hear(solo.submit(request(prompt, vec![])).unwrap());
            assert_same(on, &what, &hear(generation), &alone);
        }
    }
}

fn chunks_of_any_size_equal_each_other(on: On) {
    let answer = |chunk: usize| {
        let engine = on.start(Options { chunk, ..options() });
        hear(engine.submit(request(prompt(270, 3), vec![])).unwrap())
    };
    let whole = answer(128);
    for chunk in [1, 7, 33] {
        assert_same(on, &format!("chunks of {chunk}"), &answer(chunk), &whole);
    }
}

fn a_restart_resumes_from_disk_exactly(on: On) {
    let directory = tempfile::tempdir().unwrap();
    let disk = DiskOptions { directory: directory.path().to_owned(), bytes_max: 1 << 30, model: "tiny".into() };
    let with_disk = || on.start(Options { disk: Some(disk.clone()), ..options() });
    let asked = || request(prompt(1100, 5), vec![900, 1050]);
    let engine = with_disk();
    let cold = hear(engine.submit(asked()).unwrap());
    engine.shutdown(true);

    let engine = with_disk();
    let warm = hear(engine.submit(asked()).unwrap());
    assert_eq!((cold.cached, warm.cached), (0, 1050));
    assert_eq!((warm.tokens, warm.leads), (cold.tokens, cold.leads));
}
