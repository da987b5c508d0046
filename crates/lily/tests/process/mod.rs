//! `lily serve` as a process, and HTTP to it: one connection per request, nothing hidden.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running server; killed when dropped, without a chance to tidy up.
pub struct Server {
    pub process: Child,
    pub address: String,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
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

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = exchange(&self.address, &post_request(&self.address, path, body));
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    pub fn get(&self, path: &str) -> String {
        exchange(&self.address, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address)).1
    }

    /// The sum of a metric over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics");
        let lines = metrics.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Asks it to stop and tells whether it ended well.
    pub fn terminate(mut self) -> bool {
        let told = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().unwrap();
        told.success() && self.process.wait().unwrap().success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The bytes of a request whose connection closes after the answer.
pub fn post_request(address: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nConnection: close\r\n");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn exchange(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer: {answer:?}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// Complete states in a cache directory: each gets its name once all of it is written.
pub fn states_on_disk(dir: &Path) -> usize {
    let models = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = models.filter_map(|model| std::fs::read_dir(model).ok()).flatten().flatten().map(|entry| entry.path());
    files.filter(|file| file.extension().is_some_and(|end| end == "state")).count()
}

/// Waits for something that another process is about to do; a minute in vain is a fault that would otherwise hang the test.
#[track_caller]
pub fn until(mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "waited a minute for what did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}
