//! `lily eval`: figures against what mlx-lm computed with the bundled model, facts that hold and facts that do not, and
//! reference files that are of no use.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use half::f16;
use predicates::prelude::*;
use predicates::str::contains;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};

fn eval(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("lily").expect("the program is built");
    command.arg("eval").args(args).env_remove("RUST_LOG");
    command
}

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/lily-nano").join(name)
}

fn golden() -> Value {
    serde_json::from_slice(&fs::read(golden_file("golden.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Logits of mlx-lm after each token of a sequence, row by row.
fn logits(sequence: usize) -> Vec<Vec<f32>> {
    let bytes = fs::read(golden_file("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(&format!("sequences.{sequence}.logits.mlx")).unwrap();
    let values: Vec<f32> = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    values.chunks(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
}

fn log_softmax(row: &[f32], token: u32) -> f32 {
    let top = row.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - top).exp()).sum();
    row[token as usize] - top - sum.ln() as f32
}

fn largest(row: &[f32]) -> i32 {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32
}

/// A reference file in the making.
struct File {
    tensors: Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>,
    window: String,
}

impl File {
    /// What the golden knows of its first sequence, with `rows` rows of logits.
    fn of_golden(rows: usize) -> Self {
        let (tokens, logits) = (ids(&golden()["sequences"][0]["tokens"]), logits(0));
        let mut logprobs: Vec<f32> = logits.iter().zip(&tokens[1..]).map(|(row, &next)| log_softmax(row, next)).collect();
        logprobs.push(0.0);
        let count = tokens.len();
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let top1: Vec<i32> = logits.iter().map(|row| largest(row)).collect();
        let tensors = vec![
            ("tokens", Dtype::I32, vec![count], bytes(&tokens.iter().map(|&id| id as i32).collect::<Vec<_>>())),
            ("top1", Dtype::I32, vec![count], bytes(&top1)),
            ("logprobs", Dtype::F32, vec![count], logprobs.iter().flat_map(|value| value.to_le_bytes()).collect()),
            (
                "logits",
                Dtype::F16,
                vec![rows, logits[0].len()],
                logits[..rows].iter().flatten().flat_map(|&logit| f16::from_f32(logit).to_le_bytes()).collect(),
            ),
        ];
        File { tensors, window: "512".into() }
    }

    fn set(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        let tensor = self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
        (tensor.1, tensor.2, tensor.3) = (dtype, shape.to_vec(), bytes);
        self
    }

    fn write(&self) -> tempfile::TempPath {
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        let metadata = [("window".into(), self.window.clone()), ("made_by".into(), "the golden".into())].into();
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::write(&path, serialize(views, Some(metadata)).unwrap()).unwrap();
        path
    }
}

fn figures(args: &[&str]) -> Value {
    let out = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let mut all = args.to_vec();
    all.extend(["--json", out.to_str().unwrap()]);
    eval(&all).assert().success().stderr("");
    serde_json::from_slice::<Value>(&fs::read(&out).unwrap()).unwrap()["figures"].take()
}

#[test]
fn the_perplexity_of_two_windows_is_that_of_mlx() {
    let text = &golden()["perplexities"][0];
    let tokens = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    fs::write(&tokens, text["tokens"].to_string()).unwrap();
    let figures = figures(&["--tokens", tokens.to_str().unwrap(), "--limit", "1024", "--device", "cpu", "--chunk", "100"]);
    let expected = (0..2).map(|window| text["nll"][window].as_f64().unwrap()).sum::<f64>() / 1022.0;
    let difference = figures["perplexity"].as_f64().unwrap() / expected.exp() - 1.0;
    assert_eq!(figures["scored"], 1022, "the first token of a window is not predicted");
    assert!(difference.abs() < 4e-4, "{difference:e}");
    assert!(figures["reference"].is_null() && figures["top1_agreement"].is_null());
}

#[test]
fn a_text_gives_the_tokens_of_the_tokenizer() {
    let sequence = &golden()["sequences"][0];
    eval(&["--text", "-", "--device", "cpu"])
        .write_stdin(sequence["text"].as_str().unwrap())
        .assert()
        .success()
        .stdout(contains("text        20 tokens in windows of 20").and(contains("perplexity")).and(contains("reference").not()));
}

#[test]
fn both_devices_agree_with_a_reference() {
    let file = File::of_golden(12).write();
    for device in ["cpu", "sim"] {
        let figures = figures(&["--reference", file.to_str().unwrap(), "--device", device]);
        let number = |name: &str| figures[name].as_f64().unwrap();
        assert!(figures["device"].as_str().unwrap().starts_with(device));
        assert_eq!((&figures["top1_positions"], &figures["reference_scored"]), (&json!(20), &json!(19)));
        assert!(number("top1_agreement") == 1.0 && number("perplexity_difference").abs() < 2e-3, "{figures}");
        let logits = &figures["logits"];
        assert_eq!(logits["positions"], 12);
        let (mean, most) = (logits["kl_mean"].as_f64().unwrap(), logits["error_max"].as_f64().unwrap());
        assert!((0.0..1e-4).contains(&mean) && most > 0.0 && most < 0.2, "{figures}");
        let worst = &logits["worst"];
        assert!((worst["expected"].as_f64().unwrap() - worst["found"].as_f64().unwrap()).abs() - most < 1e-6);
    }
}

#[test]
fn what_one_run_writes_another_reads() {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let text = "Once upon a time there was a fox named Milo who lived near a quiet river.";
    let flags = ["--text", "-", "--device", "cpu", "--window", "9", "--write", path.to_str().unwrap(), "--logits", "5"];
    eval(&flags).write_stdin(text).assert().success();
    let figures = figures(&["--reference", path.to_str().unwrap(), "--device", "cpu"]);
    assert!(figures["reference"].as_str().unwrap().contains("on cpu"));
    assert_eq!((&figures["window"], &figures["logits"]["positions"], &figures["top1_agreement"]), (&json!(9), &json!(5), &json!(1.0)));
    assert_eq!((&figures["logits"]["error_max"], &figures["logits"]["kl_max"]), (&json!(0.0), &json!(0.0)));
    assert!(figures["perplexity_difference"].as_f64().unwrap().abs() < 1e-6, "log-probabilities are kept in f32");
}

#[test]
fn a_wrong_reference_shows_in_every_figure() {
    let file = File::of_golden(4);
    let (vocab, mut logits) = (file.tensors[3].2[1], file.tensors[3].3.clone());
    logits[2 * (vocab + 77)..][..2].copy_from_slice(&f16::from_f32(60.0).to_le_bytes());
    let wrong = [1i32; 20].iter().flat_map(|id| id.to_le_bytes()).collect();
    let logprobs = [-1f32; 20].iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = file.set("logits", Dtype::F16, &[4, vocab], logits).set("top1", Dtype::I32, &[20], wrong).set(
        "logprobs",
        Dtype::F32,
        &[20],
        logprobs,
    );
    let path = file.write();
    let figures = figures(&["--reference", path.to_str().unwrap(), "--device", "cpu"]);
    assert_eq!(figures["top1_agreement"], 0.0);
    assert!((figures["reference_perplexity"].as_f64().unwrap() - 1f64.exp()).abs() < 1e-9);
    assert!(figures["perplexity_difference"].as_f64().unwrap() > 0.5);
    let worst = &figures["logits"]["worst"];
    assert_eq!((&worst["position"], &worst["token"], &worst["expected"]), (&json!(1), &json!(77), &json!(60.0)));
    assert!(figures["logits"]["kl_max"].as_f64().unwrap() > 10.0);
}

/// Asserts that a reference is refused with these words.
fn refused(file: &File, args: &[&str], words: &[&str]) {
    let path = file.write();
    let mut all = vec!["--reference", path.to_str().unwrap(), "--device", "cpu"];
    all.extend(args);
    let mut assert = eval(&all).assert().failure();
    for word in words {
        assert = assert.stderr(contains(*word));
    }
}

#[test]
fn references_of_no_use_are_refused() {
    let file = || File::of_golden(4);
    refused(
        &file().set("logits", Dtype::F16, &[2, 50], vec![0; 200]),
        &[],
        &["logits: expected [positions, 6144]", "found [2, 50]", "another model's"],
    );
    refused(
        &file().set("tokens", Dtype::I32, &[2], [1i32, 2].iter().flat_map(|id| id.to_le_bytes()).collect()),
        &[],
        &["top1: expected [2]"],
    );
    let far = [248_000i32; 20].iter().flat_map(|id| id.to_le_bytes()).collect();
    refused(&file().set("tokens", Dtype::I32, &[20], far), &[], &["tokens[0]: expected an id below 6144", "found 248000"]);
    refused(&file().set("logprobs", Dtype::F16, &[20], vec![0; 40]), &[], &["logprobs: expected [F32], found F16"]);
    refused(&file().set("logits", Dtype::I32, &[1, 6144], vec![0; 4 * 6144]), &[], &["logits: expected F32, F16 or BF16, found I32"]);
    refused(&File { window: "7x".into(), ..file() }, &[], &["metadata window", "\"7x\""]);
    refused(&File { window: "8".into(), ..file() }, &["--window", "9"], &["--window 9: expected 8"]);
    let nan = f16::NAN.to_le_bytes().repeat(6144);
    refused(&file().set("logits", Dtype::F16, &[1, 6144], nan), &[], &["logit of token 0 after position 0 is NaN"]);
    let mut other = file();
    other.tensors.remove(0);
    refused(&other, &[], &["expected a tensor named tokens"]);
}

#[test]
fn another_text_and_a_longer_one_are_refused() {
    let mut tokens = ids(&golden()["sequences"][0]["tokens"]);
    let given = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    tokens.push(5);
    fs::write(&given, format!("{tokens:?}")).unwrap();
    let path = given.to_str().unwrap();
    refused(&File::of_golden(4), &["--tokens", path], &["expected 21 positions, found 20", "--limit"]);
    tokens[3] += 1;
    fs::write(&given, format!("{tokens:?}")).unwrap();
    refused(&File::of_golden(4), &["--tokens", path], &["another text", "at position 3"]);
}

#[test]
fn damaged_files_and_missing_texts_are_refused() {
    let path = File::of_golden(4).write();
    let whole = fs::read(&path).unwrap();
    for (length, word) in
        [(3, "less than eight bytes"), (60, "truncated: the header"), (whole.len() - 100, "truncated: the tensors end at byte")]
    {
        fs::write(&path, &whole[..length]).unwrap();
        eval(&["--reference", path.to_str().unwrap(), "--device", "cpu"]).assert().failure().stderr(contains(word));
    }
    eval(&["--reference", "/no/such/file"]).assert().failure().stderr(contains("/no/such/file"));
    eval(&[]).assert().failure().stderr(contains("--text").and(contains("--acceptance")));
    eval(&["--text", "-"]).write_stdin("").assert().failure().stderr(contains("expected at least two tokens, found 0"));
    eval(&["--tokens", "-"])
        .write_stdin("1 2 99999")
        .assert()
        .failure()
        .stderr(contains("token 2 of the text").and(contains("found 99999")));
    eval(&["--text", "-", "--window", "1"])
        .write_stdin("A text of some length.")
        .assert()
        .failure()
        .stderr(contains("--window: expected 2 to"));
}

/// Facts of the bundled model: what mlx-lm answered.
fn facts() -> Value {
    let golden = golden();
    let answer = |index: usize, key: &str, text: &str| {
        let sequence = &golden["sequences"][index];
        let greedy = &sequence["mlx"]["tokens"];
        let logprob = log_softmax(logits(index).last().unwrap(), greedy[0].as_u64().unwrap() as u32);
        json!({ "name": key, key: text, "prompt": sequence["tokens"], "greedy": ids(greedy)[..20], "logprob": logprob })
    };
    let raw = golden["sequences"][0]["text"].as_str().unwrap();
    json!({
        "model": "lily-nano", "made_by": "mlx-lm in f32", "shape": [8, 256, 16, 4, 6144],
        "answers": [answer(0, "raw", raw), answer(1, "user", "What is 37 + 48?")],
    })
}

fn acceptance(facts: &Value) -> Assert {
    let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    fs::write(&file, facts.to_string()).unwrap();
    eval(&["--device", "cpu", "--acceptance", file.to_str().unwrap()]).assert()
}

#[test]
fn facts_that_hold_pass() {
    let passes =
        ["tokens of the prompt: 20 tokens as expected", "raw, greedy tokens: 20 of 20 equal", "user, greedy tokens: 20 of 20 equal"];
    let mut assert = acceptance(&facts()).success().stdout(contains("FAIL").not());
    for pass in passes {
        assert = assert.stdout(contains(pass));
    }
    assert.stdout(contains("log-probability of the first token").count(2));
}

#[test]
fn facts_that_do_not_hold_fail_by_name() {
    let mut wrong = facts();
    wrong["answers"][0]["greedy"][2] = json!(17);
    wrong["answers"][1]["prompt"][1] = json!(3);
    wrong["answers"][1]["logprob"] = json!(-3.5);
    acceptance(&wrong)
        .failure()
        .stdout(contains("FAIL  raw, greedy tokens").and(contains("in place 2 token")).and(contains("in place of 17")))
        .stdout(contains("FAIL  user, tokens of the prompt"))
        .stdout(contains("FAIL  user, log-probability of the first token: expected -3.5"))
        .stderr(contains("3 of 7 checks failed"));
}

#[test]
fn another_model_is_recognised_before_anything_is_computed() {
    eval(&["--acceptance"])
        .assert()
        .failure()
        .stdout(contains("FAIL  shape: expected [40, 2048, 256, 8, 248320], found [8, 256, 16, 4, 6144]"))
        .stderr(contains("this is not Qwen3.6-35B-A3B, 4 bits"));
    let mut none = facts();
    none["answers"][0]["greedy"] = json!([]);
    acceptance(&none).failure().stderr(contains("expected raw or user"));
}
