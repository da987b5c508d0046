//! `lily parse` as a user calls it: text, token ids and traces, whole and as a stream, at any cut.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

const OUTPUT: &str = "I look it up.\n</think>\n\nOne moment.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n\
                      <parameter=zip_code>\n03106\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";

fn lily(args: &[&str], input: &str) -> assert_cmd::assert::Assert {
    let mut command = Command::cargo_bin("lily").expect("the program is built");
    command.arg("parse").args(args).env_remove("RUST_LOG").write_stdin(input).assert()
}

fn tools_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let properties = json!({"city": {"type": "string"}, "zip_code": {"type": "string"}, "days": {"type": "integer"}});
    let function = json!({"name": "weather", "parameters": {"type": "object", "properties": properties}});
    std::fs::write(file.path(), json!([{"type": "function", "function": function}]).to_string()).unwrap();
    file
}

fn json_lines(assert: &assert_cmd::assert::Assert) -> Vec<Value> {
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_whole_message() {
    let tools = tools_file();
    let assert = lily(&["--tools", tools.path().to_str().unwrap()], OUTPUT).success();
    let message: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("I look it up."), &json!("One moment.")));
    let call = &message["tool_calls"][0]["function"];
    let arguments = json!("{\"city\": \"Paris\", \"zip_code\": \"03106\", \"days\": 3}");
    assert_eq!((&call["name"], &call["arguments"]), (&json!("weather"), &arguments));
}

#[test]
fn the_stream_folds_to_the_message_at_every_cut() {
    let tools = tools_file();
    let tools = tools.path().to_str().unwrap();
    for chunk in [&[][..], &["--chunk", "1"], &["--chunk", "3"], &["--chunk", "16"]] {
        let assert = lily(&[&["--tools", tools, "--stream"], chunk].concat(), OUTPUT).success();
        let deltas = json_lines(&assert);
        let joined = |name: &str| deltas.iter().filter_map(|delta| delta[name].as_str()).collect::<String>();
        assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), ("I look it up.", "One moment."));
        let calls: Vec<&Value> = deltas.iter().map(|delta| &delta["tool_calls"][0]).filter(|call| !call.is_null()).collect();
        assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": ""}));
        let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({"city": "Paris", "zip_code": "03106", "days": 3}));
        assert!(chunk != ["--chunk", "1"] || deltas.len() > 20, "byte by byte: {}", deltas.len());
    }
}

#[test]
fn without_tools_the_markup_is_content() {
    lily(&[], OUTPUT).success().stdout(contains("<function=weather>"));
    lily(&["--no-think", "--stop", "moment"], "One moment.").success().stdout(contains("\"One \"").and(contains("\"stop\": \"moment\"")));
    lily(&["--raw"], "a</think>b").success().stdout(contains("a</think>b"));
}

#[test]
fn token_ids_and_traces() {
    let file = tempfile::NamedTempFile::new().unwrap();
    lily(&["--ids", "--no-think"], "[72, 101,\n 33]").success().stdout(contains("content"));
    let trace = json!({"output_tokens": [72, null, 101], "tools": [], "in_thinking": false, "stop": []});
    std::fs::write(file.path(), trace.to_string()).unwrap();
    let from_trace = lily(&["--trace", file.path().to_str().unwrap()], "").success();
    let from_ids = lily(&["--ids", "--no-think"], "72 101").success();
    assert_eq!(from_trace.get_output().stdout, from_ids.get_output().stdout);
}

#[test]
fn bad_input_is_named() {
    lily(&["--ids"], "12 x").failure().stderr(contains("expected a token id, found \"x\""));
    lily(&["--ids"], "99999").failure().stderr(contains("token 99999 does not exist: the vocabulary ends at 6144"));
    lily(&["/no/such/file"], "").failure().stderr(contains("cannot read /no/such/file"));
    lily(&["--trace"], "{}").failure().stderr(contains("no output_tokens"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[{\"type\": \"function\", \"function\": {}}]").unwrap();
    lily(&["--tools", file.path().to_str().unwrap()], "x").failure().stderr(contains("tools[0].function.name: this field is required"));
}
