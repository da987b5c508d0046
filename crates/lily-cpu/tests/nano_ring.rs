//! The model ring on the bundled model: logits, greedy text and perplexity against mlx-lm in f32.
//!
//! `cargo test -p lily-cpu --test nano_ring -- --nocapture` prints what was measured.

mod rig;

use lily_cpu::{Activations, CpuOptions, Isa};
use lily_testkit::golden::tolerance::{LOGITS_F32, PERPLEXITY};
use lily_testkit::golden::{Golden, compare, goldens_directory, worst_row};
use rig::Sequence;

/// The bundled model, on a device with room for its longest golden.
fn open_nano(options: CpuOptions) -> lily_model::Runner<lily_cpu::CpuDevice> {
    let directory = goldens_directory().join("../../models/lily-nano");
    rig::open_directory(&directory, options, rig::CAPACITY)
}

#[test]
fn the_bundled_model_agrees_with_mlx() {
    let golden = Golden::load("lily-nano").expect("the golden loads");
    for isa in Isa::available() {
        for activations in [Activations::F32, Activations::I16] {
            let mut runner = open_nano(CpuOptions::default().with_isa(isa).with_activations(activations));
            let vocab = runner.config.vocab;
            for (index, sequence) in golden.sequences.iter().enumerate() {
                let name = format!("lily-nano {isa} {activations:?} sequence {index}");
                let mut ours = Sequence::start(&mut runner, 1, &[6, 0, 11]);
                let logits = ours.feed(&mut runner, &sequence.tokens, 320);
                let worst = worst_row(&name, &logits, golden.tensor(&format!("sequences.{index}.logits.mlx")), vocab);
                println!("{}", compare(&name, &logits, golden.tensor(&format!("sequences.{index}.logits.mlx"))));
                println!("{worst}");
                worst.assert_within(LOGITS_F32);
                let tokens = ours.greedy(&mut runner, &logits, sequence.mlx.tokens.len());
                let compared = sequence.mlx.assert_followed(&name, &tokens, worst.max_abs);
                println!("{name}: {compared} of {} greedy tokens equal", tokens.len());
            }
        }
    }
}

#[test]
fn the_bundled_model_has_the_perplexity_of_mlx() {
    let golden = Golden::load("lily-nano").expect("the golden loads");
    // Both texts whole for the default; their first windows for the others.
    for (label, options, windows_max) in [
        ("default", CpuOptions::default(), usize::MAX),
        ("f32", CpuOptions::default().with_activations(Activations::F32), 1),
        ("i8", CpuOptions::default().with_activations(Activations::I8), 4),
    ] {
        let mut runner = open_nano(options);
        for text in &golden.perplexities {
            let (mut ours, mut theirs, mut scored) = (0.0, 0.0, 0);
            for (tokens, nll) in text.tokens.chunks(text.window).zip(&text.nll).take(windows_max) {
                let pages: Vec<u32> = (0..tokens.len().div_ceil(lily_model::PAGE_TOKENS) as u32).collect();
                let logits = Sequence::start(&mut runner, 0, &pages).feed(&mut runner, tokens, 256);
                ours += negative_log_likelihood(&logits, tokens);
                theirs += nll;
                scored += tokens.len() - 1;
            }
            let difference = ((ours - theirs) / scored as f64).exp() - 1.0;
            let perplexity = (ours / scored as f64).exp();
            println!("{} {label}: perplexity {perplexity:.4} over {scored} tokens, {:+.4} %", text.file, 100.0 * difference);
            let allowed = if label == "i8" { 3e-3 } else { PERPLEXITY };
            assert!(difference.abs() <= allowed, "{} {label}: perplexity is off by {difference:.2e}", text.file);
        }
    }
}

/// In nats, of all tokens but the first.
fn negative_log_likelihood(logits: &[f32], tokens: &[u32]) -> f64 {
    let vocab = logits.len() / tokens.len();
    let rows = logits.chunks_exact(vocab).zip(&tokens[1..]);
    rows.map(|(row, &next)| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        sum.ln() - f64::from(row[next as usize] - max)
    })
    .sum()
}
