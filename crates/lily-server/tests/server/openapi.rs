//! The served description against the server: every status that it promises is brought about on every
//! operation, and no operation answers with one that it does not promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Method;
use hyper::body::Bytes;
use lily_engine::Options;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::Client;
use crate::device::{Gate, Script};
use crate::harness::{Setup, TestServer, answer};

/// A described operation with a body that it accepts.
struct Operation {
    /// As the description has it: `POST /v1/...`.
    name: String,
    method: Method,
    path: String,
    body: Option<Value>,
    generates: bool,
}

fn body(path: &str) -> Option<Value> {
    let hello = json!([{"role": "user", "content": "hello"}]);
    Some(match path {
        "/v1/chat/completions" => json!({"messages": hello, "enable_thinking": false}),
        "/v1/completions" => json!({"prompt": "hello"}),
        "/v1/responses" => json!({"input": "hello", "reasoning": {"effort": "none"}}),
        "/v1/messages" | "/v1/messages/count_tokens" => json!({"messages": hello, "max_tokens": 50}),
        "/v1/tokenize" => json!({"content": "hello"}),
        "/v1/detokenize" => json!({"tokens": [1]}),
        _ => return None,
    })
}

async fn document(client: &Client) -> Value {
    let reply = client.get("/openapi.json").await;
    assert_eq!((reply.status.as_u16(), &reply.headers["content-type"]), (200, &"application/json".parse().unwrap()));
    reply.json()
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let body = body(path);
            assert_eq!(body.is_some(), operation["requestBody"].is_object(), "{path}");
            let generates = operation["responses"]["429"].is_object();
            operations.push(Operation {
                name: format!("{method} {path}"),
                method,
                path: path.replace("{id}", "lily-test"),
                body,
                generates,
            });
        }
    }
    operations
}

/// Which statuses each operation answered with.
#[derive(Default)]
struct Seen(BTreeMap<String, BTreeSet<u16>>);

impl Seen {
    fn note(&mut self, operation: &Operation, status: u16, expected: u16) {
        assert_eq!(status, expected, "{}", operation.name);
        self.0.entry(operation.name.clone()).or_default().insert(status);
    }

    async fn send(&mut self, client: &Client, operation: &Operation, expected: u16) {
        let bytes = operation.body.as_ref().map_or_else(Bytes::new, |body| body.to_string().into());
        self.send_as(client, operation, Some("application/json"), bytes, expected).await;
    }

    async fn send_as(&mut self, client: &Client, operation: &Operation, content_type: Option<&str>, bytes: Bytes, expected: u16) {
        let reply = client.send(operation.method.clone(), &operation.path, content_type, bytes).await;
        self.note(operation, reply.status.as_u16(), expected);
    }
}

#[tokio::test]
async fn every_promised_status_can_be_had() {
    let mut seen = Seen::default();
    let mut setup = Setup::default();
    setup.server.body_limit_bytes = 5000;
    setup.server.body_timeout = Duration::from_millis(50);
    setup.engine = Options { context: 2048, queue_max: 0, ..Options::default() };
    let server = TestServer::with(setup).await;
    let client = server.client();
    let document = document(&client).await;
    let operations = operations(&document);
    for operation in &operations {
        seen.send(&client, operation, 200).await;
        seen.send(&client.clone().with_host("evil.example"), operation, 403).await;
        if operation.path.contains("/models/") {
            let unknown = client.get("/v1/models/unknown").await;
            seen.note(operation, unknown.status.as_u16(), 404);
        }
        if operation.body.is_some() {
            refused_bodies(&server, operation, &mut seen).await;
        }
    }
    with_keys(&operations, &mut seen).await;
    engine_troubles(server, &operations, &mut seen).await;

    for operation in &operations {
        let (method, path) = operation.name.split_once(' ').unwrap();
        let promised = document["paths"][path][method.to_lowercase()]["responses"].as_object().unwrap();
        let promised: BTreeSet<u16> = promised.keys().map(|status| status.parse().unwrap()).collect();
        assert_eq!(seen.0[&operation.name], promised, "{}", operation.name);
    }
}

async fn refused_bodies(server: &TestServer, operation: &Operation, seen: &mut Seen) {
    let client = server.client();
    seen.send_as(&client, operation, Some("application/json"), Bytes::from_static(b"{"), 400).await;
    seen.send_as(&client, operation, Some("text/plain"), Bytes::from_static(b"{}"), 415).await;
    seen.send_as(&client, operation, Some("application/json"), Bytes::from(vec![b' '; 5001]), 413).await;
    let mut stream = client.connect().await;
    let head =
        format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n", operation.path);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    seen.note(operation, std::str::from_utf8(&start[9..]).unwrap().parse().unwrap(), 408);
}

async fn with_keys(operations: &[Operation], seen: &mut Seen) {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["sesame".to_owned()];
    let server = TestServer::with(setup).await;
    let described = document(&server.client()).await;
    for operation in operations {
        let (method, path) = operation.name.split_once(' ').unwrap();
        let open = described["paths"][path][method.to_lowercase()]["security"] == json!([]);
        seen.send(&server.client(), operation, if open { 200 } else { 401 }).await;
        seen.send(&server.client().with_header("x-api-key", "sesame"), operation, 200).await;
    }
    server.stop().await;
}

/// A failing pass, full slots, and an engine that is gone.
async fn engine_troubles(server: TestServer, operations: &[Operation], seen: &mut Seen) {
    let client = server.client();
    let gate = Arc::new(Gate::default());
    let hello = || Script { key: "hello".to_owned(), answer: answer(&["one two"]), ..Script::default() };
    server.script(Script { fails_at: Some(0), ..hello() });
    for operation in operations.iter().filter(|operation| operation.generates) {
        seen.send(&client, operation, 500).await;
    }
    server.unscript();
    server.script(Script { key: "wait".to_owned(), answer: answer(&["one"]), waits_at: Some((0, gate.clone())), ..Script::default() });
    // More than the slots hold, and the device stands still: the first to be answered is refused.
    let waiting = (0..server.engine.stats().slots + 1).map(|_| {
        let (client, body) = (server.client(), json!({"messages": [{"role": "user", "content": "wait"}], "enable_thinking": false}));
        tokio::spawn(async move { client.chat(&body).await.status.as_u16() })
    });
    let mut waiting: FuturesUnordered<_> = waiting.collect();
    assert_eq!(waiting.next().await.unwrap().unwrap(), 429);
    for operation in operations.iter().filter(|operation| operation.generates) {
        seen.send(&client, operation, 429).await;
    }
    gate.open();
    while let Some(status) = waiting.next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let engine = server.engine.clone();
    tokio::task::spawn_blocking(move || engine.shutdown(false)).await.unwrap();
    for operation in operations.iter().filter(|operation| operation.generates) {
        seen.send(&client, operation, 503).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn other_methods_are_refused_and_named() {
    let server = TestServer::start().await;
    let document = document(&server.client()).await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "lily-test");
        let reply = server.client().send(Method::DELETE, &path, None, Bytes::new()).await;
        let allowed: BTreeSet<String> =
            reply.headers["allow"].to_str().unwrap().split(',').map(str::to_lowercase).filter(|method| method != "head").collect();
        assert_eq!((reply.status.as_u16(), allowed), (405, methods.as_object().unwrap().keys().cloned().collect()), "{path}");
    }
    server.stop().await;
}
