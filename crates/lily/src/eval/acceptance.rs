//! `lily eval --acceptance`: whether a checkpoint does on this device what is known of it.
//!
//! Each answer's tokens are fed one by one, as decoding would, whatever this engine would have chosen: a choice that flips
//! where two tokens are nearly as probable does not hide what comes after it.

use std::path::Path;

use anyhow::bail;
use lily_model::{Checkpoint, Device, ModelConfig, Runner, Weights};
use lily_text::{ChatOptions, Message, Role, Text};
use serde_json::{Value, json};

use super::facts::{AnswerFact, Facts};
use super::tally::{largest, log_norm};
use super::{Feed, open, pages, write_json};
use crate::cli::EvalArgs;
use crate::device::UseAny;
use crate::{progress, session};

/// Two tokens whose logits are closer than this are nearly as probable: the step of bf16 between 16 and 32, twice.
const NEAR_TIE: f32 = 0.25;
/// How far a log-probability may be off, in nats: the known ones were computed with bf16 activations.
const LOGPROB_TOLERANCE: f64 = 0.05;

/// Prints every fact with whether it holds. An error if one does not.
pub fn acceptance(args: &EvalArgs, file: Option<&Path>, name: &str, checkpoint: &Checkpoint, config: &ModelConfig) -> anyhow::Result<()> {
    let facts = Facts::load(file)?;
    println!("model       {name}\nfacts       of {}, from {}", facts.model, facts.made_by);
    let mut report = Report::default();
    let found = [config.layers.len(), config.hidden, config.experts, config.experts_per_token, config.vocab];
    let same_shape = report.check("shape", &format!("{:?}", facts.shape), &format!("{found:?}"), facts.shape == found);
    if same_shape {
        let text = session::text(checkpoint, config)?;
        facts.answers.iter().try_for_each(|fact| check_prompt(&text, fact, &mut report))?;
        let weights = Weights::load(checkpoint, config)?;
        let longest = facts.answers.iter().map(|fact| fact.prompt.len() + fact.greedy.len()).max().unwrap_or(1);
        report = open(args, config, &weights, longest, Answers { config, facts: &facts, report })?;
    }
    write_json(args, &json!({ "model": name, "facts_of": facts.model, "checks": report.checks }))?;
    match (report.failed, report.checks.len()) {
        (0, _) => Ok(()),
        (failed, _) if !same_shape => bail!("{failed} check failed: this is not {}, and nothing else was checked", facts.model),
        (failed, all) => bail!("{failed} of {all} checks failed"),
    }
}

/// What was checked, and how it ended.
#[derive(Default)]
struct Report {
    checks: Vec<Value>,
    failed: usize,
}

impl Report {
    /// Prints a line and remembers it; returns whether the fact holds.
    fn check(&mut self, what: &str, expected: &str, found: &str, holds: bool) -> bool {
        let verdict = if holds { "pass" } else { "FAIL" };
        match holds {
            true => println!("{verdict}  {what}: {found}"),
            false => println!("{verdict}  {what}: expected {expected}, found {found}"),
        }
        self.checks.push(json!({ "check": what, "pass": holds, "expected": expected, "found": found }));
        self.failed += usize::from(!holds);
        holds
    }
}

/// The prompt's tokens: tokenizer and chat template.
fn check_prompt(text: &Text, fact: &AnswerFact, report: &mut Report) -> anyhow::Result<()> {
    let found = match (&fact.raw, &fact.user) {
        (Some(raw), _) => text.encode(raw)?,
        (None, Some(user)) => text.prompt(&[Message::new(Role::User, user)], &[], &ChatOptions::default())?.tokens,
        (None, None) => Vec::new(),
    };
    let same = found == fact.prompt;
    let shown = if same { format!("{} tokens as expected", found.len()) } else { format!("{found:?}") };
    report.check(&format!("{}, tokens of the prompt", fact.name), &format!("{:?}", fact.prompt), &shown, same);
    Ok(())
}

/// The model's part, on whichever device was opened.
struct Answers<'a> {
    config: &'a ModelConfig,
    facts: &'a Facts,
    report: Report,
}

impl UseAny for Answers<'_> {
    type Output = Report;

    fn any<D: Device<Buffer: Send> + 'static>(mut self, device: D) -> anyhow::Result<Report> {
        let mut runner = Runner::new(self.config.clone(), device)?;
        println!("device      {}", runner.device.name());
        let bar = progress::bar("answering", self.facts.answers.iter().map(|fact| fact.greedy.len()).sum());
        for fact in &self.facts.answers {
            let steps = answer(&mut runner, fact, &bar)?;
            bar.suspend(|| check_answer(fact, &steps, &mut self.report));
        }
        bar.finish_and_clear();
        Ok(self.report)
    }
}

/// What was predicted in the place of one known token.
struct Step {
    chosen: u32,
    /// By how much the chosen token's logit is larger than the known one's.
    margin: f32,
    /// Of the known token.
    logprob: f64,
}

fn answer<D: Device>(runner: &mut Runner<D>, fact: &AnswerFact, bar: &indicatif::ProgressBar) -> anyhow::Result<Vec<Step>> {
    let pages = pages(fact.prompt.len() + fact.greedy.len());
    let mut feed = Feed::start(runner, &pages);
    let mut last = Vec::new();
    feed.feed(&fact.prompt, |logits| {
        last = logits.to_vec();
        Ok(())
    })?;
    let mut steps = Vec::new();
    for &known in &fact.greedy {
        let chosen = largest(&last);
        let logprob = f64::from(last[known as usize]) - log_norm(&last);
        steps.push(Step { chosen, margin: last[chosen as usize] - last[known as usize], logprob });
        feed.feed(&[known], |logits| {
            last.copy_from_slice(logits);
            Ok(())
        })?;
        bar.inc(1);
    }
    Ok(steps)
}

fn check_answer(fact: &AnswerFact, steps: &[Step], report: &mut Report) {
    let (name, count) = (&fact.name, steps.len());
    let differ: Vec<usize> = (0..count).filter(|&at| steps[at].chosen != fact.greedy[at]).collect();
    let equal = count - differ.len();
    let found = match differ.iter().find(|&&at| steps[at].margin > NEAR_TIE) {
        Some(&at) => {
            let Step { chosen, margin, .. } = steps[at];
            let what = format!("{equal} equal; in place {at} token {chosen}, by a margin of {margin:.3}, in place of {}", fact.greedy[at]);
            report.check(&format!("{name}, greedy tokens"), &format!("{count} equal, or near ties"), &what, false);
            return check_logprob(fact, steps, report);
        }
        None if differ.is_empty() => format!("{equal} of {count} equal"),
        None => format!("{equal} of {count} equal; near ties, within {NEAR_TIE}, in places {differ:?}"),
    };
    report.check(&format!("{name}, greedy tokens"), "all equal, or near ties", &found, true);
    check_logprob(fact, steps, report);
}

fn check_logprob(fact: &AnswerFact, steps: &[Step], report: &mut Report) {
    if let (Some(expected), Some(first)) = (fact.logprob, steps.first()) {
        let holds = (first.logprob - expected).abs() <= LOGPROB_TOLERANCE;
        let expected = format!("{expected} (within {LOGPROB_TOLERANCE})");
        report.check(&format!("{}, log-probability of the first token", fact.name), &expected, &format!("{:.5}", first.logprob), holds);
    }
}
