//! Who gets a slot and who waits: clients that leave the queue, and prompts that do not fit into memory together.
//!
//! The device stands still at gates, so that what waits is known exactly. While it does, the engine has not yet taken in
//! what arrives: it counts as waiting all the same.

use std::sync::Arc;
use std::time::Duration;

use lily_engine::{Options, Stats};
use lily_model::Capacity;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::client::Reply;
use crate::device::{Gate, Script};
use crate::harness::{Setup, TestServer, answer};

fn request(text: &str, stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "enable_thinking": false, "stream": stream})
}

/// The model answers `key` with so many words, and stands still before the one `at`.
fn held(server: &TestServer, key: &str, count: usize, at: usize) -> Arc<Gate> {
    let gate = Arc::new(Gate::default());
    let waits_at = Some((at, gate.clone()));
    server.script(Script { key: key.to_owned(), answer: words(count), waits_at, ..Script::default() });
    gate
}

/// One token a word.
fn words(count: usize) -> Vec<Vec<u32>> {
    let word = answer(&[" again"]);
    assert_eq!(word.len(), 1);
    word.into_iter().cycle().take(count).collect()
}

async fn until(server: &TestServer, what: impl Fn(&Stats) -> bool) {
    while !what(&server.engine.stats()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn ask(server: &TestServer, text: &str, stream: bool) -> JoinHandle<Reply> {
    let (client, body) = (server.client(), request(text, stream));
    tokio::spawn(async move { client.chat(&body).await })
}

/// The words of an answer, streamed or not.
fn content(reply: &Reply, stream: bool) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text);
    if !stream {
        return reply.json()["choices"][0]["message"]["content"].as_str().expect("content").to_owned();
    }
    let events = reply.events();
    let said = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    said.collect()
}

async fn metric(server: &TestServer, name: &str) -> f64 {
    let metrics = server.client().get("/metrics").await.text;
    let lines = metrics.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn clients_that_leave_the_queue() {
    for stream in [false, true] {
        let device = Capacity { slots: 2, pages: 64, rows: 256, logit_rows: 8 };
        let server = TestServer::with(Setup { device, ..Setup::default() }).await;
        server.says("behind", &["served"]);
        // Of two slots one decodes all the while; the other is taken as soon as the device goes on.
        let first = held(&server, "first", 200, 1);
        let second = held(&server, "second", 3, 1);
        let running = ask(&server, "first", stream);
        until(&server, |stats| stats.slots_used == 1 && stats.generated_tokens == 1).await;
        let next = ask(&server, "second", stream);
        until(&server, |stats| stats.waiting == 1).await;

        // One leaves before the engine has taken it in, one after that; both stand before one that stays.
        let early = ask(&server, "leaves early", stream);
        until(&server, |stats| stats.waiting == 2).await;
        let late = ask(&server, "leaves late", stream);
        until(&server, |stats| stats.waiting == 3).await;
        let behind = ask(&server, "behind", stream);
        until(&server, |stats| stats.waiting == 4).await;
        leave(early).await;
        server.has_seen_leave(1).await;
        first.open();
        until(&server, |stats| stats.slots_used == 2 && stats.generated_tokens > 1).await;
        assert_eq!((server.engine.stats().cancelled, server.engine.stats().waiting), (1, 2));
        leave(late).await;
        server.has_seen_leave(2).await;
        second.open();

        assert_eq!(content(&behind.await.unwrap(), stream), "served");
        assert_eq!(content(&next.await.unwrap(), stream), " again again again");
        assert_eq!(content(&running.await.unwrap(), stream), " again".repeat(200));
        assert_eq!(metric(&server, "lily_requests_cancelled_total").await, 2.0);
        assert_eq!(metric(&server, "lily_requests_submitted_total").await, 5.0);
        assert_eq!(metric(&server, "lily_cache_lookups_total").await, 3.0, "who left never had a slot");
        let held = ["lily_requests_waiting", "lily_slots_used", "lily_kv_pages_used", "lily_requests_failed_total"];
        for name in held {
            assert_eq!(metric(&server, name).await, 0.0, "{name}");
        }
        server.stop().await;
    }
}

/// Closes the client's connection.
async fn leave(asked: JoinHandle<Reply>) {
    asked.abort();
    assert!(asked.await.is_err_and(|error| error.is_cancelled()));
}

/// About 600 tokens, which no other text begins like.
fn long(name: &str) -> String {
    format!("{name} {}", "and so on ".repeat(200))
}

#[tokio::test]
async fn prompts_that_do_not_fit_together_take_turns() {
    // Slots for four; pages for two prompts, and not for all of their answers.
    let device = Capacity { slots: 4, pages: 6, rows: 256, logit_rows: 8 };
    let engine = Options { cache_bytes: 0, ..Options::default() };
    let server = TestServer::with(Setup { device, engine, ..Setup::default() }).await;
    let names = ["alpha", "beta", "gamma", "delta", "epsilon"];
    let gates: Vec<_> = names.iter().map(|name| held(&server, name, 250, 1)).collect();
    let mut asked = Vec::new();
    for (at, name) in names.iter().enumerate() {
        asked.push(ask(&server, &long(name), at % 2 == 1));
        match at {
            0 => until(&server, |stats| stats.generated_tokens == 1).await,
            _ => until(&server, |stats| stats.waiting == at).await,
        }
    }
    // What can never fit is told so while all of this goes on.
    let (hopeless, most) = (long("never ").repeat(4), 6 * 256);
    let tokens = server.client().post("/tokenize", &json!({"content": hopeless})).await.json()["tokens"].as_array().unwrap().len();
    assert!(tokens > most);
    for stream in [false, true] {
        let refused = server.client().chat(&request(&hopeless, stream)).await;
        let error = refused.error();
        assert!(error.starts_with("400 the prompt has ") && error.ends_with(" tokens; the context holds 1536"), "{error}");
        let found: usize = error.split(' ').nth(4).unwrap().parse().unwrap();
        assert!(found > tokens && found < tokens + 40, "{error}: the text alone has {tokens}");
        assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    }

    gates[0].open();
    until(&server, |stats| stats.slots_used == 2 && stats.generated_tokens > 1).await;
    let stats = server.engine.stats();
    assert_eq!((stats.waiting, stats.pages_used), (3, 6), "two of four slots stay empty: no page is free");
    gates[1..].iter().for_each(|gate| gate.open());

    for (at, asked) in asked.into_iter().enumerate() {
        assert_eq!(content(&asked.await.unwrap(), at % 2 == 1), " again".repeat(250), "{}", names[at]);
    }
    let stats = server.engine.stats();
    assert!(stats.preempted > 0, "answers outgrew the pages: {stats:?}");
    assert_eq!((stats.finished_stop, stats.failed, stats.cancelled, stats.pages_used), (5, 0, 0, 0));
    // A short one with a limit beyond all memory is not refused for it.
    let mut short = request("alpha", false);
    short["max_tokens"] = json!(8192);
    assert_eq!(content(&server.client().chat(&short).await, false), " again".repeat(250));
    server.stop().await;
}
