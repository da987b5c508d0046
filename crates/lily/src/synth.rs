//! `lily synth`: a synthetic checkpoint with the bundled model's tokenizer, for benchmarks.

use std::fs;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lily_model::ModelConfig;
use lily_model::synth::Synth;

use crate::bundled;
use crate::cli::SynthArgs;

pub fn synth(args: SynthArgs) -> anyhow::Result<()> {
    let mut synth = match args.shape.as_str() {
        "full" => Synth::new(ModelConfig::qwen3_6_35b_a3b()),
        "nano" => Synth::new(ModelConfig::lily_nano()),
        file => {
            let text = fs::read(file).with_context(|| format!("--shape {file}: expected full, nano, or a config.json to follow"))?;
            Synth::from_json(&text).with_context(|| format!("--shape {file}"))?
        }
    };
    synth.seed = args.seed;
    if fs::read_dir(&args.dir).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{}: expected an empty or absent directory; it holds files", args.dir.display());
    }
    let tokenizer = bundled::checkpoint()?;
    let vocab = ModelConfig::from_checkpoint(&tokenizer)?.vocab;
    if synth.config.vocab < vocab {
        bail!("--shape {}: vocab_size {} is too small for the tokenizer, which has {vocab} tokens", args.shape, synth.config.vocab);
    }

    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")?;
    let bar = ProgressBar::new(synth.bytes()?).with_style(style);
    synth.write(&args.dir, &mut |done, _| bar.set_position(done))?;
    bar.finish();
    for name in bundled::TEXT_FILES {
        let path = args.dir.join(name);
        fs::write(&path, tokenizer.file(name)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    eprintln!("Written: {} ({} bytes of tensors, seed {})", args.dir.display(), bar.position(), args.seed);
    Ok(())
}
