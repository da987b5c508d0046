//! Speed of a checkpoint on this processor: load, prefill, decode, where the time goes, resident memory.
//!
//! `cargo run --release -p lily-cpu --example decode -- DIR [prompt=512] [decode=64] [threads=N] [isa=NAME] [activations=f32|i16|i8] [clock=wall|cpu]`
//!
//! `clock=cpu` counts the time for which the thread had a core (Linux): with `threads=1`, a figure from a machine that is
//! busy with other work. It leaves out waiting for the disk, too.
//!
//! Beside decode stand the bytes that a token reads (`lily_model::footprint`); the read bandwidth of the machine is printed
//! by `cargo bench -p lily-cpu`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use lily_cpu::{Activations, CpuDevice, CpuOptions, Isa};
use lily_model::footprint::Footprint;
use lily_model::forward::forward;
use lily_model::steps::Activations as Buffers;
use lily_model::{
    Batch, Capacity, Checkpoint, Device, Logits, ModelConfig, ModelError, NormSite, PAGE_TOKENS, Page, Selection, Slot, Span, Steps,
    Weights,
};

struct Settings {
    directory: PathBuf,
    prompt: usize,
    decode: usize,
    options: CpuOptions,
    clock: Clock,
}

/// What counts as time.
#[derive(Clone, Copy)]
enum Clock {
    Wall(Instant),
    /// On a core, of this thread alone.
    Cpu,
}

impl Clock {
    /// Seconds since some start.
    fn now(self) -> f64 {
        match self {
            Clock::Wall(start) => start.elapsed().as_secs_f64(),
            Clock::Cpu => {
                let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
                text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1e-9
            }
        }
    }
}

impl Settings {
    fn read() -> Result<Self, String> {
        let mut arguments = std::env::args().skip(1);
        let directory = arguments.next().ok_or("usage: decode DIR [prompt=N] [decode=N] [threads=N] [isa=NAME] [activations=NAME]")?;
        let clock = Clock::Wall(Instant::now());
        let mut settings = Settings { directory: directory.into(), prompt: 512, decode: 64, options: CpuOptions::default(), clock };
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or(format!("expected name=value, found {argument}"))?;
            let count = || value.parse::<usize>().map_err(|error| format!("{argument}: {error}"));
            match name {
                "prompt" => settings.prompt = count()?.max(1),
                "decode" => settings.decode = count()?,
                "threads" => settings.options = settings.options.with_threads(count()?),
                "isa" => settings.options = settings.options.with_isa(value.parse::<Isa>()?),
                "activations" => settings.options = settings.options.with_activations(value.parse::<Activations>()?),
                "clock" if value == "cpu" => settings.clock = Clock::Cpu,
                "clock" if value == "wall" => {}
                _ => return Err(format!("unknown setting {name}")),
            }
        }
        Ok(settings)
    }
}

/// A device whose steps are timed.
struct Timed {
    device: CpuDevice,
    clock: Clock,
    /// Seconds by step.
    spent: BTreeMap<&'static str, f64>,
}

/// Forwards each step and adds up its time.
macro_rules! timed {
    ($($step:ident($($name:ident: $kind:ty),*);)*) => {
        $(fn $step(&mut self, $($name: $kind),*) {
            let start = self.clock.now();
            self.device.$step($($name),*);
            *self.spent.entry(stringify!($step)).or_default() += self.clock.now() - start;
        })*
    };
}

type Buffer = <CpuDevice as Steps>::Buffer;

impl Steps for Timed {
    type Buffer = Buffer;

    fn activations(&mut self) -> Result<Buffers<Buffer>, ModelError> {
        self.device.activations()
    }

    timed! {
        stage(batch: &Batch<'_>);
        embed(rows: usize, residual: &mut Buffer);
        norm(site: NormSite, rows: usize, x: &Buffer, out: &mut Buffer);
        delta_project(layer: usize, rows: usize, x: &Buffer, projected: &mut Buffer);
        delta_update(layer: usize, rows: usize, projected: &Buffer, mixed: &mut Buffer);
        attn_project(layer: usize, rows: usize, x: &Buffer, projected: &mut Buffer);
        attn_prepare(layer: usize, rows: usize, projected: &mut Buffer);
        attn_mix(layer: usize, rows: usize, projected: &Buffer, mixed: &mut Buffer);
        mixer_output(layer: usize, rows: usize, mixed: &Buffer, residual: &mut Buffer);
        moe_route(layer: usize, rows: usize, x: &Buffer, routes: &mut Buffer);
        moe_gate_up(layer: usize, rows: usize, x: &Buffer, routes: &Buffer, hidden: &mut Buffer);
        moe_down(layer: usize, rows: usize, routes: &Buffer, hidden: &Buffer, residual: &mut Buffer);
        head(rows: usize, residual: &Buffer);
    }

    fn read(&self, buffer: &Buffer, rows: usize) -> Vec<f32> {
        self.device.read(buffer, rows)
    }

    fn write(&mut self, buffer: &mut Buffer, rows: usize, values: &[f32]) {
        self.device.write(buffer, rows, values);
    }
}

fn main() {
    if let Err(error) = Settings::read().and_then(|settings| measure(&settings).map_err(|error| error.to_string())) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

const CHUNK: usize = 512;

fn measure(settings: &Settings) -> Result<(), ModelError> {
    let clock = settings.clock;
    let start = clock.now();
    let checkpoint = Checkpoint::open(&settings.directory)?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    let weights = Weights::load(&checkpoint, &config)?;
    let context = settings.prompt + settings.decode + 1;
    let pages: Vec<Page> = (0..context.div_ceil(PAGE_TOKENS) as u32).map(Page).collect();
    let capacity = Capacity { slots: 1, pages: pages.len(), rows: CHUNK.min(settings.prompt), logit_rows: 1 };
    let device = CpuDevice::new(&config, &weights, capacity, settings.options)?;
    let mut timed = Timed { device, clock, spent: BTreeMap::new() };
    let mut buffers = timed.activations()?;
    println!("{}: ready after {:.2} s, {} resident", timed.device.name(), clock.now() - start, resident());

    let mut run = |timed: &mut Timed, tokens: &[u32], start: usize, logits: Logits| {
        let span = Span { slot: Slot(0), start, tokens, pages: &pages, logits };
        timed.stage(&Batch { spans: &[span] });
        forward(&config, timed, &mut buffers, tokens.len());
    };

    let prompt: Vec<u32> = (0..settings.prompt).map(|at| (at * 7919 % config.vocab) as u32).collect();
    let start = clock.now();
    let mut position = 0;
    for tokens in prompt.chunks(CHUNK) {
        position += tokens.len();
        let logits = if position == prompt.len() { Logits::Last } else { Logits::None };
        run(&mut timed, tokens, position - tokens.len(), logits);
    }
    let spent = clock.now() - start;
    println!("prefill: {} tokens in {spent:.2} s, {:.1} tok/s, {} resident", prompt.len(), prompt.len() as f64 / spent, resident());
    report(&mut timed, 1, "chunk");

    let mut laps = Vec::with_capacity(settings.decode);
    for at in 0..settings.decode {
        let token = timed.device.select(&[Selection::greedy()])?[0];
        let start = clock.now();
        run(&mut timed, &[token], settings.prompt + at, Logits::Last);
        laps.push(clock.now() - start);
    }
    if settings.decode > 0 {
        laps.sort_by(f64::total_cmp);
        let (median, best) = (laps[laps.len() / 2], laps[0]);
        let traffic = Footprint::new(&config, &weights).token_bytes(context).total() as f64 * 1e-9;
        println!(
            "decode: median {:.2} tok/s, best {:.2}; {traffic:.3} GB a token: {:.1} GB/s, best {:.1}; {} resident",
            1.0 / median,
            1.0 / best,
            traffic / median,
            traffic / best,
            resident()
        );
        report(&mut timed, settings.decode, "token");
    }
    Ok(())
}

/// Prints and resets the steps' times.
fn report(timed: &mut Timed, count: usize, unit: &str) {
    for (step, spent) in std::mem::take(&mut timed.spent) {
        println!("    {step:14} {:9.3} ms a {unit}", spent * 1e3 / count as f64);
    }
}

/// Resident memory: all of it, and the part that no file backs.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    match (field("VmRSS:"), field("RssAnon:")) {
        (Some(all), Some(anonymous)) => format!("{:.0} MB ({:.0} anonymous)", all / 1024.0, anonymous / 1024.0),
        _ => "unknown".into(),
    }
}
