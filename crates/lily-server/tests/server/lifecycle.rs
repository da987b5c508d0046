//! Beginning, waiting and ending: ports, queues, silence, timeouts, failures, shutdown.

use std::sync::Arc;
use std::time::Duration;

use lily_engine::{Engine, EngineError, Options, Request, Sampling};
use lily_server::{ServerError, ServerOptions, bind};
use serde_json::{Value, json};

use crate::device::{Gate, Script};
use crate::harness::{Setup, TestServer, answer};

fn request(key: &str, stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": key}], "temperature": 0, "enable_thinking": false, "stream": stream})
}

/// A script whose token `at` waits for the gate.
fn held(key: &str, at: usize) -> (Script, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let script =
        Script { key: key.to_owned(), answer: answer(&["one two three"]), waits_at: Some((at, gate.clone())), ..Script::default() };
    (script, gate)
}

#[tokio::test]
async fn a_port_in_use() {
    let server = TestServer::start().await;
    let options = ServerOptions { port: server.address.port(), ..ServerOptions::default() };
    let error = bind(&options).await.unwrap_err();
    assert!(matches!(error, ServerError::PortInUse { .. }));
    assert_eq!(
        error.to_string(),
        format!("port {} on 127.0.0.1 is in use by another program: stop it, or choose another port with --port", options.port)
    );
    let nowhere = bind(&ServerOptions { host: "203.0.113.7".to_owned(), port: 0, ..ServerOptions::default() }).await.unwrap_err();
    assert!(nowhere.to_string().starts_with("cannot listen on 203.0.113.7:0: "), "{nowhere}");
    server.stop().await;
}

#[tokio::test]
async fn headers_and_signs_of_life_before_the_first_token() {
    let mut setup = Setup::default();
    setup.server.keep_alive = Duration::from_millis(20);
    let server = TestServer::with(setup).await;
    let (script, gate) = held("slow", 0);
    server.script(script);
    // The model works on the prompt and cannot end: what comes now came before the first token.
    let mut stream = server.client().stream("/v1/chat/completions", &request("slow", true)).await;
    let opening: Value = serde_json::from_str(&stream.next().await.unwrap()).unwrap();
    assert_eq!(opening["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    for _ in 0..3 {
        let alive: Value = serde_json::from_str(&stream.next().await.unwrap()).unwrap();
        assert_eq!(alive["choices"], json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": null}]));
    }
    let ask = json!({"messages": [{"role": "user", "content": "slow"}], "stream": true});
    let mut anthropic = server.client().stream("/v1/messages", &ask).await;
    let alive = [anthropic.next().await.unwrap(), anthropic.next().await.unwrap(), anthropic.next().await.unwrap()];
    assert!(alive[0].contains("message_start") && alive[1..] == ["{\"type\":\"ping\"}", "{\"type\":\"ping\"}"], "{alive:?}");
    let mut responses = server.client().stream("/v1/responses", &json!({"input": "slow", "stream": true})).await;
    for number in 0..4 {
        let event: Value = serde_json::from_str(&responses.next().await.unwrap()).unwrap();
        let name = if number == 0 { "response.created" } else { "response.in_progress" };
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let mut raw = server.client().stream("/v1/completions", &json!({"prompt": "hello", "stream": true})).await;
    let alive: Value = serde_json::from_str(&raw.next().await.unwrap()).unwrap();
    assert_eq!(alive["choices"], json!([{"text": "", "index": 0, "logprobs": null, "finish_reason": null}]));
    gate.open();
    assert!(stream.until(|event| event["choices"][0]["finish_reason"] == "stop").await);
    assert_eq!(stream.next().await.as_deref(), Some("[DONE]"));
    assert_eq!(stream.next().await, None);
    server.stop().await;
}

#[tokio::test]
async fn a_full_queue() {
    let setup = Setup { engine: Options { context: 2048, queue_max: 1, ..Options::default() }, ..Setup::default() };
    let server = TestServer::with(setup).await;
    let (script, gate) = held("slow", 0);
    server.script(script);
    let ask = || {
        let client = server.client();
        tokio::spawn(async move { client.chat(&request("slow", false)).await })
    };
    // More than slots and queue hold together; the device stands still meanwhile.
    let asked: Vec<_> = (0..12).map(|_| ask()).collect();
    let mut asked: futures_util::stream::FuturesUnordered<_> = asked.into_iter().collect();
    let refused = futures_util::StreamExt::next(&mut asked).await.unwrap().unwrap();
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    assert_eq!(refused.headers["retry-after"], "1");
    gate.open();
    let mut answered = 0;
    while let Some(reply) = futures_util::StreamExt::next(&mut asked).await {
        let reply = reply.unwrap();
        assert!([200, 429].contains(&reply.status.as_u16()), "{}", reply.text);
        answered += usize::from(reply.status == 200);
    }
    assert!(answered >= 1);
    assert_eq!(server.client().chat(&request("slow", false)).await.status, 200, "the queue is free again");
    server.stop().await;
}

#[tokio::test]
async fn a_failing_device() {
    let server = TestServer::start().await;
    server.script(Script { key: "breaks".to_owned(), answer: answer(&["one two three"]), fails_at: Some(2), ..Script::default() });
    server.says("works", &["fine"]);
    let whole = server.client().chat(&request("breaks", false)).await;
    assert_eq!(whole.error(), "500 device: the scripted failure");
    assert_eq!(whole.json()["error"]["type"], "server_error");
    let events = server.client().chat(&request("breaks", true)).await.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!((&error["message"], &error["code"]), (&json!("device: the scripted failure"), &json!("engine_error")));
    let message = |key: &str| json!({"messages": [{"role": "user", "content": key}], "max_tokens": 9, "stream": true});
    let anthropic = server.client().post("/v1/messages", &message("breaks")).await.text;
    let end =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"device: the scripted failure\"}}\n\n";
    assert!(anthropic.ends_with(end), "{anthropic}");
    let ask = json!({"input": "breaks", "reasoning": {"effort": "none"}, "stream": true});
    let responses = server.client().post("/v1/responses", &ask).await.text;
    let (name, data) = responses.trim_end().rsplit_once("event: ").unwrap().1.split_once("\ndata: ").unwrap();
    let failed: Value = serde_json::from_str(data).unwrap();
    assert_eq!((name, &failed["response"]["status"]), ("response.failed", &json!("failed")));
    assert_eq!(failed["response"]["error"]["message"], "device: the scripted failure");
    let fine = server.client().chat(&request("works", false)).await;
    assert_eq!(fine.json()["choices"][0]["message"]["content"], "fine", "others are not affected");
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_takes_too_long() {
    let mut setup = Setup::default();
    setup.server.request_timeout = Some(Duration::from_millis(100));
    let server = TestServer::with(setup).await;
    let (script, gate) = held("slow", 1);
    server.script(script);
    let whole = server.client().chat(&request("slow", false)).await;
    assert_eq!(whole.error(), "408 the answer took longer than 0.1 s, this server's limit");
    let events = server.client().chat(&request("slow", true)).await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "request_timeout");
    gate.open();
    server.stop().await;
}

#[tokio::test]
async fn shutdown_lets_running_answers_finish() {
    let mut server = TestServer::start().await;
    let (script, gate) = held("slow", 1);
    server.script(script);
    let mut stream = server.client().stream("/v1/chat/completions", &request("slow", true)).await;
    assert!(stream.until(|event| event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty())).await);
    server.begin_stop();
    // The port closes at once; the answer goes on.
    while tokio::net::TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    gate.open();
    assert!(stream.until(|event| event["choices"][0]["finish_reason"] == "stop").await);
    assert_eq!(stream.next().await.as_deref(), Some("[DONE]"));
    server.stop().await;
}

/// Whether the engine has been told to stop.
fn refuses_everybody(engine: &Engine) -> bool {
    let request = Request {
        prompt: vec![1],
        sampling: Sampling::default(),
        max_tokens: Some(1),
        stop_tokens: Arc::new([]),
        logprobs: None,
        constraint: None,
        keep_at: Vec::new(),
    };
    matches!(engine.submit(request), Err(EngineError::ShuttingDown))
}

#[tokio::test]
async fn shutdown_cuts_off_what_does_not_end() {
    let mut setup = Setup::default();
    setup.server.drain_timeout = Duration::from_millis(50);
    let mut server = TestServer::with(setup).await;
    let (script, gate) = held("slow", 1);
    server.script(script);
    let mut stream = server.client().stream("/v1/chat/completions", &request("slow", true)).await;
    assert!(stream.until(|event| event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty())).await);
    server.begin_stop();
    // The engine's thread stands at the gate: the cut can only reach the stream once it passes.
    while !refuses_everybody(&server.engine) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    gate.open();
    assert!(stream.until(|event| event["error"]["code"] == "shutting_down").await);
    assert_eq!(stream.next().await.as_deref(), Some("[DONE]"));
    server.stop().await;
}
