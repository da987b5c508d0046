//! Damaged checkpoints: each is refused with a message that says what was expected, what was found, where.

mod small;

use std::fs;
use std::path::Path;

use lily_model::{Checkpoint, ModelConfig};
use safetensors::Dtype;
use serde_json::{Value, json};
use small::{P, Small};

/// Asserts that a message holds every part.
#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[track_caller]
fn refused(damage: impl FnOnce(&Small), parts: &[&str]) {
    let small = Small::new();
    damage(&small);
    says(&small.refusal(), parts);
}

fn shorten(path: &Path, by: u64) -> u64 {
    let length = fs::metadata(path).unwrap().len();
    fs::File::options().write(true).open(path).unwrap().set_len(length - by).unwrap();
    length
}

#[test]
fn missing_directory_and_files() {
    let error = Checkpoint::open(Path::new("no/such/model")).unwrap_err().to_string();
    says(&error, &["no/such/model", "No such file"]);
    refused(|small| fs::remove_file(small.file("config.json")).unwrap(), &["config.json", "No such file"]);
    let small = Small::new();
    let error = Checkpoint::open(&small.file("config.json")).unwrap_err().to_string();
    says(&error, &["config.json", "expected a checkpoint directory, found a file"]);
    fs::remove_file(small.file("model.safetensors")).unwrap();
    says(&small.refusal(), &["model.safetensors", "missing shard", "index.json names it"]);
    fs::remove_file(small.file("model.safetensors.index.json")).unwrap();
    says(&small.refusal(), &["model.safetensors", "missing: a checkpoint has this file, or model.safetensors.index.json"]);
}

#[test]
fn truncated_shard() {
    let small = Small::new();
    let length = shorten(&small.file("model.safetensors"), 1000);
    says(&small.refusal(), &["model.safetensors: truncated", &format!("promises {length} bytes"), &format!("file has {}", length - 1000)]);
    shorten(&small.file("model.safetensors"), length - 1000 - 100);
    says(&small.refusal(), &["model.safetensors: truncated or corrupt: its header takes", "the file has 100 in all"]);
    shorten(&small.file("model.safetensors"), 95);
    says(&small.refusal(), &["model.safetensors: truncated", "found 5 bytes"]);
    shorten(&small.file("model.safetensors"), 5);
    says(&small.refusal(), &["model.safetensors: truncated", "found 0 bytes"]);
}

#[test]
fn corrupt_header() {
    let edit = |change: fn(&mut Vec<u8>)| {
        move |small: &Small| {
            let path = small.file("model.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            change(&mut bytes);
            fs::write(&path, bytes).unwrap();
        }
    };
    refused(edit(|bytes| bytes[8] = b'!'), &["model.safetensors: corrupt safetensors header", "invalid JSON"]);
    refused(edit(|bytes| bytes[7] = 0xff), &["model.safetensors: corrupt safetensors header", "too large"]);
    refused(edit(|bytes| bytes.extend([0; 16])), &["model.safetensors: longer than its header says"]);
    refused(edit(|bytes| *bytes = b"version https://git-lfs.github.com/spec/v1\n".to_vec()), &["model.safetensors: corrupt"]);
}

#[test]
fn corrupt_index() {
    let index = "model.safetensors.index.json";
    let edit = |change: fn(&mut Value)| move |small: &Small| small.json(index, change);
    refused(|small| fs::write(small.file(index), "{\"weight_map\": {").unwrap(), &[index, "corrupt index", "EOF"]);
    refused(edit(|json| json["weight_map"] = json!({})), &[index, "weight_map names no tensors"]);
    refused(edit(|json| json["weight_map"] = json!(3)), &[index, "corrupt index", "expected a map"]);
    refused(
        edit(|json| json["weight_map"]["extra"] = json!("../model.safetensors")),
        &[index, "tensor extra", "../model.safetensors", "no name of a shard"],
    );
    refused(
        edit(|json| json["weight_map"]["extra"] = json!("model.safetensors")),
        &["model.safetensors: lacks tensor extra", "index.json says it holds"],
    );
    refused(edit(|json| json["weight_map"]["extra"] = json!("other.safetensors")), &["other.safetensors: missing shard"]);
}

#[test]
fn damaged_shards() {
    let small = Small::sharded();
    small.load().unwrap();
    let shard = small.first_shard();
    let name = shard.file_name().unwrap().to_str().unwrap();
    let length = shorten(&shard, 7);
    says(&small.refusal(), &[name, &format!("promises {length} bytes, the file has {}", length - 7)]);
    fs::remove_file(&shard).unwrap();
    says(&small.refusal(), &[name, "missing shard"]);

    let small = Small::sharded();
    fs::copy(small.first_shard(), small.file("again.safetensors")).unwrap();
    small.json("model.safetensors.index.json", |json| {
        json["weight_map"][format!("{P}embed_tokens.weight")] = json!("again.safetensors");
    });
    says(&small.refusal(), &["holds tensor language_model.model.", "again.safetensors"]);
}

#[test]
fn missing_and_misshapen_tensors() {
    let edit = |change: fn(&mut small::Tensors)| move |small: &Small| small.tensors(change);
    let norm = "language_model.model.layers.2.input_layernorm.weight";
    refused(
        edit(|tensors| drop(tensors.remove(&format!("{P}layers.2.input_layernorm.weight")))),
        &[norm, "expected [128] BF16", "no such tensor"],
    );
    refused(
        edit(|tensors| {
            tensors.insert(format!("{P}layers.2.input_layernorm.weight"), (Dtype::F16, vec![64], vec![0; 128]));
        }),
        &[norm, "expected [128]", "file has [64] F16"],
    );
    refused(
        edit(|tensors| {
            tensors.insert(format!("{P}layers.2.input_layernorm.weight"), (Dtype::I16, vec![128], vec![0; 256]));
        }),
        &[norm, "expected [128] BF16 or F16 or F32", "file has [128] I16"],
    );
    refused(
        edit(|tensors| tensors.get_mut(&format!("{P}layers.0.linear_attn.conv1d.weight")).unwrap().1 = vec![4, 256, 1]),
        &["layers.0.linear_attn.conv1d.weight", "expected [256, 4, 1] or [256, 1, 4]", "file has [4, 256, 1] BF16"],
    );
    refused(
        edit(|tensors| tensors.get_mut(&format!("{P}layers.1.linear_attn.conv1d.weight")).unwrap().1 = vec![256, 1, 4]),
        &["layers.1.linear_attn.conv1d.weight", "expected [256, 4, 1]", "file has [256, 1, 4] BF16"],
    );
    refused(
        edit(|tensors| tensors.get_mut(&format!("{P}layers.3.mlp.switch_mlp.up_proj.weight")).unwrap().1 = vec![64, 8, 16]),
        &["layers.3.mlp.switch_mlp.up_proj.weight", "expected [8, 64, 16] U32 (4-bit, groups of 64)", "file has [64, 8, 16] U32"],
    );
    refused(
        edit(|tensors| drop(tensors.remove("language_model.lm_head.biases"))),
        &["language_model.lm_head.biases", "expected [320, 2] BF16", "no such tensor"],
    );
    refused(
        edit(|tensors| drop(tensors.remove("language_model.lm_head.scales"))),
        &["language_model.lm_head.weight", "expected [320, 128] BF16 or F16 or F32", "file has [320, 16] U32"],
    );
    refused(
        |small| {
            small.config(|json| {
                json["text_config"]["num_hidden_layers"] = json!(3);
                json["text_config"]["layer_types"].as_array_mut().unwrap().pop();
            });
        },
        &["num_hidden_layers", "found 3", "the checkpoint has more"],
    );
    refused(edit(|tensors| tensors.clear()), &["language_model.model.", "no such tensor"]);
}

#[test]
fn unknown_quantisation() {
    let edit = |change: fn(&mut Value)| move |small: &Small| small.config(change);
    refused(edit(|json| json["quantization"]["mode"] = json!("mxfp4")), &["quantization.mode", "expected \"affine\"", "found \"mxfp4\""]);
    refused(edit(|json| json["quantization"]["bits"] = json!(3)), &["quantization.bits", "expected 4 or 8", "found 3"]);
    refused(edit(|json| json["quantization"]["group_size"] = json!(16)), &["quantization.group_size", "32, 64 or 128", "found 16"]);
    refused(edit(|json| json["quantization"] = json!({ "bits": 4 })), &["quantization.group_size", "the field is missing"]);
    refused(edit(|json| json["quantization"] = json!("int4")), &["quantization: expected an object", "found \"int4\""]);
    refused(
        edit(|json| json["quantization"]["language_model.model.layers.0.mlp.gate"]["bits"] = json!(6)),
        &["quantization.language_model.model.layers.0.mlp.gate.bits", "expected 4 or 8", "found 6"],
    );
    // Codes of other bits than the section says.
    refused(
        edit(|json| json["quantization"]["bits"] = json!(8)),
        &["embed_tokens.weight", "expected [320, 32] U32 (8-bit, groups of 64)", "file has [320, 16] U32"],
    );
    refused(
        edit(|json| {
            json.as_object_mut().unwrap().remove("quantization");
            json["quantization_config"] = json!({ "quant_method": "fp8" });
        }),
        &["quantization_config.quant_method", "found \"fp8\""],
    );
    refused(
        edit(|json| {
            json.as_object_mut().unwrap().retain(|name, _| !name.starts_with("quantization"));
        }),
        &["quantization: expected this section", ".scales is there"],
    );
}

#[test]
fn missing_and_wrong_config_fields() {
    let fields = [
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "rms_norm_eps",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ];
    let whole = ModelConfig::tiny().to_json(&lily_model::Storage::mlx_4bit(&ModelConfig::tiny()));
    let refusal = |json: &Value| ModelConfig::from_json(json.to_string().as_bytes()).unwrap_err().to_string();
    for field in fields {
        let path = format!("config.json: text_config.{field}: expected");
        let mut json = whole.clone();
        json["text_config"].as_object_mut().unwrap().remove(field);
        says(&refusal(&json), &[&path, "the field is missing"]);
        for wrong in [json!("many"), json!(-1), json!(0), json!([2])] {
            json["text_config"][field] = wrong.clone();
            says(&refusal(&json), &[&path, &format!("found {wrong}")]);
        }
    }
    says(&ModelConfig::from_json(b"{").unwrap_err().to_string(), &["config.json: not valid JSON"]);
    says(&ModelConfig::from_json(b"[]").unwrap_err().to_string(), &["expected an object, found []"]);
}

#[test]
fn settings_that_this_engine_does_not_compute() {
    let refusal = |pointer: &str, value: Value| {
        let mut json = ModelConfig::tiny().to_json(&lily_model::Storage::mlx_4bit(&ModelConfig::tiny()));
        let (object, name) = pointer.rsplit_once('/').unwrap();
        json.pointer_mut(object).unwrap()[name] = value;
        ModelConfig::from_json(json.to_string().as_bytes()).unwrap_err().to_string()
    };
    says(&refusal("/model_type", json!("qwen3_next")), &["model_type", "expected \"qwen3_5_moe\"", "found \"qwen3_next\""]);
    says(&refusal("/model_type", json!(null)), &["model_type", "the field is missing"]);
    says(&refusal("/text_config", json!(7)), &["text_config: expected an object, found 7"]);
    says(&refusal("/text_config/norm_topk_prob", json!(false)), &["text_config.norm_topk_prob", "expected true", "found false"]);
    says(&refusal("/text_config/attn_output_gate", json!(false)), &["attn_output_gate", "expected true"]);
    says(&refusal("/text_config/attention_bias", json!(true)), &["attention_bias", "expected false", "found true"]);
    says(&refusal("/text_config/hidden_act", json!("gelu")), &["hidden_act", "expected \"silu\", found \"gelu\""]);
    says(&refusal("/text_config/mlp_only_layers", json!([0])), &["mlp_only_layers", "found [0]"]);
    says(&refusal("/text_config/decoder_sparse_step", json!(2)), &["decoder_sparse_step", "expected 1", "found 2"]);
    says(
        &refusal("/text_config/rope_parameters/rope_type", json!("yarn")),
        &["rope_parameters.rope_type", "\"default\"", "found \"yarn\""],
    );
    says(&refusal("/text_config/rope_parameters/rope_theta", json!(null)), &["rope_parameters.rope_theta", "the field is missing"]);
    says(&refusal("/text_config/rope_parameters/partial_rotary_factor", json!(0.01)), &["partial_rotary_factor", "head_dim's 32"]);
    says(&refusal("/text_config/layer_types", json!(["full_attention"])), &["layer_types", "num_hidden_layers (4) entries"]);
    says(
        &refusal("/text_config/layer_types", json!(["full_attention", "sliding", "full_attention", "full_attention"])),
        &["layer_types[1]", "\"linear_attention\" or \"full_attention\"", "found \"sliding\""],
    );
    says(
        &refusal("/text_config/num_key_value_heads", json!(3)),
        &["num_attention_heads: expected a multiple of num_key_value_heads (3), found 4"],
    );
    says(
        &refusal("/text_config/linear_num_key_heads", json!(3)),
        &["linear_num_value_heads: expected a multiple of linear_num_key_heads (3), found 4"],
    );
    says(&refusal("/text_config/num_experts_per_tok", json!(9)), &["num_experts_per_tok: expected at most num_experts (8), found 9"]);
    says(&refusal("/text_config/eos_token_id", json!("end")), &["eos_token_id", "a token id or a list of them", "found \"end\""]);
    says(&refusal("/text_config/eos_token_id", json!([1, 320])), &["eos_token_id: expected ids below vocab_size (320), found 320"]);
}
