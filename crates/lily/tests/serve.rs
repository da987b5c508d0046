//! `lily serve` as a process: it says where it listens, answers, and its saved states survive a kill.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// A running server; killed when dropped, without a chance to tidy up.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_lily"))
            .args(["serve", "--port", "0"])
            .args(args)
            .env_remove("RUST_LOG")
            .env_remove("LILY_API_KEY")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let line = log.find_map(|line| line.ok().filter(|line| line.contains("http://"))).expect("a line that says where it listens");
        std::thread::spawn(move || log.for_each(drop));
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_string();
        Server { process, address }
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn conversation() -> Value {
    let system = "You are a helpful assistant. You answer each question in one short sentence. ".repeat(40);
    json!({
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "enable_thinking": false,
    })
}

/// Complete states in the cache directory: each gets its name once all of it is written.
fn states_on_disk(dir: &Path) -> usize {
    let models = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = models.filter_map(|model| std::fs::read_dir(model).ok()).flatten().flatten().map(|entry| entry.path());
    files.filter(|file| file.extension().is_some_and(|end| end == "state")).count()
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
    while states_on_disk(dir.path()) == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
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
    let mut server = Server::start(&[]);
    let told = Command::new("kill").args(["-TERM", &server.process.id().to_string()]).status().unwrap();
    assert!(told.success());
    assert!(server.process.wait().unwrap().success());
}
