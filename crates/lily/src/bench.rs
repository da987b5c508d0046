//! `lily bench`: how fast this machine is, by a contract that other engines can be held to.
//!
//! Prompt token `i` is `(i * 2654435761 mod 2^32) mod vocab`. Prefill is the prompt's tokens over the time until the first
//! token is on the host; decode is the tokens after it, greedy, one sequence. One round warms up every shape; of the
//! measured rounds the median counts. A digest of the tokens must repeat in every round.

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lily_cpu::CpuDevice;
use lily_gpu::backend::Backend;
use lily_gpu::{DeltaScan, GpuDevice, GpuOptions, TileRows};
use lily_model::{Batch, Capacity, Choice, Device, Logits, ModelConfig, NEXT, PAGE_TOKENS, Page, Runner, Selection, Slot, Span, Weights};
use serde_json::json;

use crate::cli::BenchArgs;
use crate::curves::{self, Point};
use crate::device::{self, Kind, Opening, Use};
use crate::session;
use crate::source::{self, Source};

/// Time of one prompt, and of the tokens after it.
#[derive(Clone, Copy, Debug)]
struct Times {
    prefill: Duration,
    decode: Duration,
}

/// The figures of one length.
#[derive(Clone, Copy, Debug)]
struct Figures {
    length: usize,
    prefill_tok_s: f64,
    decode_tok_s: f64,
    digest: u64,
}

pub fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    let Source { name, checkpoint } = source::open(args.model.model.as_deref())?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    let weights = Weights::load(&checkpoint, &config)?;
    let lengths: Vec<usize> = args.lengths.iter().copied().filter(|length| length + args.decode < config.context_max).collect();
    let Some(longest) = lengths.iter().max().map(|longest| longest + args.decode + 1) else {
        bail!("--lengths: expected prompts below the model's context of {} tokens", config.context_max);
    };
    if args.rounds == 0 || lengths.contains(&0) {
        bail!("--rounds and --lengths: expected numbers above 0");
    }
    let capacity =
        |kind: Kind| Capacity { slots: 1, pages: longest.div_ceil(PAGE_TOKENS), rows: session::chunk(&args.model, kind), logit_rows: 1 };
    println!("model    {name}");
    let mut results = Vec::new();
    for (arm, gpu) in arms(args.ablate) {
        let opening = Opening { config: &config, weights: &weights, capacity: &capacity, gpu };
        let arm = Arm { name: arm, config: &config, lengths: &lengths, args, first: results.is_empty() };
        results.push(device::open(&args.model, &opening, arm)?);
    }
    if let Some(file) = &args.svg {
        std::fs::write(file, picture(&name, &results[0])).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &args.json {
        let document = serde_json::to_vec_pretty(&json!({ "model": name, "decode": args.decode, "rounds": args.rounds, "arms": results }))?;
        std::fs::write(file, document).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The curves of one arm.
fn picture(model: &str, arm: &serde_json::Value) -> String {
    let figures = arm["figures"].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = |figures: &serde_json::Value, name: &str| figures[name].as_f64().unwrap_or_default();
    let point = |figures: &serde_json::Value| Point {
        length: number(figures, "length") as usize,
        prefill: number(figures, "prefill_tok_s"),
        decode: number(figures, "decode_tok_s"),
    };
    let mut points: Vec<Point> = figures.iter().map(point).collect();
    points.sort_by_key(|point| point.length);
    curves::draw(&format!("{model} on {}", arm["device"].as_str().unwrap_or_default()), &points)
}

/// The default, then, if wanted, everything without one technique.
fn arms(ablate: bool) -> Vec<(&'static str, GpuOptions)> {
    let all = GpuOptions::default();
    let mut arms = vec![("all techniques", all)];
    if ablate {
        arms.extend([
            ("separate dequantise", GpuOptions { fused_dequantise: false, ..all }),
            ("routing through the host", GpuOptions { device_routing: false, ..all }),
            ("16-row tiles", GpuOptions { tile_rows: TileRows::Fixed(16), ..all }),
            ("scan token by token", GpuOptions { delta_scan: DeltaScan::Register, ..all }),
            ("uncoalesced KV reads", GpuOptions { coalesced_kv: false, ..all }),
            ("unpacked query heads", GpuOptions { packed_heads: false, ..all }),
            ("general attention path only", GpuOptions { fixed_blocks: false, ..all }),
            ("serial pass", GpuOptions { concurrent: false, ..all }),
            ("unfused chains", GpuOptions { fused_chains: false, ..all }),
            ("decode without tensor cores", GpuOptions { mma_decode: false, ..all }),
            ("prefill without warpgroups", GpuOptions { wgmma_prefill: false, ..all }),
            ("attention through threadgroup memory", GpuOptions { flash_mma: false, ..all }),
            ("token hand-off through the host", GpuOptions { device_tokens: false, ..all }),
        ]);
    }
    arms
}

/// One device with one set of switches.
struct Arm<'a> {
    name: &'static str,
    config: &'a ModelConfig,
    lengths: &'a [usize],
    args: &'a BenchArgs,
    first: bool,
}

impl Use for Arm<'_> {
    type Output = serde_json::Value;

    fn cpu(self, device: CpuDevice) -> anyhow::Result<serde_json::Value> {
        if self.args.ablate || self.args.plan || self.args.profile {
            bail!("--ablate, --plan and --profile: the switches are those of the GPU engine; choose --device cuda, metal or sim");
        }
        self.measure(&mut Runner::new(self.config.clone(), device)?)
    }

    fn gpu<B: Backend + 'static>(self, device: GpuDevice<B>) -> anyhow::Result<serde_json::Value> {
        let plans = self.args.plan;
        let mut runner = Runner::new(self.config.clone(), device)?;
        let result = self.measure(&mut runner)?;
        if self.args.profile {
            for &length in self.lengths {
                self.profile(&mut runner, length)?;
            }
        }
        if plans {
            let plan = runner.device.recorded_plan();
            println!("decode step: {} launches in {} dependency levels", plan.launches, plan.levels);
        }
        Ok(result)
    }
}

impl Arm<'_> {
    fn measure<D: Device>(&self, runner: &mut Runner<D>) -> anyhow::Result<serde_json::Value> {
        if self.first {
            println!("device   {}", runner.device.name());
        }
        println!("{}\n{:>8} {:>14} {:>13}  digest", self.name, "tokens", "prefill tok/s", "decode tok/s");
        let mut rows = Vec::new();
        for &length in self.lengths {
            let figures = self.length(runner, length)?;
            let Figures { prefill_tok_s, decode_tok_s, digest, .. } = figures;
            println!("{length:>8} {prefill_tok_s:>14.1} {decode_tok_s:>13.1}  {digest:016x}");
            std::io::stdout().flush()?;
            rows.push(json!({ "length": figures.length, "prefill_tok_s": prefill_tok_s, "decode_tok_s": decode_tok_s, "digest": format!("{digest:016x}") }));
        }
        Ok(json!({ "arm": self.name, "device": runner.device.name(), "figures": rows }))
    }

    /// Times of all launches of one prompt, then of one decode step, by kernel.
    fn profile<B: Backend>(&self, runner: &mut Runner<GpuDevice<B>>, length: usize) -> anyhow::Result<()> {
        let prompt = self.prompt(length);
        for (what, decode) in [("prompt", 0), ("decode step", 1)] {
            if decode > 0 {
                runner.device.profile(false); // the prompt again, untimed
                answer(runner, &prompt, 0)?;
            }
            runner.device.profile(true);
            match decode {
                0 => drop(answer(runner, &prompt, 0)?),
                _ => drop(step(runner, length)?),
            }
            let times = runner.device.profile(false);
            let mut kernels: Vec<(&str, &str, f64, usize)> = Vec::new();
            for timed in &times {
                let time = f64::from(timed.microseconds);
                match kernels.iter_mut().find(|(stage, kernel, ..)| (*stage, *kernel) == (timed.stage, timed.kernel)) {
                    Some((.., total, count)) => (*total, *count) = (*total + time, *count + 1),
                    None => kernels.push((timed.stage, timed.kernel, time, 1)),
                }
            }
            kernels.sort_by(|a, b| b.2.total_cmp(&a.2));
            let total: f64 = kernels.iter().map(|kernel| kernel.2).sum();
            println!("{what} of {length}: {total:.0} us in {} launches", times.len());
            for (stage, kernel, time, count) in kernels {
                println!(
                    "{:>6.1} % {time:>10.1} us {count:>6} x {:>8.2} us  {stage:<14} {kernel}",
                    100.0 * time / total,
                    time / count as f64
                );
            }
        }
        Ok(())
    }

    fn prompt(&self, length: usize) -> Vec<u32> {
        (0..length as u64).map(|i| ((i * 2_654_435_761) % (1 << 32) % self.config.vocab as u64) as u32).collect()
    }

    fn length<D: Device>(&self, runner: &mut Runner<D>, length: usize) -> anyhow::Result<Figures> {
        let prompt = self.prompt(length);
        let (_, expected) = answer(runner, &prompt, self.args.decode)?; // warms up every shape
        let mut rounds = Vec::new();
        for _ in 0..self.args.rounds {
            let (times, digest) = answer(runner, &prompt, self.args.decode)?;
            if digest != expected {
                bail!("{length} tokens: the answers of two rounds differ ({expected:016x} and {digest:016x})");
            }
            rounds.push(times);
        }
        let median = |time: fn(&Times) -> Duration| {
            let mut all: Vec<f64> = rounds.iter().map(|round| time(round).as_secs_f64()).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Ok(Figures {
            length,
            prefill_tok_s: length as f64 / median(|times| times.prefill),
            decode_tok_s: self.args.decode as f64 / median(|times| times.decode),
            digest: expected,
        })
    }
}

/// Runs a prompt from an empty state and decodes after it. The digest is FNV-1a over the tokens.
fn answer<D: Device>(runner: &mut Runner<D>, prompt: &[u32], decode: usize) -> anyhow::Result<(Times, u64)> {
    let pages: Vec<Page> = (0..(prompt.len() + decode).div_ceil(PAGE_TOKENS) as u32).map(Page).collect();
    runner.device.state_clear(Slot(0));
    let started = Instant::now();
    let mut position = 0;
    let mut token = 0;
    while position < prompt.len() {
        let rows = runner.device.prompt_rows(position).min(runner.device.capacity().rows);
        let tokens = &prompt[position..prompt.len().min(position + rows)];
        let last = position + tokens.len() == prompt.len();
        let logits = if last { Logits::Last } else { Logits::None };
        let span = Span { slot: Slot(0), start: position, tokens, pages: &pages, logits };
        runner.run(&Batch { spans: &[span] })?;
        if last {
            token = runner.device.select(&[Selection::greedy()])?[0];
        }
        position += tokens.len();
    }
    let prefilled = Instant::now();
    let mut digest = hash(0xcbf2_9ce4_8422_2325, token);
    // Two steps are in flight: a device that chooses by itself goes on while the host reads the token before.
    let mut flying = VecDeque::new();
    for _ in 0..decode {
        let span = Span { slot: Slot(0), start: position, tokens: &[token], pages: &pages, logits: Logits::Last };
        runner.run(&Batch { spans: &[span] })?;
        flying.push_back(runner.queue_select(&[Selection::greedy()])?);
        if flying.len() > 1 {
            digest = land(runner, &mut flying, digest)?;
        }
        (token, position) = (NEXT, position + 1);
    }
    while !flying.is_empty() {
        digest = land(runner, &mut flying, digest)?;
    }
    Ok((Times { prefill: prefilled - started, decode: prefilled.elapsed() }, digest))
}

/// Takes the oldest choice into the digest.
fn land<D: Device>(runner: &mut Runner<D>, flying: &mut VecDeque<Choice>, digest: u64) -> anyhow::Result<u64> {
    let tokens = flying.pop_front().map(|choice| runner.chosen(choice)).transpose()?.unwrap_or_default();
    Ok(tokens.into_iter().fold(digest, hash))
}

/// One decode step after a context of `position` tokens.
fn step<D: Device>(runner: &mut Runner<D>, position: usize) -> anyhow::Result<u32> {
    let pages: Vec<Page> = (0..(position + 1).div_ceil(PAGE_TOKENS) as u32).map(Page).collect();
    let span = Span { slot: Slot(0), start: position, tokens: &[0], pages: &pages, logits: Logits::Last };
    runner.run(&Batch { spans: &[span] })?;
    Ok(runner.device.select(&[Selection::greedy()])?[0])
}

fn hash(digest: u64, token: u32) -> u64 {
    token.to_le_bytes().iter().fold(digest, |digest, &byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
