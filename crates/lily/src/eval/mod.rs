//! `lily eval`: how well a model predicts a text, and how far its predictions are from another engine's.
//!
//! The text is fed as it stands, whatever the model would have said (teacher forcing), window by window, each from an
//! empty state. [`mod@reference`] is the other engine's file, [`tally`] the figures, [`acceptance`] another use of the same
//! passes: facts that are known of a checkpoint.

mod acceptance;
mod facts;
mod reference;
mod tally;
mod written;

use std::path::Path;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use lily_gpu::GpuOptions;
use lily_model::{Batch, Capacity, Checkpoint, Device, Logits, ModelConfig, PAGE_TOKENS, Page, Runner, Slot, Span, Weights};
use serde_json::{Value, json};

use crate::cli::EvalArgs;
use crate::device::{self, Any, Opening, UseAny};
use crate::parse::{input, token_ids};
use crate::progress;
use crate::session;
use crate::source::{self, Source};
use reference::Reference;
use tally::{Tally, largest, log_norm};
use written::Written;

/// Tokens of a window where nobody says otherwise.
const WINDOW: usize = 512;
/// Logits of one pass take at most so many bytes: 256 rows of the full model.
const LOGIT_BYTES_MAX: usize = 256 << 20;

pub fn eval(args: &EvalArgs) -> anyhow::Result<()> {
    let Source { name, checkpoint } = source::open(args.model.model.as_deref())?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    if let Some(file) = &args.acceptance {
        return acceptance::acceptance(args, file.as_deref(), &name, &checkpoint, &config);
    }
    let reference = args.reference.as_deref().map(|path| Reference::open(path, config.vocab)).transpose()?;
    let text = text(args, &checkpoint, &config, reference.as_ref())?;
    let weights = Weights::load(&checkpoint, &config)?;
    println!("model       {name}");
    let window = text.window;
    let comparison = Comparison { args, config: &config, text, reference };
    let figures = open(args, &config, &weights, window, comparison)?;
    write_json(args, &json!({ "model": name, "figures": figures }))
}

/// Opens the device with room for one sequence of `longest` tokens.
fn open<U: UseAny>(args: &EvalArgs, config: &ModelConfig, weights: &Weights, longest: usize, user: U) -> anyhow::Result<U::Output> {
    let rows = args.model.chunk;
    let logit_rows = rows.min(LOGIT_BYTES_MAX / (4 * config.vocab)).max(1);
    let capacity = Capacity { slots: 1, pages: longest.div_ceil(PAGE_TOKENS), rows, logit_rows };
    let opening = Opening { config, weights, capacity, gpu: GpuOptions::default() };
    device::open(&args.model, &opening, Any(user))
}

fn write_json(args: &EvalArgs, document: &Value) -> anyhow::Result<()> {
    let Some(file) = &args.json else { return Ok(()) };
    std::fs::write(file, serde_json::to_vec_pretty(document)?).with_context(|| format!("cannot write {}", file.display()))
}

/// What is predicted.
struct Predicted {
    tokens: Vec<u32>,
    window: usize,
}

/// The tokens that the flags name, as far as they go, checked against the model and the reference.
fn text(args: &EvalArgs, checkpoint: &Checkpoint, config: &ModelConfig, reference: Option<&Reference>) -> anyhow::Result<Predicted> {
    let mut tokens = match (&args.text, &args.tokens, reference) {
        (Some(file), ..) => session::text(checkpoint, config)?.encode(&input(Some(file))?)?,
        (None, Some(file), _) => token_ids(&input(Some(file))?).with_context(|| format!("--tokens {}", file.display()))?,
        (None, None, Some(reference)) => reference.tokens.clone(),
        (None, None, None) => bail!("nothing to predict: give --text, --tokens or --reference"),
    };
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    if let Some(at) = tokens.iter().position(|&token| token as usize >= config.vocab) {
        bail!("token {at} of the text: expected an id below {}, the model's vocabulary; found {}", config.vocab, tokens[at]);
    }
    if tokens.len() < 2 {
        bail!("the text: expected at least two tokens, found {}; the first one is not predicted", tokens.len());
    }
    let window = args.window.or(reference.map(|reference| reference.window)).unwrap_or(WINDOW);
    if !(2..=config.context_max).contains(&window) {
        bail!("--window: expected 2 to {} tokens, the model's context; found {window}", config.context_max);
    }
    if let (Some(reference), Some(path)) = (reference, &args.reference) {
        check_same_text(path, reference, &tokens, window)?;
    }
    let window = window.min(tokens.len());
    Ok(Predicted { tokens, window })
}

fn check_same_text(path: &Path, reference: &Reference, tokens: &[u32], window: usize) -> anyhow::Result<()> {
    let (path, theirs) = (path.display(), &reference.tokens);
    if let Some(at) = theirs.iter().zip(tokens).position(|(theirs, ours)| theirs != ours) {
        bail!("--reference {path}: another text: expected token {} at position {at}, found {}", tokens[at], theirs[at]);
    }
    if theirs.len() < tokens.len() {
        bail!("--reference {path}: expected {} positions, found {}; compare fewer with --limit", tokens.len(), theirs.len());
    }
    if window != reference.window && window.min(reference.window) < tokens.len() {
        bail!("--window {window}: expected {}, as in --reference {path}: predictions depend on it", reference.window);
    }
    Ok(())
}

/// One sequence on a device, fed from its beginning.
struct Feed<'a, D: Device> {
    runner: &'a mut Runner<D>,
    pages: &'a [Page],
    position: usize,
}

impl<'a, D: Device> Feed<'a, D> {
    fn start(runner: &'a mut Runner<D>, pages: &'a [Page]) -> Self {
        runner.device.state_clear(Slot(0));
        Feed { runner, pages, position: 0 }
    }

    /// Feeds tokens and shows `each` the logits after every one of them.
    fn feed(&mut self, tokens: &[u32], mut each: impl FnMut(&[f32]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut rest = tokens;
        while !rest.is_empty() {
            let device = &self.runner.device;
            let rows = device.prompt_rows(self.position).min(device.capacity().logit_rows).min(rest.len());
            let (now, after) = rest.split_at(rows);
            let span = Span { slot: Slot(0), start: self.position, tokens: now, pages: self.pages, logits: Logits::All };
            self.runner.run(&Batch { spans: &[span] })?;
            for row in 0..rows {
                let logits = self.runner.device.logits(row);
                if let Some(token) = logits.iter().position(|logit| !logit.is_finite()) {
                    bail!("position {}: the logit of token {token} is {}", self.position + row, logits[token]);
                }
                each(logits)?;
            }
            (rest, self.position) = (after, self.position + rows);
        }
        Ok(())
    }
}

fn pages(tokens: usize) -> Vec<Page> {
    (0..tokens.div_ceil(PAGE_TOKENS) as u32).map(Page).collect()
}

/// A text on a device, beside a reference if there is one.
struct Comparison<'a> {
    args: &'a EvalArgs,
    config: &'a ModelConfig,
    text: Predicted,
    reference: Option<Reference>,
}

impl UseAny for Comparison<'_> {
    type Output = Value;

    fn any<D: Device<Buffer: Send> + 'static>(mut self, device: D) -> anyhow::Result<Value> {
        let mut runner = Runner::new(self.config.clone(), device)?;
        let name = runner.device.name();
        let Predicted { tokens, window } = &self.text;
        println!("device      {name}\ntext        {} tokens in windows of {window}", tokens.len());
        let pages = pages(*window);
        let bar = progress::bar("predicting", tokens.len());
        let mut tally = Tally::default();
        let mut written = self.args.write.as_ref().map(|_| Written::default());
        for (at, part) in tokens.chunks(*window).enumerate() {
            let mut scored = Scored {
                reference: &mut self.reference,
                tally: &mut tally,
                written: written.as_mut(),
                logits: self.args.logits,
                bar: &bar,
                position: at * window,
                row: Vec::new(),
            };
            let mut next = part[1..].iter();
            Feed::start(&mut runner, &pages).feed(part, |logits| scored.take(logits, next.next().copied()))?;
        }
        bar.finish_and_clear();
        print(&tally, self.reference.as_ref());
        if let (Some(written), Some(path)) = (written, &self.args.write) {
            let made_by = format!("lily {} on {name}", env!("CARGO_PKG_VERSION"));
            written.write(path, tokens, *window, self.config.vocab, &made_by)?;
        }
        let mut figures = tally.json();
        figures["device"] = json!(name);
        figures["tokens"] = json!(tokens.len());
        figures["window"] = json!(window);
        figures["reference"] = json!(self.reference.map(|reference| reference.made_by));
        Ok(figures)
    }
}

/// Counts the predictions of one window.
struct Scored<'a> {
    reference: &'a mut Option<Reference>,
    tally: &'a mut Tally,
    written: Option<&'a mut Written>,
    /// Positions of which all logits are written.
    logits: usize,
    bar: &'a ProgressBar,
    /// In the text.
    position: usize,
    /// The reference's logits, kept for its memory.
    row: Vec<f32>,
}

impl Scored<'_> {
    /// `next`: the token that follows in the window.
    fn take(&mut self, logits: &[f32], next: Option<u32>) -> anyhow::Result<()> {
        let (position, tally) = (self.position, &mut *self.tally);
        let logprob = next.map(|next| f64::from(logits[next as usize]) - log_norm(logits));
        if let Some(logprob) = logprob {
            tally.text.add(logprob);
        }
        if let Some(written) = &mut self.written {
            written.take(logits, logprob, position < self.logits);
        }
        if let Some(reference) = self.reference {
            if let (Some(ours), Some(theirs)) = (logprob, &reference.logprobs) {
                tally.share(ours, theirs[position].into());
            }
            if let Some(top1) = &reference.top1 {
                tally.choices.0 += 1;
                tally.choices.1 += usize::from(largest(logits) == top1[position]);
            }
            if reference.logits(position, &mut self.row)? {
                tally.logits.add(position, logits, &self.row);
            }
        }
        self.position += 1;
        self.bar.inc(1);
        Ok(())
    }
}

fn print(tally: &Tally, reference: Option<&Reference>) {
    println!("perplexity  {:.4} over {} tokens", tally.text.perplexity(), tally.text.tokens);
    let Some(reference) = reference else { return };
    println!("reference   {}", reference.made_by);
    let theirs = tally.theirs();
    if theirs.tokens > 0 {
        let [difference, error] = [tally.difference(), tally.difference_error()].map(|share| 100.0 * share);
        println!(
            "  perplexity     {:.4} over {} tokens: ours {difference:+.4} % (standard error {error:.4} %)",
            theirs.perplexity(),
            theirs.tokens
        );
    }
    let (positions, equal) = tally.choices;
    if positions > 0 {
        println!("  first choice   the same at {equal} of {positions} positions, {:.2} %", 100.0 * tally.agreement());
    }
    if let Some(worst) = tally.logits.worst {
        let logits = &tally.logits;
        println!(
            "  KL             {:.2e} nats on average, {:.2e} at most, over {} of {} positions",
            logits.divergence_mean(),
            logits.divergence_max,
            logits.positions,
            reference.logit_rows()
        );
        println!(
            "  logits         off by {:.2e} typically (root mean square), by {:.2e} at most: token {} after position {}, expected {}, found {}",
            logits.typical(),
            worst.error(),
            worst.token,
            worst.position,
            worst.theirs,
            worst.ours
        );
    }
}
