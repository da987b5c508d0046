//! Synthetic checkpoints: repeatable, complete, with sane values, at full size too.

mod small;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::bf16;
use lily_model::{Checkpoint, Dtype, LayerKind, ModelConfig, Synth, Weights};
use small::{P, Small};

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn same_seed_same_bytes() {
    let synth = |seed| Synth { seed, shard_bytes: 100_000, ..Synth::new(ModelConfig::tiny()) };
    let [a, b, c] = [7, 7, 8].map(|seed| files(Small::of(synth(seed)).path()));
    assert_eq!(a, b);
    let shards: Vec<&String> = a.keys().filter(|name| name.ends_with(".safetensors")).collect();
    assert!(shards.len() > 1 && shards.iter().all(|name| a[*name] != c[*name]), "another seed, other bytes");
    assert!(shards.iter().all(|name| a[*name].len() < 200_000), "shards keep to their size, a large tensor and a header apart");
}

#[test]
fn progress_and_refusal_to_overwrite() {
    let directory = tempfile::tempdir().unwrap();
    let synth = Synth::new(ModelConfig::tiny());
    let mut heard = Vec::new();
    synth.write(directory.path(), &mut |done, total| heard.push((done, total))).unwrap();
    let total = synth.bytes().unwrap();
    assert!(heard.is_sorted() && heard.iter().all(|&(_, of)| of == total));
    assert_eq!(heard.last(), Some(&(total, total)));
    for left in ["config.json", "model.safetensors"] {
        let before = files(directory.path());
        let error = synth.write(directory.path(), &mut |_, _| ()).unwrap_err().to_string();
        assert!(error.contains("expected an empty or absent directory, it holds"), "{error}");
        assert_eq!(files(directory.path()), before);
        fs::remove_file(directory.path().join(left)).unwrap(); // nor is a checkpoint of which parts are missing
    }
}

#[test]
fn follows_a_config_file() {
    let small = Small::new();
    let again = Synth::from_json(&fs::read(small.file("config.json")).unwrap()).unwrap();
    assert_eq!(again.config, ModelConfig::tiny());
    assert_eq!(files(Small::of(again).path()), files(small.path()));
    let mut odd = ModelConfig::tiny();
    odd.expert_width = 100;
    let error = Synth::new(odd).bytes().unwrap_err().to_string();
    assert!(error.contains("rows of 100: expected a multiple of the quantisation group, 64"), "{error}");
}

/// Mean and standard deviation.
fn moments(values: &[f32]) -> (f32, f32) {
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / values.len() as f32;
    (mean, variance.sqrt())
}

#[test]
fn values_are_like_real_ones() {
    let small = Small::new();
    let checkpoint = Checkpoint::open(small.path()).unwrap();
    let tensor = |name: &str| checkpoint.tensor(&format!("{P}{name}")).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        assert_eq!(tensor(name).dtype, Some(Dtype::Bf16));
        tensor(name).bytes.as_chunks().0.iter().map(|&value| bf16::from_le_bytes(value).to_f32()).collect()
    };
    let at = "layers.0.mlp.switch_mlp.gate_proj";
    let (scales, biases) = (floats(&format!("{at}.scales")), floats(&format!("{at}.biases")));
    let negative = scales.iter().filter(|&&scale| scale < 0.0).count() as f32 / scales.len() as f32;
    assert!((0.45..0.55).contains(&negative), "{negative} of the scales are negative");
    let weights: Vec<f32> = tensor(&format!("{at}.weight"))
        .bytes
        .iter()
        .flat_map(|byte| [byte & 15, byte >> 4])
        .enumerate()
        .map(|(at, code)| scales[at / 64] * code as f32 + biases[at / 64])
        .collect();
    let (mean, deviation) = moments(&weights);
    let wanted = 1.0 / 128f32.sqrt();
    assert!(mean.abs() < wanted / 50.0 && (deviation / wanted - 1.0).abs() < 0.1, "weights {mean} ± {deviation}, wanted 0 ± {wanted}");

    let (mean, deviation) = moments(&floats("layers.0.input_layernorm.weight"));
    assert!((mean - 1.0).abs() < 0.05 && (deviation - 0.1).abs() < 0.03, "gains {mean} ± {deviation}");
    let loaded = small.load().unwrap();
    let lily_model::Mixer::Delta(delta) = &loaded.layers[0].mixer else { panic!("layer 0 is a DeltaNet layer") };
    assert!(delta.decay_rate.iter().all(|rate| (0.049..16.1).contains(rate)), "{:?}", delta.decay_rate);
    assert!(delta.dt_bias.iter().all(|bias| (-6.0..=1.0).contains(bias)));
}

/// The full-size checkpoint with its real headers, and holes where the weights would be: every name and shape,
/// and a load that may not read the weights, without 19.5 GB.
#[test]
fn full_size_layout_loads() {
    let directory = tempfile::tempdir().unwrap();
    let synth = Synth::new(ModelConfig::qwen3_6_35b_a3b());
    synth.write_holes(directory.path()).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(checkpoint.names().count(), 1757); // as published
    let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(config, ModelConfig::qwen3_6_35b_a3b());
    assert_eq!(config.layers_of(LayerKind::Delta), 30);
    let weights = Weights::load(&checkpoint, &config).unwrap();
    assert_eq!(weights.layers.len(), 40);
    assert_eq!((weights.layers[0].down.data.rows, weights.layers[0].down.data.cols), (256 * 2048, 512));
    let gigabytes = synth.bytes().unwrap() as f64 / 1e9;
    assert!((gigabytes - 19.51).abs() < 0.01, "{gigabytes} GB");
}
