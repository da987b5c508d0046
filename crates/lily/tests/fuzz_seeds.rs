//! Every kept input of every fuzz target through the code that the fuzzer runs: what was found once stays found,
//! without a fuzzer.

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;

/// At least so many inputs are kept for each target.
const SEEDS_MIN: usize = 4;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder).expect("the target has seeds").map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= SEEDS_MIN, "{target}: {} seeds", files.len());
    for file in files {
        println!("{}", file.display()); // shown where one fails
        run(&std::fs::read(&file).unwrap());
    }
}

#[test]
fn cache_files() {
    replay("cache_files", targets::cache_files::run);
}

#[test]
fn output_parser() {
    replay("output_parser", targets::output_parser::run);
}

#[test]
fn request_json() {
    replay("request_json", targets::request_json::run);
}

#[test]
fn safetensors_header() {
    replay("safetensors_header", targets::safetensors_header::run);
}

#[test]
fn tool_arguments() {
    replay("tool_arguments", targets::tool_arguments::run);
}
