//! The measurement of one arm, on whichever device was opened for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::bail;
use lily_cpu::CpuDevice;
use lily_gpu::GpuDevice;
use lily_gpu::backend::Backend;
use lily_model::{Batch, Choice, Device, Logits, ModelConfig, NEXT, PAGE_TOKENS, Page, Runner, Selection, Slot, Span};
use serde::{Deserialize, Serialize};

use super::prompt::{Digest, prompt};
use crate::device::Use;

/// What a measurement says as it goes: a line of a worker's output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Device(String),
    Sample(Sample),
}

/// One measurement of one length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// As it was asked for.
    pub length: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Seconds until every first token is on the host.
    pub prefill_s: f64,
    /// Tokens after the first one, of all sequences.
    pub decoded: usize,
    pub decode_s: f64,
    /// Of the tokens; of the text, where a server keeps its tokens to itself. Empty where two rounds are not asked the same.
    pub digest: String,
}

/// Every length, `rounds` times after one warm-up of its shape.
pub struct Measure<'a> {
    pub config: &'a ModelConfig,
    pub lengths: &'a [usize],
    pub decode: usize,
    pub rows: usize,
    pub rounds: usize,
    /// It is about the GPU engine's switches.
    pub needs_gpu: bool,
    pub report: &'a mut dyn FnMut(Report) -> anyhow::Result<()>,
}

impl Use for Measure<'_> {
    type Output = ();

    fn cpu(self, device: CpuDevice) -> anyhow::Result<()> {
        if self.needs_gpu {
            bail!("--ablate, --plan and --profile: the switches are those of the GPU engine; choose --device cuda, metal or sim");
        }
        self.run(device)
    }

    fn gpu<B: Backend + 'static>(self, device: GpuDevice<B>) -> anyhow::Result<()> {
        self.run(device)
    }
}

impl Measure<'_> {
    fn run<D: Device>(self, device: D) -> anyhow::Result<()> {
        let mut runner = Runner::new(self.config.clone(), device)?;
        (self.report)(Report::Device(runner.device.name()))?;
        for &length in self.lengths {
            let prompts: Vec<Vec<u32>> = (0..self.rows).map(|sequence| prompt(length, sequence, self.config.vocab)).collect();
            let mut sequences = Sequences::new(&prompts, self.decode);
            sequences.answer(&mut runner, self.decode)?; // warms up every shape
            for _ in 0..self.rounds {
                let (times, digest) = sequences.answer(&mut runner, self.decode)?;
                let sample = Sample {
                    length,
                    prompt_tokens: length * self.rows,
                    prefill_s: times.prefill.as_secs_f64(),
                    decoded: self.decode * self.rows,
                    decode_s: times.decode.as_secs_f64(),
                    digest: digest.to_string(),
                };
                (self.report)(Report::Sample(sample))?;
            }
        }
        Ok(())
    }
}

/// Time of all prompts, and of the tokens after them.
pub struct Times {
    prefill: Duration,
    decode: Duration,
}

/// Sequences that are decoded together, each with a slot and pages of its own.
pub struct Sequences<'a> {
    prompts: &'a [Vec<u32>],
    pages: Vec<Vec<Page>>,
}

impl<'a> Sequences<'a> {
    /// With room for `decode` tokens after each prompt.
    pub fn new(prompts: &'a [Vec<u32>], decode: usize) -> Self {
        let mut next = 0..;
        let pages = prompts.iter().map(|prompt| next.by_ref().take((prompt.len() + decode).div_ceil(PAGE_TOKENS)).map(Page).collect());
        Sequences { prompts, pages: pages.collect() }
    }

    /// Runs the prompts from an empty state and decodes after them.
    pub fn answer<D: Device>(&mut self, runner: &mut Runner<D>, decode: usize) -> anyhow::Result<(Times, Digest)> {
        let started = Instant::now();
        let mut digest = Digest::new();
        let mut firsts = Vec::new();
        for sequence in 0..self.prompts.len() {
            firsts.push(self.prefill(runner, sequence)?);
        }
        let prefilled = Instant::now();
        firsts.iter().for_each(|&first| digest.token(first));
        // Two steps are in flight: a device that chooses by itself goes on while the host reads the tokens before.
        let mut flying = VecDeque::new();
        for step in 0..decode {
            self.step(runner, step, &firsts)?;
            flying.push_back(runner.queue_select(&vec![Selection::greedy(); self.prompts.len()])?);
            if flying.len() > 1 {
                land(runner, &mut flying, &mut digest)?;
            }
        }
        while !flying.is_empty() {
            land(runner, &mut flying, &mut digest)?;
        }
        Ok((Times { prefill: prefilled - started, decode: prefilled.elapsed() }, digest))
    }

    /// One prompt; its first token.
    fn prefill<D: Device>(&self, runner: &mut Runner<D>, sequence: usize) -> anyhow::Result<u32> {
        let (slot, prompt, pages) = (Slot(sequence as u32), &self.prompts[sequence][..], &self.pages[sequence][..]);
        runner.device.state_clear(slot);
        let mut position = 0;
        while position < prompt.len() {
            let rows = runner.device.prompt_rows(position).min(runner.device.capacity().rows);
            let tokens = &prompt[position..prompt.len().min(position + rows)];
            let logits = if position + tokens.len() == prompt.len() { Logits::Last } else { Logits::None };
            runner.run(&Batch { spans: &[Span { slot, start: position, tokens, pages, logits }] })?;
            position += tokens.len();
        }
        Ok(runner.device.select(&[Selection::greedy()])?[0])
    }

    /// One token of every sequence: the first ones, then those that were chosen last.
    fn step<D: Device>(&self, runner: &mut Runner<D>, step: usize, firsts: &[u32]) -> anyhow::Result<()> {
        let span = |(sequence, first): (usize, &'_ u32)| (sequence, if step == 0 { *first } else { NEXT });
        let tokens: Vec<(usize, u32)> = firsts.iter().enumerate().map(span).collect();
        let spans: Vec<Span<'_>> = tokens
            .iter()
            .map(|(sequence, token)| Span {
                slot: Slot(*sequence as u32),
                start: self.prompts[*sequence].len() + step,
                tokens: std::slice::from_ref(token),
                pages: &self.pages[*sequence],
                logits: Logits::Last,
            })
            .collect();
        Ok(runner.run(&Batch { spans: &spans })?)
    }
}

/// Takes the oldest choice into the digest.
fn land<D: Device>(runner: &mut Runner<D>, flying: &mut VecDeque<Choice>, digest: &mut Digest) -> anyhow::Result<()> {
    let tokens = flying.pop_front().map(|choice| runner.chosen(choice)).transpose()?.unwrap_or_default();
    tokens.into_iter().for_each(|token| digest.token(token));
    Ok(())
}
