//! `lily serve` as a process: it says where it listens, answers, and its saved states survive a kill.

mod process;

use process::{Server, states_on_disk, until};
use serde_json::{Value, json};

fn conversation() -> Value {
    let system = "You are a helpful assistant. You answer each question in one short sentence. ".repeat(40);
    json!({
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "enable_thinking": false,
    })
}

#[test]
fn saved_states_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--cache-dir", dir.path().to_str().unwrap()];
    let server = Server::start(&args);
    let (status, cold) = server.post("/v1/chat/completions", &conversation());
    assert_eq!((status, &cold["usage"]["prompt_tokens_details"]["cached_tokens"]), (200, &json!(0)), "{cold}");
    let (_, warm) = server.post("/v1/chat/completions", &conversation());
    assert!(warm["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 200, "{warm}");
    // The writer works beside the answers: a kill before it wrote anything would prove nothing.
    until(|| states_on_disk(dir.path()) > 0);
    drop(server);

    let server = Server::start(&args);
    let (_, restored) = server.post("/v1/chat/completions", &conversation());
    assert!(restored["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 200, "{restored}");
    assert_eq!(restored["choices"][0]["message"]["content"], cold["choices"][0]["message"]["content"]);
}

#[test]
fn an_api_key_is_asked_for() {
    let server = Server::start(&["--api-key", "sesame"]);
    let (status, answer) = server.post("/v1/chat/completions", &conversation());
    assert_eq!(status, 401);
    assert!(answer["error"]["message"].is_string(), "{answer}");
}

#[cfg(unix)]
#[test]
fn it_stops_cleanly_when_told_to() {
    assert!(Server::start(&[]).terminate());
}
