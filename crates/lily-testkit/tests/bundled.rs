//! The f64 reference against mlx-lm in f32 on the bundled model: the same check as for the tiny checkpoints, at the
//! real head dimensions and with trained weights.

use std::path::PathBuf;

use lily_testkit::checkpoint::load_model;
use lily_testkit::golden::{Golden, assert_rows_close, goldens_directory, tolerance};
use lily_testkit::reference::{Model, Trace, negative_log_likelihood};

fn opened() -> (Golden, Model) {
    let directory: PathBuf = goldens_directory().join("../../models/lily-nano");
    (Golden::load("lily-nano").expect("golden"), load_model(&directory).expect("checkpoint"))
}

#[test]
fn logits_and_greedy_text_match_mlx() {
    let (golden, model) = opened();
    for (index, sequence) in golden.sequences.iter().enumerate() {
        let out = model.forward(&sequence.tokens, &mut model.state(), &mut Trace::off());
        let name = format!("sequences.{index}.logits.mlx");
        assert_rows_close(&name, &out, golden.tensor(&name), model.dims.vocab, tolerance::REFERENCE_VS_F32);
        let ours: Vec<u32> = model.greedy(&sequence.tokens, sequence.mlx.tokens.len()).iter().map(|step| step.token).collect();
        let compared = sequence.mlx.assert_followed(&name, &ours, 1e-3);
        assert!(compared >= 16, "{name}: only {compared} tokens before the first near-tie");
    }
}

#[test]
fn likelihood_of_held_out_text_matches_mlx() {
    let (golden, model) = opened();
    assert!(!golden.perplexities.is_empty());
    for text in &golden.perplexities {
        let window = text.tokens.chunks(text.window).next().expect("at least one window");
        let (ours, theirs) = (negative_log_likelihood(&model, window), text.nll[0]);
        assert!((ours / theirs - 1.0).abs() < 1e-5, "{}: {ours} nats, mlx-lm {theirs}", text.file);
    }
}
