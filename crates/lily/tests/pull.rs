//! `lily pull` against a server on this machine that speaks the Hub's protocol: listing, files with ranges,
//! a connection that breaks, and a second call that resumes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tiny_http::{Header, Request, Response, Server, StatusCode};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A Hub with one repository, `lab/model`.
struct Hub {
    server: Arc<Server>,
    shared: Arc<Shared>,
}

struct Shared {
    files: HashMap<String, Vec<u8>>,
    /// While set, the weights break off half way.
    broken: AtomicBool,
    /// First bytes that were asked for, per request of the weights' body.
    starts: Mutex<Vec<usize>>,
    requests: AtomicUsize,
}

impl Hub {
    fn new(dir: &Path) -> Self {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let files = files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), fs::read(&path).unwrap())).collect();
        let shared = Arc::new(Shared { files, broken: AtomicBool::new(false), starts: Mutex::default(), requests: AtomicUsize::new(0) });
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let (accepting, answering) = (server.clone(), shared.clone());
        std::thread::spawn(move || {
            while let Ok(request) = accepting.recv() {
                answering.answer(request);
            }
        });
        Hub { server, shared }
    }

    fn address(&self) -> String {
        format!("http://{}", self.server.server_addr().to_ip().unwrap())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

impl Shared {
    fn answer(&self, request: Request) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let url = request.url().split('?').next().unwrap().to_string();
        if url.starts_with("/api/models/lab/model") {
            let siblings: Vec<_> = self.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
            let listing = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
            return request.respond(Response::from_string(listing)).unwrap();
        }
        match url.strip_prefix("/lab/model/resolve/main/").and_then(|name| self.files.get_key_value(name)) {
            Some((name, bytes)) => self.send(request, name, bytes),
            None => request.respond(Response::from_string("Entry not found").with_status_code(404)).unwrap(),
        }
    }

    fn send(&self, request: Request, name: &str, bytes: &[u8]) {
        let range = request.headers().iter().find(|header| header.field.equiv("Range")).map(|header| header.value.to_string());
        let (first, last) = parse_range(range.as_deref().unwrap_or("bytes=0-"), bytes.len());
        let mut body = &bytes[first..=last];
        let of_weights = name.ends_with(".safetensors") && body.len() > 1;
        if of_weights {
            self.starts.lock().unwrap().push(first);
        }
        let length = body.len();
        if of_weights && self.broken.load(Ordering::Relaxed) {
            body = &body[..length / 2];
        }
        let headers = vec![
            header("x-repo-commit", COMMIT),
            header("etag", &format!("\"{}\"", etag(name))),
            header("content-range", &format!("bytes {first}-{last}/{}", bytes.len())),
        ];
        let response = Response::new(StatusCode(206), headers, body, Some(length), None);
        // A broken answer promises more than it sends: the write fails, as it should.
        let _ = request.respond(response);
    }
}

/// As the Hub's: hexadecimal digits.
fn etag(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_range(range: &str, length: usize) -> (usize, usize) {
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap_or(length - 1))
}

fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).unwrap()
}

fn lily(hub: &Hub, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("lily").expect("the program is built");
    command.args(args).env("HF_ENDPOINT", hub.address()).env("HF_HOME", home).env_remove("RUST_LOG");
    command
}

fn synthetic(dir: &Path) {
    Command::cargo_bin("lily").unwrap().args(["synth", dir.to_str().unwrap(), "--shape", "nano"]).assert().success();
}

#[test]
fn pulls_runs_and_does_not_pull_twice() {
    let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synthetic(source.path());
    fs::write(source.path().join("README.md"), "not wanted").unwrap();
    let hub = Hub::new(source.path());
    lily(&hub, home.path(), &["pull", "lab/model"])
        .assert()
        .success()
        .stdout(contains(COMMIT))
        .stderr(contains("Ready: lily chat --model lab/model"));
    lily(&hub, home.path(), &["run", "-q", "-n", "2", "--model", "lab/model", "hello"]).assert().success();

    let bodies = hub.shared.starts.lock().unwrap().len();
    lily(&hub, home.path(), &["pull", "lab/model"]).assert().success().stderr(contains("already here"));
    assert_eq!(hub.shared.starts.lock().unwrap().len(), bodies, "the weights were fetched again");
}

#[test]
fn resumes_where_a_broken_download_stopped() {
    let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synthetic(source.path());
    let hub = Hub::new(source.path());
    let size = hub.shared.files["model.safetensors"].len();

    // What an earlier call left behind when its connection broke.
    let blobs = home.path().join("hub/models--lab--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.part", etag("model.safetensors")));
    fs::write(&part, &hub.shared.files["model.safetensors"][..size / 3]).unwrap();

    lily(&hub, home.path(), &["pull", "lab/model"]).assert().success();
    assert_eq!(*hub.shared.starts.lock().unwrap(), [size / 3], "expected one request that starts where the part ends");
    lily(&hub, home.path(), &["inspect", "--model", "lab/model"]).assert().success().stdout(contains("Gated DeltaNet"));
}

#[test]
fn a_download_that_breaks_each_time_is_continued_not_repeated() {
    let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synthetic(source.path());
    let hub = Hub::new(source.path());
    hub.shared.broken.store(true, Ordering::Relaxed);
    // Each try brings half of what is missing; the call gives up in the end and says how to go on.
    lily(&hub, home.path(), &["pull", "lab/model"]).assert().failure().stderr(contains("run the same command again to resume it"));
    let starts = std::mem::take(&mut *hub.shared.starts.lock().unwrap());
    assert!(starts.len() > 2 && starts.is_sorted_by(|a, b| a < b), "expected every try to start further on: {starts:?}");

    hub.shared.broken.store(false, Ordering::Relaxed);
    lily(&hub, home.path(), &["pull", "lab/model"]).assert().success();
    assert!(hub.shared.starts.lock().unwrap()[0] > starts[starts.len() - 1]);
}

#[test]
fn a_repository_that_is_not_there_says_so() {
    let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(source.path().join("notes.txt"), "no checkpoint").unwrap();
    let hub = Hub::new(source.path());
    lily(&hub, home.path(), &["pull", "lab/other"]).assert().failure().stderr(contains("cannot list lab/other"));
    lily(&hub, home.path(), &["pull", "lab/model"]).assert().failure().stderr(contains("expected a checkpoint with a config.json"));
    lily(&hub, home.path(), &["pull", "model"]).assert().failure().stderr(contains("expected a repository as org/name"));
}

#[test]
fn a_repository_of_another_architecture_is_refused_after_the_download() {
    let (source, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    synthetic(source.path());
    let config = source.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("qwen3_5_moe", "llama")).unwrap();
    let hub = Hub::new(source.path());
    lily(&hub, home.path(), &["pull", "lab/model"])
        .assert()
        .failure()
        .stderr(contains("is not a model that Lily runs").and(contains("llama")));
}
