//! Written checkpoints load, in every layout, and the reference model is causal and indifferent to how it is fed.

use lily_testkit::checkpoint::load_model;
use lily_testkit::generate::{CheckpointSpec, Float, Layout, OverrideSpelling, read_tensors, tiny_dims, write_checkpoint, write_tensors};
use lily_testkit::golden::{assert_close, compare};
use lily_testkit::reference::{MixerKind, Model, Trace};

fn written(spec: &CheckpointSpec) -> Model {
    let directory = tempfile::tempdir().expect("temporary directory");
    write_checkpoint(directory.path(), spec).expect("written");
    load_model(directory.path()).expect("loads")
}

fn logits(model: &Model, tokens: &[u32]) -> Vec<f64> {
    model.forward(tokens, &mut model.state(), &mut Trace::off())
}

#[test]
fn every_layout_loads_with_its_dimensions() {
    let mlx = |bits, group, float, spelling| Layout::Mlx { bits, group, float, spelling };
    let layouts = [
        mlx(4, 64, Float::Bf16, OverrideSpelling::LanguageModelFirst),
        mlx(4, 32, Float::F32, OverrideSpelling::ModelFirst),
        mlx(8, 64, Float::F16, OverrideSpelling::ModelFirst),
        Layout::Raw,
    ];
    for (index, layout) in layouts.into_iter().enumerate() {
        let shards = (index % 2 == 1).then_some(3);
        let nested_config = index != 2;
        let spec = CheckpointSpec { layout, shards, nested_config, foreign_tensors: true, ..CheckpointSpec::default() };
        let model = written(&spec);
        assert_eq!(model.dims, spec.dims, "{layout:?}");
        let out = logits(&model, &[1, 2, 3]);
        assert_eq!(out.len(), 3 * spec.dims.vocab);
        assert!(out.iter().all(|v| v.is_finite()) && out.iter().any(|v| v.abs() > 0.1), "{layout:?} is degenerate");
    }
}

#[test]
fn any_division_of_a_sequence_gives_the_same_logits() {
    let model = written(&CheckpointSpec::default());
    let tokens: Vec<u32> = (0..23).map(|i| (i * 37 + 5) % 272).collect();
    let whole = logits(&model, &tokens);
    for piece in [1, 3, 7, 22] {
        let mut state = model.state();
        let fed: Vec<f64> = tokens.chunks(piece).flat_map(|t| model.forward(t, &mut state, &mut Trace::off())).collect();
        assert_close(&format!("pieces of {piece}"), &fed, &whole, 1e-12);
        assert_eq!(state.position, tokens.len());
    }
}

#[test]
fn a_token_changes_its_own_logits_and_later_ones_only() {
    let model = written(&CheckpointSpec::default());
    let first: Vec<u32> = (10..22).collect();
    let mut second = first.clone();
    second[5] = 200;
    let (a, b) = (logits(&model, &first), logits(&model, &second));
    let row = |out: &[f64], t: usize| out[t * 272..(t + 1) * 272].to_vec();
    for t in 0..12 {
        let difference = compare("row", &row(&a, t), &row(&b, t)).relative;
        assert!(if t < 5 { difference == 0.0 } else { difference > 1e-6 }, "token {t} differs by {difference}");
    }
}

#[test]
fn greedy_matches_the_argmax_of_a_whole_pass() {
    let model = written(&CheckpointSpec { seed: 7, ..CheckpointSpec::default() });
    let steps = model.greedy(&[3, 1, 4], 6);
    let tokens: Vec<u32> = [3, 1, 4].into_iter().chain(steps.iter().map(|s| s.token)).collect();
    let out = logits(&model, &tokens);
    for (index, step) in steps.iter().enumerate() {
        let row = &out[(2 + index) * 272..(3 + index) * 272];
        let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!((row[step.token as usize] - best).abs() < 1e-9 && step.margin >= 0.0);
    }
}

#[test]
fn trace_names_the_tensors_of_both_mixers() {
    let model = written(&CheckpointSpec::default());
    let mut trace = Trace::on();
    let out = model.forward(&[1, 2], &mut model.state(), &mut trace);
    for name in ["embedding", "layers.0.convolved", "layers.3.attention", "layers.3.output", "final_norm"] {
        assert!(trace.get(name).is_some(), "{name} is not among {:?}", trace.names().collect::<Vec<_>>());
    }
    assert_eq!(model.head.apply(trace.get("final_norm").expect("recorded")), out);
}

#[test]
fn damage_is_named() {
    let directory = tempfile::tempdir().expect("temporary directory");
    write_checkpoint(directory.path(), &CheckpointSpec::default()).expect("written");
    let path = directory.path().join("model.safetensors");
    let whole = read_tensors(&path).expect("readable");
    let mut tensors = whole.clone();
    tensors.remove("language_model.model.layers.1.linear_attn.dt_bias");
    write_tensors(&path, &tensors).expect("written");
    let error = load_model(directory.path()).expect_err("a tensor is missing").to_string();
    assert!(error.contains("layers.1.linear_attn.dt_bias"), "{error}");
    write_tensors(&path, &whole).expect("written");
    std::fs::write(&path, &std::fs::read(&path).expect("readable")[..1000]).expect("truncated");
    let error = load_model(directory.path()).expect_err("truncated").to_string();
    assert!(error.contains("model.safetensors"), "{error}");
}

#[test]
fn other_interleavings_of_mixers_are_written_and_read() {
    let mut dims = tiny_dims();
    dims.mixers = vec![MixerKind::Attention, MixerKind::Delta, MixerKind::Attention];
    let spec = CheckpointSpec { dims, ..CheckpointSpec::default() };
    assert_eq!(written(&spec).dims.mixers, spec.dims.mixers);
}
