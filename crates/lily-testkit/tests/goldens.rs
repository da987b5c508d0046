//! The f64 reference against transformers and mlx-lm in f32: the check that the reference itself is right.

use lily_testkit::checkpoint::load_model;
use lily_testkit::golden::{Golden, TINY, assert_close, assert_rows_close, tolerance};
use lily_testkit::reference::{Model, Trace};

fn opened(name: &str) -> (Golden, Model) {
    let golden = Golden::load(name).expect("golden");
    let model = load_model(&golden.directory).expect("checkpoint");
    (golden, model)
}

#[test]
fn logits_match_transformers_and_mlx_at_every_position() {
    for name in TINY {
        let (golden, model) = opened(name);
        let out = model.forward(&golden.sequences[0].tokens, &mut model.state(), &mut Trace::off());
        for theirs in ["transformers", "mlx"] {
            let reference = golden.tensor(&format!("sequences.0.logits.{theirs}"));
            let title = format!("{name} logits against {theirs}");
            assert_rows_close(&title, &out, reference, model.dims.vocab, tolerance::REFERENCE_VS_F32);
        }
    }
}

#[test]
fn every_layer_matches_transformers_step_by_step() {
    for name in TINY {
        let (golden, model) = opened(name);
        let mut trace = Trace::on();
        model.forward(&golden.sequences[0].tokens, &mut model.state(), &mut trace);
        for layer in 0..model.dims.mixers.len() {
            for step in ["input_norm", "mixer", "residual", "moe", "output"] {
                let tensor = format!("layers.{layer}.{step}");
                let ours = trace.get(&tensor).expect("the reference records every layer's steps");
                let ours = golden.rows_at_positions(ours, model.dims.hidden);
                let title = format!("{name} {tensor}");
                assert_close(&title, &ours, golden.tensor(&tensor), tolerance::REFERENCE_VS_F32);
            }
        }
    }
}

#[test]
fn greedy_text_is_the_same_wherever_the_margin_decides() {
    for name in TINY {
        let (golden, model) = opened(name);
        let sequence = &golden.sequences[0];
        let transformers = sequence.transformers.as_ref().expect("tiny goldens have both");
        let ours = model.greedy(&sequence.tokens, sequence.mlx.tokens.len());
        for (index, step) in ours.iter().enumerate() {
            for theirs in [&sequence.mlx, transformers] {
                assert_eq!(step.token, theirs.tokens[index], "{name} token {index}, margin {}", step.margin);
                let off = (step.margin - f64::from(theirs.margins[index])).abs();
                assert!(off < 1e-3, "{name} token {index}: margin {} but theirs {}", step.margin, theirs.margins[index]);
            }
        }
    }
}
