//! Clients that misbehave: they are answered or cut off, and nobody else notices.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::device::{Gate, Script};
use crate::harness::{Setup, TestServer, answer};

const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
const HELLO: &str = r#"{"messages":[{"role":"user","content":"hello"}],"enable_thinking":false}"#;

async fn impatient() -> TestServer {
    let mut setup = Setup::default();
    setup.server.header_timeout = Duration::from_millis(200);
    setup.server.body_timeout = Duration::from_millis(200);
    setup.server.body_limit_bytes = 10_000;
    let server = TestServer::with(setup).await;
    server.says("hello", &["fine"]);
    server
}

/// Everything that the server sends until it closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await; // a reset after the answer is an end, too
    String::from_utf8_lossy(&received).into_owned()
}

#[tokio::test]
async fn slow_and_silent_clients() {
    let server = impatient().await;
    let cases = [
        ("no request at all", String::new(), ""),
        ("half a header", "POST /v1/chat/compl".to_owned(), ""),
        ("no body", format!("{HEAD}content-length: 50\r\n\r\n"), "HTTP/1.1 408"),
        ("half a body", format!("{HEAD}content-length: {}\r\n\r\n{}", HELLO.len(), &HELLO[..20]), "HTTP/1.1 408"),
        ("half a chunk", format!("{HEAD}transfer-encoding: chunked\r\n\r\n14\r\n{}\r\n", &HELLO[..20]), "HTTP/1.1 408"),
    ];
    for (name, sent, expected) in cases {
        let mut stream = server.client().connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with(expected) && answer.is_empty() == expected.is_empty(), "{name}: {answer}");
    }
    let fine = server.client().send(hyper::Method::POST, "/v1/chat/completions", Some("application/json"), HELLO.into()).await;
    assert_eq!(fine.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn bodies_without_a_length() {
    let server = impatient().await;
    let (one, two) = HELLO.split_at(30);
    let mut stream = server.client().connect().await;
    let chunks = format!("{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n", one.len(), two.len());
    stream.write_all(format!("{HEAD}connection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunks}").as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"content\":\"fine\""), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn oversized_bodies() {
    let server = impatient().await;
    let message = "\"the body is larger than 10000 bytes, this server's limit\"";
    // Announced: refused before it is sent.
    let mut stream = server.client().connect().await;
    stream.write_all(format!("{HEAD}content-length: 10001\r\n\r\n").as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains(message), "{answer}");
    // Not announced: refused once it is too much.
    let mut stream = server.client().connect().await;
    stream.write_all(format!("{HEAD}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 6000, " ".repeat(6000));
    stream.write_all(chunk.repeat(2).as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains(message), "{answer}");
    // One byte less is read.
    let padded = format!("{HELLO}{}", " ".repeat(10_000 - HELLO.len()));
    let fine = server.client().send(hyper::Method::POST, "/v1/chat/completions", Some("application/json"), padded.into()).await;
    assert_eq!(fine.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_http() {
    let server = impatient().await;
    for noise in ["\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", "GET\r\n\r\n", "POST / HTTP/9.9\r\n\r\n"] {
        let mut stream = server.client().connect().await;
        stream.write_all(noise.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{noise:?}: {answer}");
    }
    assert_eq!(server.client().get("/health").await.status, 200);
    server.stop().await;
}

/// The engine's count of cancelled requests, once it is no longer `before`.
async fn cancelled(server: &TestServer, before: u64) -> u64 {
    loop {
        let now = server.engine.stats().cancelled;
        if now > before {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn clients_that_leave_free_their_slot() {
    let server = TestServer::start().await;
    server.says("hello", &["fine"]);
    let endless = |key: &str, at: usize, gate: &Arc<Gate>| Script {
        key: key.to_owned(),
        answer: answer(&["again "]).into_iter().cycle().take(1500).collect(),
        waits_at: Some((at, gate.clone())),
        ..Script::default()
    };
    let mut seen = 0;
    for (stream, at) in [(true, 0), (true, 3), (false, 0), (false, 3)] {
        let gate = Arc::new(Gate::default());
        let key = format!("endless {stream} {at}");
        server.script(endless(&key, at, &gate));
        let body = json!({"messages": [{"role": "user", "content": key}], "enable_thinking": false, "stream": stream}).to_string();
        let mut connection = server.client().connect().await;
        connection.write_all(format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
        // Running, at its gate; then the client is gone.
        while server.engine.stats().submitted == seen {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        drop(connection);
        // Past the gate the fake device is soon done: the server must have seen the closed connection before.
        server.has_seen_leave(seen as usize + 1).await;
        gate.open();
        seen = cancelled(&server, seen).await;
        let stats = server.engine.stats();
        assert_eq!((stats.running(), stats.waiting, stats.slots_used), (0, 0, 0), "stream {stream}, at {at}");
    }
    assert!(server.engine.stats().generated_tokens < 1500, "nobody generated to the end");
    let metrics = server.client().get("/metrics").await.text;
    assert!(metrics.contains("lily_http_requests_total{route=\"/v1/chat/completions\",status=\"499\"} 4"), "{metrics}");
    server.stop().await;
}

#[tokio::test]
async fn a_storm_of_leaving_clients() {
    let server = TestServer::start().await;
    server.says("hello", &["one two three four five six"]);
    let storm: Vec<_> = (0..40)
        .map(|at: usize| {
            let client = server.client();
            tokio::spawn(async move {
                let request = json!({"messages": [{"role": "user", "content": "hello"}], "enable_thinking": false, "stream": true});
                let mut stream = client.stream("/v1/chat/completions", &request).await;
                for _ in 0..at % 7 {
                    stream.next().await;
                }
            })
        })
        .collect();
    for client in storm {
        client.await.unwrap();
    }
    let request = json!({"messages": [{"role": "user", "content": "hello"}], "enable_thinking": false, "temperature": 0});
    let reply = server.client().chat(&request).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "one two three four five six");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_never_reads_holds_no_slot() {
    let server = TestServer::start().await;
    let long = "word after word ".repeat(300);
    server.says("long", &[&long]);
    let body = json!({"messages": [{"role": "user", "content": "long"}], "enable_thinking": false, "stream": true}).to_string();
    let mut connection = server.client().connect().await;
    connection.write_all(format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    while server.engine.stats().finished_stop == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(server.engine.stats().slots_used, 0);
    drop(connection);
    server.stop().await;
}
