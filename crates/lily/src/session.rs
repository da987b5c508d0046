//! Joins checkpoint, tokenizer, device and engine: what every command that generates starts with.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use lily_engine::{DiskOptions, Engine, Options, Sampling};
use lily_gpu::GpuOptions;
use lily_model::footprint::Footprint;
use lily_model::{Capacity, Checkpoint, Device, ModelConfig, PAGE_TOKENS, Runner, Weights};
use lily_text::Text;

use crate::cli::{ModelArgs, SamplingArgs};
use crate::device::{self, Any, Opening, UseAny};
use crate::source::{self, Source};

/// A model, ready to answer.
pub struct Session {
    /// What the model is called.
    pub name: String,
    pub text: Arc<Text>,
    pub engine: Engine,
}

/// How many conversations at once, and what they may take.
pub struct Limits {
    pub slots: usize,
    pub queue: usize,
    pub cache_bytes: usize,
    /// Where saved states survive a restart, and how many bytes they may take there.
    pub disk: Option<(PathBuf, u64)>,
}

impl Limits {
    /// One conversation at a time, as on the command line.
    pub const ONE: Limits = Limits { slots: 1, queue: 1, cache_bytes: 256 << 20, disk: None };
}

/// Opens the model and starts its engine.
pub fn start(args: &ModelArgs, limits: &Limits) -> anyhow::Result<Session> {
    let Source { name, checkpoint } = source::open(args.model.as_deref())?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    let text = text(&checkpoint, &config)?;
    let weights = Weights::load(&checkpoint, &config)?;

    let footprint = Footprint::new(&config, &weights);
    let context = context(args.context, &config, &footprint, limits.slots)?;
    let capacity = Capacity {
        slots: limits.slots,
        pages: limits.slots * context.div_ceil(PAGE_TOKENS) + limits.cache_bytes / footprint.page_bytes().max(1),
        rows: args.chunk + limits.slots,
        logit_rows: limits.slots.max(8),
    };
    let disk = match limits.disk.clone() {
        Some((directory, bytes_max)) => Some(DiskOptions { directory, bytes_max, model: checkpoint.fingerprint()? }),
        None => None,
    };
    let options = Options { context, queue_max: limits.queue, cache_bytes: limits.cache_bytes, disk, ..Options::default() };
    let opening = Opening { config: &config, weights: &weights, capacity, gpu: GpuOptions::default() };
    let engine = device::open(args, &opening, Any(Start { config: config.clone(), options, slots: limits.slots }))?;
    tracing::debug!(model = name, context, device = engine.device_name(), "ready");
    Ok(Session { name, text: Arc::new(text), engine })
}

/// The checkpoint's text side; only the tokenizer is indispensable.
pub fn text(checkpoint: &Checkpoint, config: &ModelConfig) -> anyhow::Result<Text> {
    let optional = |name: &str| if checkpoint.has_file(name) { checkpoint.file(name).map(Some) } else { Ok(None) };
    let template = optional("chat_template.jinja")?;
    let template = template.as_deref().map(std::str::from_utf8).transpose().context("chat_template.jinja: expected UTF-8 text")?;
    Ok(Text::load(
        &checkpoint.file("tokenizer.json")?,
        optional("tokenizer_config.json")?.as_deref(),
        optional("generation_config.json")?.as_deref(),
        template,
        &config.eos,
        config.vocab,
    )?)
}

/// Starts an engine on whichever device was opened.
struct Start {
    config: ModelConfig,
    options: Options,
    slots: usize,
}

impl UseAny for Start {
    type Output = Engine;

    fn any<D: Device<Buffer: Send> + 'static>(self, device: D) -> anyhow::Result<Engine> {
        let chunk = device.capacity().rows - self.slots;
        Ok(Engine::start(Runner::new(self.config, device)?, Options { chunk, ..self.options }))
    }
}

/// The context asked for; without a wish, the model's, halved until its keys and values fit in half of
/// the memory that the weights leave.
fn context(wish: Option<usize>, config: &ModelConfig, footprint: &Footprint, slots: usize) -> anyhow::Result<usize> {
    match wish {
        Some(0) => bail!("--context 0: expected at least one token"),
        Some(wish) if wish > config.context_max => bail!("--context {wish}: the model was made for {} tokens", config.context_max),
        Some(wish) => Ok(wish),
        None => {
            let free = memory_bytes().saturating_sub(footprint.weight_bytes());
            let mut context = config.context_max;
            while context > 4096 && slots as u64 * footprint.sequence_bytes(context) > free / 2 {
                context /= 2;
            }
            Ok(context)
        }
    }
}

/// Memory of this machine, in bytes.
pub fn memory_bytes() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let container = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(container)
}

/// Ends the engine when it goes: a program that returns while the engine's thread still uses a GPU's driver may crash in
/// that driver's own end.
pub struct Closing<'a>(&'a Engine);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.shutdown(false);
    }
}

impl Session {
    /// Keep the result until the command ends.
    pub fn close_at_end(&self) -> Closing<'_> {
        Closing(&self.engine)
    }

    /// The flags where given, the checkpoint's defaults elsewhere.
    pub fn sampling(&self, args: &SamplingArgs) -> anyhow::Result<Sampling> {
        let defaults = lily_server::checkpoint_sampling(&self.text);
        let sampling = Sampling {
            temperature: args.temperature.unwrap_or(defaults.temperature),
            top_k: args.top_k.unwrap_or(defaults.top_k),
            top_p: args.top_p.unwrap_or(defaults.top_p),
            min_p: args.min_p.unwrap_or(defaults.min_p),
            presence_penalty: args.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: args.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            repetition_penalty: args.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            seed: args.seed,
            ..defaults
        };
        check(&sampling).context("sampling")?;
        Ok(sampling)
    }
}

fn check(sampling: &Sampling) -> anyhow::Result<()> {
    let ranges = [
        ("--temperature", sampling.temperature, 0.0, 100.0),
        ("--top-p", sampling.top_p, 0.0, 1.0),
        ("--min-p", sampling.min_p, 0.0, 1.0),
        ("--presence-penalty", sampling.presence_penalty, -100.0, 100.0),
        ("--frequency-penalty", sampling.frequency_penalty, -100.0, 100.0),
        ("--repetition-penalty", sampling.repetition_penalty, 0.01, 100.0),
    ];
    for (flag, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            bail!("{flag} {value}: expected a number from {least} to {most}");
        }
    }
    Ok(())
}
