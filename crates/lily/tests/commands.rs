//! The program as a user calls it: the bundled model answers, flags work, bad input gets a clear message.

use std::fs;
use std::process::Stdio;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn lily(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("lily").expect("the program is built");
    command.args(args).env_remove("RUST_LOG").env_remove("LILY_API_KEY");
    command
}

#[test]
fn run_answers_on_standard_output_and_thinks_on_standard_error() {
    lily(&["run", "--temperature", "0", "What is the capital of France?"])
        .assert()
        .success()
        .stdout(contains("Paris").and(contains("think").not()))
        .stderr(contains("tok/s"));
}

#[test]
fn run_takes_the_prompt_from_standard_input() {
    lily(&["run", "--temperature", "0", "--quiet", "--hide-thinking"])
        .write_stdin("What is the capital of Japan?\n")
        .assert()
        .success()
        .stdout("The capital of Japan is Tokyo.\n")
        .stderr("");
}

#[test]
fn run_adds_standard_input_to_the_prompt() {
    lily(&["run", "--temperature", "0", "--quiet", "What is the capital of"])
        .write_stdin("Italy?")
        .assert()
        .success()
        .stdout(contains("Rome"));
}

#[test]
fn the_same_seed_gives_the_same_story() {
    let story = |seed: &str| {
        let output =
            lily(&["run", "-q", "--no-think", "--seed", seed, "--temperature", "1", "-n", "40", "Tell me a story."]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let first = story("7");
    assert_eq!(first, story("7"));
    assert!((8..20).any(|seed| story(&seed.to_string()) != first), "twelve other seeds told the same story");
}

#[test]
fn a_stop_text_ends_the_answer_before_it() {
    lily(&["run", "-q", "--temperature", "0", "--stop", " is", "What is the capital of France?"])
        .assert()
        .success()
        .stdout("The capital of France\n");
}

#[test]
fn raw_continues_the_text_without_the_chat_format() {
    lily(&["run", "-q", "--raw", "--temperature", "0", "-n", "24", "Once upon a time there was"])
        .assert()
        .success()
        .stdout(predicate::str::is_empty().not().and(contains("<|im_").not()));
}

#[test]
fn chat_remembers_until_it_is_reset() {
    let system = "You are a helpful assistant. You answer each question in one short sentence.";
    lily(&["chat", "--temperature", "0", "--no-think", "--system", system])
        .write_stdin("What is the capital of France?\n/think on\nWhat is 21 + 34?\n/reset\n/help\n/nonsense\n/quit\nnever asked\n")
        .assert()
        .success()
        .stdout(contains("Paris").and(contains("55")))
        .stderr(contains("Thinking is on").and(contains("cached")).and(contains("is forgotten")).and(contains("no such command")));
}

#[test]
fn no_prompt_is_an_error_that_shows_how() {
    lily(&["run"]).write_stdin("").assert().failure().stderr(contains("no prompt: give one as in"));
}

#[test]
fn standard_input_must_be_text() {
    lily(&["run"]).write_stdin(vec![b'a', 0xff]).assert().failure().stderr(contains("expected UTF-8 text").and(contains("offset 1")));
}

#[test]
fn a_prompt_longer_than_the_context_names_both_numbers() {
    lily(&["run", "--context", "16", "What is the capital of France, and what is the capital of Spain?"])
        .assert()
        .failure()
        .stderr(contains("the context holds 16"));
}

#[test]
fn flags_out_of_range_say_what_is_allowed() {
    lily(&["run", "--top-p", "2", "hi"]).assert().failure().stderr(contains("--top-p 2: expected a number from 0 to 1"));
    lily(&["run", "--chunk", "0", "hi"]).assert().failure().stderr(contains("from 1 to 8192"));
    lily(&["run", "--context", "99999999", "hi"]).assert().failure().stderr(contains("the model was made for 32768"));
}

#[test]
fn a_missing_model_says_what_was_looked_for() {
    lily(&["run", "--model", "/nowhere/at/all", "hi"]).assert().failure().stderr(contains("no such directory"));
    lily(&["run", "--model", "some/repository-never-pulled", "hi"])
        .assert()
        .failure()
        .stderr(contains("lily pull some/repository-never-pulled"));
    let file = tempfile::NamedTempFile::new().unwrap();
    lily(&["run", "--model", file.path().to_str().unwrap(), "hi"]).assert().failure().stderr(contains("expected a checkpoint directory"));
}

#[test]
fn inspect_shows_needs_and_ceilings() {
    lily(&["inspect", "--bandwidth", "100"])
        .assert()
        .success()
        .stdout(contains("6 Gated DeltaNet, 2 attention").and(contains("at 100 GB/s")).and(contains("M5 Max")));
    lily(&["inspect", "--full-size"]).assert().success().stdout(contains("19.5").and(contains("262144")));
}

#[test]
fn synth_writes_a_checkpoint_that_runs_and_refuses_to_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("synthetic");
    let path = path.to_str().unwrap();
    lily(&["synth", path, "--shape", "nano", "--seed", "3"]).assert().success().stderr(contains("Written"));
    lily(&["run", "-q", "--model", path, "-n", "3", "hello"]).assert().success();
    lily(&["synth", path, "--shape", "nano"]).assert().failure().stderr(contains("expected an empty or absent directory"));
    lily(&["synth", path, "--shape", "/no/such/config.json"]).assert().failure().stderr(contains("expected full, nano, or a config.json"));

    let weights = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|file| file.extension().is_some_and(|end| end == "safetensors"));
    let weights = fs::File::options().write(true).open(weights.unwrap()).unwrap();
    weights.set_len(weights.metadata().unwrap().len() - 1000).unwrap();
    lily(&["run", "--model", path, "hello"])
        .assert()
        .failure()
        .stderr(contains("truncated").and(contains("promises")).and(contains(".safetensors")));
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixed");
    lily(&["synth", path.to_str().unwrap(), "--shape", "nano"]).assert().success();
    let tokenizer = path.join("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).unwrap();
    fs::write(&tokenizer, text.replace("<|im_start|>", "<|im_begin|>")).unwrap();
    lily(&["run", "--model", path.to_str().unwrap(), "hello"]).assert().failure().stderr(contains("<|im_start|>"));
}

#[test]
fn a_busy_port_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    lily(&["serve", "--port", &port]).assert().failure().stderr(contains("in use").and(contains("--port")));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for args in [&["inspect", "--full-size"][..], &["completions", "zsh"], &["run", "-q", "--temperature", "0", "Tell me a story."]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lily"));
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked") && !said.contains("lily:"), "{args:?}: {said}");
    }
}

#[test]
fn completions_are_for_this_program() {
    lily(&["completions", "bash"]).assert().success().stdout(contains("_lily"));
}
