//! Prints how far the f64 reference is from transformers and mlx-lm on every golden: the table of tools/goldens/README.md.
//!
//! `cargo run --release -p lily-testkit --example agreement [CHECKPOINT GOLDEN]`: by default the tiny goldens and, where
//! it is there, the bundled model's; with two directories, only that pair. The perplexity takes minutes.

use std::path::{Path, PathBuf};

use lily_testkit::TestkitError;
use lily_testkit::checkpoint::load_model;
use lily_testkit::golden::{Golden, Perplexity, TINY, compare, goldens_directory, worst_row};
use lily_testkit::reference::{Model, Trace, negative_log_likelihood};

fn main() -> Result<(), TestkitError> {
    let arguments: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    if let [checkpoint, golden] = arguments.as_slice() {
        return report(checkpoint, golden);
    }
    for name in TINY {
        let golden = goldens_directory().join(name);
        report(&golden, &golden)?;
    }
    let nano = goldens_directory().join("lily-nano");
    if nano.exists() { report(&goldens_directory().join("../../models/lily-nano"), &nano) } else { Ok(()) }
}

fn report(checkpoint: &Path, golden: &Path) -> Result<(), TestkitError> {
    println!("{}", golden.file_name().unwrap_or_default().display());
    let golden = Golden::load_from(golden.to_owned())?;
    let model = load_model(checkpoint)?;
    for index in 0..golden.sequences.len() {
        report_sequence(&golden, &model, index);
    }
    for perplexity in &golden.perplexities {
        report_perplexity(&model, perplexity);
    }
    Ok(())
}

fn report_sequence(golden: &Golden, model: &Model, index: usize) {
    let sequence = &golden.sequences[index];
    let mut trace = Trace::on();
    let logits = model.forward(&sequence.tokens, &mut model.state(), &mut trace);
    for theirs in ["transformers", "mlx"] {
        let name = format!("sequences.{index}.logits.{theirs}");
        if golden.has(&name) {
            let (whole, row) =
                (compare(&name, &logits, golden.tensor(&name)), worst_row(&name, &logits, golden.tensor(&name), model.dims.vocab));
            println!("  {name}: {:.1e}, worst row {:.1e}, largest difference {:.1e}", whole.relative, row.relative, whole.max_abs);
        }
    }
    let ours = model.greedy(&sequence.tokens, sequence.mlx.tokens.len());
    let same = ours.iter().zip(&sequence.mlx.tokens).take_while(|(a, b)| a.token == **b).count();
    let least = ours.iter().map(|step| step.margin).fold(f64::INFINITY, f64::min);
    println!("  greedy: {same} of {} as mlx-lm, least margin {least:.1e}", ours.len());
    let layers = trace.names().filter(|name| index == 0 && golden.has(name)).map(|name| {
        let ours = golden.rows_at_positions(trace.get(name).unwrap_or_default(), model.dims.hidden);
        compare(name, &ours, golden.tensor(name))
    });
    if let Some(worst) = layers.max_by(|a, b| a.relative.total_cmp(&b.relative)) {
        println!("  worst layer tensor: {} {:.1e}", worst.name, worst.relative);
    }
}

fn report_perplexity(model: &Model, golden: &Perplexity) {
    let nll: f64 =
        golden.tokens.chunks(golden.window).filter(|window| window.len() > 1).map(|window| negative_log_likelihood(model, window)).sum();
    let ours = (nll / golden.scored as f64).exp();
    let off = ours / golden.perplexity - 1.0;
    println!("  {}: perplexity over {} tokens: {ours:.6}, mlx-lm {:.6}, off by {off:.1e}", golden.file, golden.scored, golden.perplexity);
}
