//! `lily inspect`: a model's shape, the memory that it needs, and how fast decoding can be at most.

use std::io::{self, Write};

use lily_model::apple::{CHIPS, Chip};
use lily_model::footprint::Footprint;
use lily_model::storage::Storage;
use lily_model::{LayerKind, ModelConfig, Weights};

use crate::cli::InspectArgs;
use crate::session::memory_bytes;
use crate::source;

/// Context lengths of the tables, as far as the model reaches.
const CONTEXTS: [usize; 5] = [4096, 16384, 32768, 131072, 262144];
/// Activations, buffers and the program itself: an allowance beside weights and state.
const PROGRAM_BYTES: u64 = 512 << 20;

pub fn inspect(args: InspectArgs) -> anyhow::Result<()> {
    let (name, config, footprint) = if args.full_size {
        let config = ModelConfig::qwen3_6_35b_a3b();
        let footprint = Footprint::planned(&config, &Storage::mlx_4bit(&config))?;
        ("Qwen3.6-35B-A3B, 4 bits".to_string(), config, footprint)
    } else {
        let source = source::open(args.model.as_deref())?;
        let config = ModelConfig::from_checkpoint(&source.checkpoint)?;
        let weights = Weights::load(&source.checkpoint, &config)?;
        (source.name, config.clone(), Footprint::new(&config, &weights))
    };
    let mut contexts: Vec<usize> = CONTEXTS.into_iter().chain(args.context).filter(|&context| context <= config.context_max).collect();
    if contexts.is_empty() {
        contexts.push(config.context_max);
    }
    contexts.sort_unstable();
    contexts.dedup();

    let mut out = io::stdout().lock();
    print_shape(&mut out, &name, &config)?;
    print_weights(&mut out, &footprint)?;
    print_memory(&mut out, &footprint, &contexts)?;
    print_traffic(&mut out, &footprint, &contexts, args.bandwidth)?;
    print_apple(&mut out, &footprint, &contexts)?;
    Ok(())
}

fn print_shape(out: &mut impl Write, name: &str, config: &ModelConfig) -> io::Result<()> {
    let (delta, attention) = (config.layers_of(LayerKind::Delta), config.layers_of(LayerKind::Attention));
    writeln!(out, "{name}")?;
    writeln!(out, "  layers        {} ({delta} Gated DeltaNet, {attention} attention), hidden {}", config.layers.len(), config.hidden)?;
    writeln!(
        out,
        "  experts       {} of {} per token and layer, {} wide; shared expert {}",
        config.experts_per_token, config.experts, config.expert_width, config.shared_width
    )?;
    writeln!(out, "  attention     {} query heads over {} key-value heads of {}", config.heads_q, config.heads_kv, config.head_dim)?;
    writeln!(out, "  DeltaNet      {} value heads of {}, {} key heads of {}", config.heads_v, config.dim_v, config.heads_k, config.dim_k)?;
    writeln!(out, "  vocabulary    {}, context {}", config.vocab, config.context_max)?;
    Ok(())
}

fn print_weights(out: &mut impl Write, footprint: &Footprint) -> io::Result<()> {
    let weights = &footprint.weights;
    let parts = [
        ("routed experts", weights.experts),
        ("DeltaNet mixers", weights.delta),
        ("attention mixers", weights.attention),
        ("shared experts", weights.shared),
        ("routers", weights.routers),
        ("embedding", weights.embedding),
        ("head", weights.head),
        ("vectors", weights.vectors),
    ];
    writeln!(out, "\nWeights: {}", size(footprint.weight_bytes()))?;
    for (part, bytes) in parts {
        writeln!(out, "  {part:<17} {:>9}", size(bytes))?;
    }
    Ok(())
}

fn print_memory(out: &mut impl Write, footprint: &Footprint, contexts: &[usize]) -> io::Result<()> {
    let machine = memory_bytes();
    writeln!(out, "\nMemory for one conversation; this machine has {}", size(machine))?;
    writeln!(out, "  {:>7}  {:>9}  {:>15}  {:>9}", "context", "state", "keys and values", "in all")?;
    for &context in contexts {
        let state = footprint.state_bytes();
        let total = footprint.memory_bytes(context, 1) + PROGRAM_BYTES;
        let verdict = if total < machine { "fits" } else { "does not fit" };
        writeln!(
            out,
            "  {context:>7}  {:>9}  {:>15}  {:>9}  {verdict}",
            size(state),
            size(footprint.sequence_bytes(context) - state),
            size(total)
        )?;
    }
    Ok(())
}

fn print_traffic(out: &mut impl Write, footprint: &Footprint, contexts: &[usize], bandwidth: Option<f64>) -> io::Result<()> {
    writeln!(out, "\nBytes that one decoded token moves (and the tokens a second that memory allows at most)")?;
    let given = bandwidth.map_or(String::new(), |bandwidth| format!("  {:>14}", format!("at {bandwidth} GB/s")));
    writeln!(out, "  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}{given}", "context", "weights", "state", "context", "in all")?;
    for &context in contexts {
        let bytes = footprint.token_bytes(context);
        let ceiling = bandwidth.map_or(String::new(), |bandwidth| format!("  {:>8.1} tok/s", footprint.decode_ceiling(context, bandwidth)));
        writeln!(
            out,
            "  {context:>7}  {:>9}  {:>9}  {:>9}  {:>9}{ceiling}",
            size(bytes.weights),
            size(bytes.state),
            size(bytes.kv),
            size(bytes.total())
        )?;
    }
    Ok(())
}

fn print_apple(out: &mut impl Write, footprint: &Footprint, contexts: &[usize]) -> io::Result<()> {
    writeln!(out, "\nApple chips: decode ceiling in tok/s by context, and the memory sizes whose GPU share holds the model")?;
    write!(out, "  {:<22} {:>5}", "chip", "GB/s")?;
    for context in contexts {
        write!(out, " {context:>7}")?;
    }
    writeln!(out, "   fits in")?;
    for chip in &CHIPS {
        write!(out, "  {:<22} {:>5}", chip.name, chip.bandwidth)?;
        for &context in contexts {
            write!(out, " {:>7.0}", footprint.decode_ceiling(context, chip.bandwidth))?;
        }
        writeln!(out, "   {}", fitting(chip, footprint, contexts[0]))?;
    }
    Ok(())
}

/// The memory sizes of a chip in which the shortest context of the table fits.
fn fitting(chip: &Chip, footprint: &Footprint, context: usize) -> String {
    let need = footprint.memory_bytes(context, 1) + PROGRAM_BYTES;
    let sizes: Vec<String> =
        chip.memory.iter().filter(|&&memory| Chip::gpu_bytes(memory) > need).map(|memory| memory.to_string()).collect();
    if sizes.is_empty() { "none of its sizes".into() } else { format!("{} GiB", sizes.join(", ")) }
}

/// Bytes for a reader: three digits and a decimal unit.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} kB", b / 1e3),
    }
}
