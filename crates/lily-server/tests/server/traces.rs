//! `--trace`: what the file of an answer holds, and what it must not.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Setup, TestServer};

/// The traces of a directory, in order.
fn traces(directory: &Path) -> Vec<Value> {
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn an_answer_leaves_its_trace() {
    let directory = tempfile::tempdir().unwrap();
    let mut setup = Setup::default();
    setup.server.trace_dir = Some(directory.path().join("made/here"));
    setup.server.api_keys = vec!["sesame".to_owned()];
    let server = TestServer::with(setup).await;
    server.says("opens", &["It is ", "sesame", ", or sk-0123456789abcdefgh."]);
    let client = server.client().with_header("authorization", "Bearer sesame");
    let body = json!({
        "messages": [{"role": "user", "content": "What opens? My key is ghp_abcdefghijklmnop, not sesame."}],
        "temperature": 0, "seed": 7, "max_tokens": 99, "stop": ["zzz"], "enable_thinking": false,
    });
    assert_eq!(client.chat(&body).await.status, 200);
    let streamed = client.chat(&json!({"messages": body["messages"], "stream": true, "enable_thinking": false})).await;
    assert_eq!(streamed.status, 200);
    server.stop().await;

    let directory = directory.path().join("made/here");
    let traces = traces(&directory);
    assert_eq!(traces.len(), 2);
    let trace = &traces[0];
    let prompt = trace["prompt_text"].as_str().unwrap();
    assert!(prompt.contains("<|im_start|>user\nWhat opens? My key is [redacted], not [redacted]."), "{prompt}");
    assert_eq!(trace["output_text"], "It is [redacted], or [redacted]<|im_end|>");
    assert_eq!((&trace["route"], &trace["finish"]), (&json!("/v1/chat/completions"), &json!("stop")));
    assert_eq!((&trace["cache"]["cached_tokens"], &trace["cache"]["reason"]), (&json!(0), &json!("nothing is cached")));
    assert_eq!((&trace["sampling"]["seed"], &trace["max_tokens"], &trace["stop"]), (&json!(7), &json!(99), &json!(["zzz"])));
    let count = |name: &str| trace[name].as_array().unwrap().len();
    assert_eq!(count("output_tokens"), count("token_ms"));
    assert!(trace["output_tokens"].as_array().unwrap().iter().any(Value::is_null), "the ids would spell the secret");
    for file in std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("sesame") && !text.contains("abcdefgh"), "{text}");
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions()) & 0o777, 0o600);
    }
    // What is left of the ids holds no secret, and the rest of the prompt.
    let ids: Vec<u32> = trace["prompt_tokens"].as_array().unwrap().iter().filter_map(|id| Some(id.as_u64()? as u32)).collect();
    let shown = crate::harness::text().decode(&ids).unwrap();
    assert!(shown.contains("What opens?") && !shown.contains("sesame") && !shown.contains("ghp_abc"), "{shown}");
}

#[tokio::test]
async fn nothing_is_written_unasked_and_a_wrong_directory_shows_at_the_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = lily_server::ServerOptions { port: 0, trace_dir: Some(file.path().join("below")), ..Default::default() };
    let error = TestServer::refused(options).await.to_string();
    assert!(error.starts_with("cannot make the directory for traces"), "{error}");
}

#[tokio::test]
async fn who_leaves_is_traced_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut setup = Setup::default();
    setup.server.trace_dir = Some(directory.path().to_owned());
    let server = TestServer::with(setup).await;
    let gate = std::sync::Arc::new(crate::device::Gate::default());
    server.script(crate::device::Script {
        key: "slow".to_owned(),
        answer: crate::harness::answer(&["one two three"]),
        waits_at: Some((1, gate.clone())),
        ..Default::default()
    });
    let body = json!({"messages": [{"role": "user", "content": "slow"}], "enable_thinking": false, "stream": true});
    let mut stream = server.client().stream("/v1/chat/completions", &body).await;
    assert!(stream.until(|event| event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty())).await);
    drop(stream);
    while traces(directory.path()).is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    gate.open();
    assert_eq!(traces(directory.path())[0]["finish"], "cancelled");
    server.stop().await;
}
