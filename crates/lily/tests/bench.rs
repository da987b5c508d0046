//! `lily bench`: processes and digests, several sequences, and other engines' servers, well-behaved and not.

mod process;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use process::Server;
use serde_json::{Value, json};

fn bench(args: &[&str]) -> Assert {
    let mut command = Command::cargo_bin("lily").expect("the program is built");
    command.arg("bench").args(args).env_remove("RUST_LOG").assert()
}

/// The document that `--json` writes.
fn document(args: &[&str]) -> Value {
    let out = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let mut all = args.to_vec();
    all.extend(["--json", out.to_str().unwrap()]);
    bench(&all).success().stderr("");
    serde_json::from_slice(&fs::read(&out).unwrap()).unwrap()
}

fn digests(arm: &Value) -> Vec<&str> {
    arm["figures"].as_array().unwrap().iter().map(|figures| figures["digest"].as_str().unwrap()).collect()
}

const SHORT: [&str; 6] = ["--device", "cpu", "--lengths", "9,40", "--decode", "5"];

#[test]
fn fresh_processes_and_one_process_decode_the_same() {
    let fresh = document(&[&SHORT[..], &["--rounds", "3"]].concat());
    let quick = document(&[&SHORT[..], &["--rounds", "2", "--quick"]].concat());
    for (document, rounds) in [(&fresh, 3), (&quick, 2)] {
        let arm = &document["arms"][0];
        assert!(arm["device"].as_str().unwrap().starts_with("cpu"));
        for (figures, length) in arm["figures"].as_array().unwrap().iter().zip([9, 40]) {
            let samples = figures["samples"].as_array().unwrap();
            assert_eq!((samples.len(), &figures["length"]), (rounds, &json!(length)));
            assert!(figures["prefill_tok_s"].as_f64().unwrap() > 0.0 && figures["decode_tok_s"].as_f64().unwrap() > 0.0);
            assert!(samples.iter().all(|sample| sample["decoded"] == 5 && sample["prompt_tokens"] == length));
        }
    }
    assert_eq!(digests(&fresh["arms"][0]), digests(&quick["arms"][0]));
}

#[test]
fn sequences_of_one_step_say_what_they_say_alone() {
    let one = document(&["--device", "cpu", "--lengths", "30", "--decode", "6", "--rounds", "1"]);
    let rows = document(&["--device", "cpu", "--lengths", "30", "--decode", "6", "--rounds", "2", "--rows", "1,3"]);
    let arms = rows["arms"].as_array().unwrap();
    assert_eq!(arms.iter().map(|arm| arm["sequences"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(digests(&one["arms"][0]), digests(&arms[0]));
    assert_eq!(arms[1]["figures"][0]["samples"][1]["decoded"], 18);
    bench(&["--device", "sim", "--lengths", "30", "--decode", "3", "--rounds", "1", "--rows", "1,2", "--quick"])
        .success()
        .stdout(contains("decode after 30 tokens").and(contains("1.00x")).and(contains("MB a step")));
}

#[test]
fn every_switch_is_an_arm_on_the_simulator() {
    let found = document(&["--device", "sim", "--lengths", "12", "--decode", "2", "--rounds", "1", "--ablate"]);
    let arms = found["arms"].as_array().unwrap();
    assert!(arms.len() > 10);
    assert_eq!(arms[0]["arm"], "all techniques");
    assert!(arms.iter().all(|arm| arm["device"].as_str().unwrap().starts_with("sim") && digests(arm).len() == 1));
    bench(&["--device", "sim", "--lengths", "12", "--decode", "2", "--rounds", "1", "--plan", "--profile"])
        .success()
        .stdout(contains("dependency levels").and(contains("prompt of 12")).and(contains("decode step of 12")));
}

#[test]
fn what_cannot_be_measured_is_said() {
    bench(&["--device", "cpu", "--lengths", "9", "--ablate"]).failure().stderr(contains("choose --device cuda, metal or sim"));
    bench(&["--device", "cpu", "--lengths", "40000"]).failure().stderr(contains("below the model's context of 32768"));
    bench(&["--device", "cpu", "--rounds", "0"]).failure().stderr(contains("expected numbers above 0"));
    bench(&["--device", "cpu", "--rows", "1,2", "--ablate"]).failure().stderr(contains("cannot be used with"));
    bench(&["--against", "http://127.0.0.1:9"]).failure().stderr(contains("--against http://127.0.0.1:9"));
}

#[test]
fn our_own_server_is_measured_beside_the_engine() {
    let server = Server::start(&["--device", "cpu"]);
    let url = format!("http://{}/v1/", server.address);
    bench(&[&SHORT[..], &["--rounds", "2", "--against", &url]].concat())
        .success()
        .stdout(contains("against  lily-nano").and(contains("the same token ids but for the first two")))
        .stdout(contains("gives the same text, digest").and(contains("does not count").not()).and(contains("cache").not()));
}

/// What the other server is like.
#[derive(Clone, Copy, Default)]
struct Habits {
    refuses_tokens: bool,
    refuses_unknown: bool,
    counts: bool,
    cached: u64,
    pieces: usize,
    broken: Option<&'static str>,
}

/// A server of another engine: one connection after the other, an answer of `pieces` pieces.
struct Other {
    url: String,
    prompts: Arc<Mutex<Vec<Value>>>,
}

impl Other {
    fn start(habits: Habits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let prompts = Arc::new(Mutex::new(Vec::new()));
        let seen = prompts.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serve(stream, habits, &seen)));
        Other { url, prompts }
    }

    fn measured(&self, more: &[&str]) -> Assert {
        bench(&[&SHORT[..], &["--rounds", "1", "--against", &self.url], more].concat())
    }
}

fn serve(mut stream: TcpStream, habits: Habits, prompts: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut line) = (Vec::new(), String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        head.push(std::mem::take(&mut line).to_lowercase());
    }
    let length = head.iter().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut answer = |status: &str, kind: &str| write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n");
    if head[0].starts_with("get /v1/models") {
        answer("200 OK", "application/json").unwrap();
        return stream.write_all(br#"{"data": [{"id": "other"}]}"#).unwrap();
    }
    let request: Value = serde_json::from_slice(&body).unwrap();
    let refused = habits.refuses_tokens && request["prompt"].is_array() || habits.refuses_unknown && !request["ignore_eos"].is_null();
    if refused {
        answer("400 Bad Request", "application/json").unwrap();
        return stream.write_all(br#"{"error": {"message": "not like this"}}"#).unwrap();
    }
    answer("200 OK", "text/event-stream").unwrap();
    prompts.lock().unwrap().push(request["prompt"].clone());
    if let Some(broken) = habits.broken {
        return stream.write_all(broken.as_bytes()).unwrap();
    }
    let mut send = |event: Value| {
        std::thread::sleep(Duration::from_millis(3));
        stream.write_all(format!("data: {event}\n\n").as_bytes()).unwrap();
    };
    for _ in 0..habits.pieces {
        send(json!({"choices": [{"text": " so"}]}));
    }
    if habits.counts {
        let prompt = request["prompt"].as_array().map_or(77, Vec::len);
        let details = json!({"cached_tokens": habits.cached});
        send(json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": 6, "prompt_tokens_details": details}}));
    }
}

#[test]
fn a_server_that_counts_is_believed() {
    let other = Other::start(Habits { counts: true, pieces: 3, refuses_unknown: true, ..Habits::default() });
    let out = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    other.measured(&["--json", out.to_str().unwrap()]).success().stdout(contains("against  other").and(contains("ended early").not()));
    let document: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    let sample = &document["arms"][1]["figures"][1]["samples"][0];
    assert_eq!((&sample["prompt_tokens"], &sample["decoded"]), (&json!(40), &json!(5)), "six tokens in three pieces");
    let prompts = other.prompts.lock().unwrap();
    let firsts: Vec<&Value> = prompts[1..5].iter().map(|prompt| &prompt[0]).collect();
    assert!((1..4).all(|at| !firsts[..at].contains(&firsts[at])), "no prompt of a bench begins like another: {firsts:?}");
}

#[test]
fn a_server_of_text_only_gets_text_and_the_table_says_so() {
    let other = Other::start(Habits { refuses_tokens: true, pieces: 6, ..Habits::default() });
    other.measured(&["--against-model", "mine"]).success().stdout(
        contains("against  mine").and(contains("text, as it takes no token ids")).and(contains("a piece of the stream is taken for one")),
    );
    assert!(other.prompts.lock().unwrap().iter().all(Value::is_string));
}

#[test]
fn caches_and_short_answers_are_reported() {
    let other = Other::start(Habits { counts: true, cached: 8, pieces: 6, ..Habits::default() });
    other.measured(&[]).success().stdout(contains("took 8 of 40 prompt tokens from its cache"));
    let other = Other::start(Habits { pieces: 4, ..Habits::default() });
    other.measured(&[]).success().stdout(contains("answers ended early: 4 of 6 tokens after a prompt of 40"));
}

#[test]
fn servers_that_fail_are_quoted() {
    let said = |habits| Other::start(habits).measured(&[]).failure();
    let broken = |broken| Habits { broken: Some(broken), ..Habits::default() };
    said(broken("data: {\"error\": {\"message\": \"no room left\"}}\n\n")).stderr(contains("the server says: no room left"));
    said(broken("{\"choices\": [{\"text\": \"whole\"}]}")).stderr(contains("expected a stream of text, found none"));
    said(Habits { refuses_tokens: true, refuses_unknown: true, ..broken("") }).stderr(contains("400 Bad Request: not like this"));
    said(Habits { pieces: 1, ..Habits::default() }).stderr(contains("at once: no rate can be told"));
}
