//! `lily bench`: how fast this machine is, by a contract that other engines can be held to.
//!
//! Prompt token `i` is `(i * 2654435761 mod 2^32) mod vocab`. Prefill is the prompt's tokens over the time until the first
//! token is on the host; decode is the tokens after it, greedy. Every round runs every arm in a process of its own, the
//! arms in alternating order; there each shape is warmed up before it is measured, and the median of the rounds counts. A
//! digest of the tokens must repeat. `--quick` does it all in one process, with one warm-up for all rounds.
//!
//! [`arm`] is what is compared, [`measure`] the measurement of one arm, [`rounds`] the processes, [`against`] another
//! engine's server, [`table`] what is printed.

mod against;
mod arm;
mod curves;
mod measure;
mod profile;
mod prompt;
mod rounds;
mod stream;
mod table;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use lily_model::{Capacity, Footprint, ModelConfig, PAGE_TOKENS, Weights};

use crate::cli::BenchArgs;
use crate::device::{self, Opening, Use};
use crate::session;
use crate::source::{self, Source};
use arm::{Arm, Found, arms};
use measure::{Measure, Report};

/// The lengths of the contract.
const LENGTHS: [usize; 10] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// With several sequences: a context that weighs little beside the weights.
const ROWS_LENGTHS: [usize; 1] = [512];

/// A model to be measured.
struct Subject<'a> {
    name: &'a str,
    config: &'a ModelConfig,
    weights: &'a Weights,
    lengths: Vec<usize>,
    args: &'a BenchArgs,
}

pub fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    let Source { name, checkpoint } = source::open(args.model.model.as_deref())?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    let weights = Weights::load(&checkpoint, &config)?;
    let subject = Subject { name: &name, config: &config, weights: &weights, lengths: lengths(args, &config)?, args };
    if let Some(name) = &args.worker {
        return subject.work(name);
    }
    println!("model    {name}");
    let server = match &args.against {
        Some(url) => Some(against::Server::connect(url, args, &config, || session::text(&checkpoint, &config))?),
        None => None,
    };
    let found = if args.quick { subject.quick()? } else { rounds::run(&subject, server)? };
    table::print(&found, &Footprint::new(&config, &weights));
    if let Some(file) = &args.svg {
        write(file, table::picture(&name, &found[0]).as_bytes())?;
    }
    if args.plan || args.profile {
        subject.open(&arms(args)[0], profile::Profile { subject: &subject })?;
    }
    Ok(())
}

/// The lengths that fit the model.
fn lengths(args: &BenchArgs, config: &ModelConfig) -> anyhow::Result<Vec<usize>> {
    if args.rounds == 0 || args.lengths.contains(&0) || args.rows.contains(&0) {
        bail!("--rounds, --rows and --lengths: expected numbers above 0");
    }
    let wanted = match (&args.lengths[..], &args.rows[..]) {
        ([], []) => &LENGTHS[..],
        ([], _) => &ROWS_LENGTHS,
        (given, _) => given,
    };
    let lengths: Vec<usize> = wanted.iter().copied().filter(|length| length + args.decode < config.context_max).collect();
    if lengths.is_empty() {
        bail!("--lengths: expected prompts below the model's context of {} tokens", config.context_max);
    }
    Ok(lengths)
}

impl Subject<'_> {
    /// Opens the device of an arm with room for its sequences.
    fn open<U: Use>(&self, arm: &Arm, user: U) -> anyhow::Result<U::Output> {
        let longest = self.lengths.iter().max().map_or(1, |longest| longest + self.args.decode + 1);
        let capacity = Capacity {
            slots: arm.rows,
            pages: arm.rows * longest.div_ceil(PAGE_TOKENS),
            rows: self.args.model.chunk.max(arm.rows),
            logit_rows: arm.rows,
        };
        let opening = Opening { config: self.config, weights: self.weights, capacity, gpu: arm.gpu };
        device::open(&self.args.model, &opening, user)
    }

    /// Measures one arm in this process. `report` hears of everything as it comes.
    fn measure(&self, arm: &Arm, rounds: usize, report: &mut dyn FnMut(Report) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (config, lengths, decode, rows) = (self.config, &self.lengths, self.args.decode, arm.rows);
        self.open(arm, Measure { config, lengths, decode, rows, rounds, needs_gpu: self.needs_gpu(), report })
    }

    /// The switches, the plan and the profile are those of the GPU engine.
    fn needs_gpu(&self) -> bool {
        self.args.ablate || self.args.plan || self.args.profile
    }

    /// What a process of a round does: one arm, a report a line.
    fn work(&self, name: &str) -> anyhow::Result<()> {
        let arm = arms(self.args).into_iter().find(|arm| arm.name == name);
        let arm = arm.with_context(|| format!("--worker: no arm is called {name:?}"))?;
        let mut out = std::io::stdout().lock();
        self.measure(&arm, 1, &mut |report| {
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
            Ok(out.flush()?)
        })
    }

    /// All arms one after the other in this process.
    fn quick(&self) -> anyhow::Result<Vec<Found>> {
        let mut all = Vec::new();
        for arm in arms(self.args) {
            let mut found = Found::new(arm.clone());
            let bar = crate::progress::bar(&arm.name, self.args.rounds * rounds::cost(self, &arm));
            self.measure(&arm, self.args.rounds, &mut |report| {
                bar.inc(rounds::cost_of(&report, self.args.decode));
                found.take(report)
            })?;
            bar.finish_and_clear();
            all.push(found);
            table::save(self, &all)?;
        }
        Ok(all)
    }
}

fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}
