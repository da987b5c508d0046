//! Every layout that checkpoints of this architecture come in loads to the same weights.

mod small;

use std::fs;

use half::{bf16, f16};
use lily_model::{Checkpoint, Footprint, LayerKind, MatrixData, ModelConfig, Storage, Synth, Weights};
use safetensors::Dtype;
use serde_json::{Value, json};
use small::raw::make_raw;
use small::values::{row, values};
use small::{P, Small};

/// Asserts that all weights are equal, value by value.
#[track_caller]
fn same(a: &Weights, b: &Weights) {
    let (a, b) = (values(a), values(b));
    assert_eq!(a.len(), b.len());
    for (at, (a, b)) in a.iter().zip(&b).enumerate() {
        let differs = a.iter().zip(b).position(|(a, b)| a != b);
        assert_eq!((differs, a.len()), (None, b.len()), "tensor {at}: first difference, length");
    }
}

/// Renames every tensor and every override.
fn rename(small: &Small, new: impl Fn(&str) -> String) {
    small.tensors(|tensors| *tensors = std::mem::take(tensors).into_iter().map(|(name, tensor)| (new(&name), tensor)).collect());
}

#[test]
fn every_prefix_and_both_spellings_of_overrides() {
    let expected = Small::new().load().unwrap();
    let router = &expected.layers[0].router.data;
    assert!(matches!(router, MatrixData::Affine { bits: 8, group: 64, .. }), "the override holds: {router:?}");
    assert!(matches!(expected.layers[0].gate.data.data, MatrixData::Affine { bits: 4, group: 64, .. }));
    for prefix in ["model.language_model.", "model."] {
        let small = Small::new();
        rename(&small, |name| name.replace(P, prefix).replace("language_model.lm_head", "lm_head"));
        same(&small.load().unwrap(), &expected); // overrides spelled language_model.model.
        let small = Small::new();
        small.config(|json| {
            let section = json["quantization"].as_object_mut().unwrap();
            *section = section.iter().map(|(name, value)| (name.replace(P, prefix), value.clone())).collect();
        });
        same(&small.load().unwrap(), &expected);
    }
}

#[test]
fn shards_and_embedded_files() {
    let expected = Small::new().load().unwrap();
    let sharded = Small::sharded();
    Checkpoint::open(sharded.path()).unwrap().read_ahead();
    same(&sharded.load().unwrap(), &expected);
    let small = Small::new();
    let files: Vec<(&'static str, &'static [u8])> =
        ["config.json", "model.safetensors"].map(|name| (name, &*fs::read(small.file(name)).unwrap().leak())).into();
    let checkpoint = Checkpoint::from_static(&files).unwrap();
    let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(config, ModelConfig::tiny());
    same(&Weights::load(&checkpoint, &config).unwrap(), &expected);
    assert!(!checkpoint.has_file("tokenizer.json"));
    let missing = checkpoint.file("tokenizer.json").unwrap_err().to_string();
    assert!(missing.contains("<embedded>/tokenizer.json"), "{missing}");
}

#[test]
fn raw_layouts() {
    let plain = Small::plain();
    let expected = plain.load().unwrap();
    assert!(matches!(expected.head.data, MatrixData::Plain { dtype: lily_model::Dtype::Bf16, .. }));
    for fused in [true, false] {
        let small = Small::plain();
        small.tensors(|tensors| make_raw(tensors, fused));
        same(&small.load().unwrap(), &expected);
        // Multi-token prediction beside it changes nothing: the convolution alone decides about the one.
        small.tensors(|tensors| drop(tensors.insert("mtp.norm.weight".into(), (Dtype::BF16, vec![1], vec![0; 2]))));
        let weights = small.load().unwrap();
        same(&weights, &expected);
        assert_eq!(weights.ignored, ["mtp.norm.weight"]);
    }
}

#[test]
fn mtp_tensors_do_not_make_gains_raw() {
    let expected = Small::new().load().unwrap();
    let small = Small::new();
    small.tensors(|tensors| {
        tensors.insert("vision_tower.blocks.0.norm1.weight".into(), (Dtype::BF16, vec![1], vec![0; 2]));
        tensors.insert("mtp.norm.weight".into(), (Dtype::I64, vec![1], vec![0; 8]));
    });
    let weights = small.load().unwrap();
    same(&weights, &expected);
    assert_eq!(weights.ignored, ["mtp.norm.weight", "vision_tower.blocks.0.norm1.weight"]);
    assert!(expected.ignored.is_empty());
}

#[test]
fn tied_embeddings() {
    let storage = Storage { tied_head: true, ..Storage::mlx_4bit(&ModelConfig::tiny()) };
    let small = Small::of(Synth { storage, ..Synth::new(ModelConfig::tiny()) });
    let weights = small.load().unwrap();
    assert_eq!(row(&weights.head, 7), row(&weights.embedding, 7));
    small.config(|json| json["text_config"]["tie_word_embeddings"] = json!(false));
    assert!(small.refusal().contains("language_model.lm_head.weight"), "an untied head must be there");
}

#[test]
fn float_types_of_vectors_and_scales() {
    let expected = Small::new().load().unwrap();
    for dtype in [Dtype::F16, Dtype::F32] {
        let small = Small::new();
        small.tensors(|tensors| {
            for (stored, _, bytes) in tensors.values_mut().filter(|tensor| tensor.0 == Dtype::BF16) {
                let values = bytes.as_chunks().0.iter().map(|&value| bf16::from_le_bytes(value).to_f32());
                *bytes = match dtype {
                    Dtype::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
                    _ => values.flat_map(f32::to_le_bytes).collect(),
                };
                *stored = dtype;
            }
        });
        let weights = small.load().unwrap();
        if dtype == Dtype::F32 {
            same(&weights, &expected);
        }
        let (a, b) = (row(&weights.head, 3), row(&expected.head, 3));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "f16 holds what bf16 holds, nearly");
        assert!(matches!(weights.head.data, MatrixData::Affine { scale_dtype, .. } if scale_dtype != lily_model::Dtype::Bf16));
    }
}

#[test]
fn other_groups_and_bits() {
    for (bits, group) in [(4, 32), (4, 128), (8, 32), (8, 64)] {
        let mut config = ModelConfig::tiny();
        (config.expert_width, config.shared_width) = (128, 128);
        let mut storage = Storage { quantization: None, tied_head: false };
        storage.quantization = Some(lily_model::Quantization {
            default: lily_model::Affine { bits, group },
            overrides: [("lm_head".to_owned(), lily_model::Affine { bits: 8, group: 64 })].into(),
        });
        let weights = Small::of(Synth { storage, ..Synth::new(config) }).load().unwrap();
        let found = &weights.layers[0].down.data.data;
        assert!(matches!(found, MatrixData::Affine { bits: b, group: g, .. } if (*b, *g) == (bits, group)), "{found:?}");
        assert!(matches!(weights.head.data, MatrixData::Affine { bits: 8, group: 64, .. }));
    }
}

#[test]
fn unaligned_data() {
    // Some writers do not pad the header: tensors then start at odd addresses.
    let expected = Small::new().load().unwrap();
    let small = Small::new();
    let path = small.file("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let header = header.trim_end().to_owned() + if header.trim_end().len().is_multiple_of(2) { " " } else { "" };
    assert_eq!(header.len() % 2, 1);
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + length..]].concat()).unwrap();
    same(&small.load().unwrap(), &expected);
}

#[test]
fn config_spellings() {
    let config = ModelConfig::tiny();
    let whole = config.to_json(&Storage::mlx_4bit(&config));
    let read = |json: &Value| ModelConfig::from_json(json.to_string().as_bytes()).unwrap();
    assert_eq!(read(&whole), config);
    // Flat, as the text model alone.
    let mut flat = whole["text_config"].clone();
    assert_eq!(read(&flat), config);
    // Rotary settings as plain fields, layers by interval and by default.
    let flat_fields = flat.as_object_mut().unwrap();
    let rope = flat_fields.remove("rope_parameters").unwrap();
    flat_fields.insert("rope_theta".into(), rope["rope_theta"].clone());
    flat_fields.insert("partial_rotary_factor".into(), rope["partial_rotary_factor"].clone());
    flat_fields.remove("layer_types");
    assert_eq!(read(&flat), config);
    flat["full_attention_interval"] = json!(2);
    use LayerKind::{Attention, Delta};
    assert_eq!(read(&flat).layers, [Delta, Attention, Delta, Attention]);
    // Rotary settings beside text_config; end ids of both levels.
    let mut split = whole.clone();
    split["rope_parameters"] = split["text_config"].as_object_mut().unwrap().remove("rope_parameters").unwrap();
    split["eos_token_id"] = json!([5, 2]);
    split["text_config"]["eos_token_id"] = json!(2);
    assert_eq!(read(&split), ModelConfig { eos: vec![2, 5], ..config });
    // The one explicit setting that says what this engine does.
    split["text_config"]["norm_topk_prob"] = json!(true);
    read(&split);
}

#[test]
fn footprint_of_loaded_weights_equals_the_planned_one() {
    let shapes = [
        (ModelConfig::tiny(), Storage::mlx_4bit(&ModelConfig::tiny())),
        (ModelConfig::tiny(), Storage { quantization: None, tied_head: true }),
        (ModelConfig::lily_nano(), Storage::mlx_4bit(&ModelConfig::lily_nano())),
    ];
    for (config, storage) in shapes {
        let planned = Footprint::planned(&config, &storage).unwrap();
        let small = Small::of(Synth { storage, ..Synth::new(config.clone()) });
        let loaded = Footprint::new(&config, &small.load().unwrap());
        assert_eq!(loaded.weights, planned.weights);
        assert_eq!(loaded.token_bytes(100), planned.token_bytes(100));
    }
    let small = Small::plain();
    let before = Footprint::new(&ModelConfig::tiny(), &small.load().unwrap());
    small.tensors(|tensors| make_raw(tensors, true));
    let fused = Footprint::new(&ModelConfig::tiny(), &small.load().unwrap());
    assert_eq!(before.weights, fused.weights);
}
