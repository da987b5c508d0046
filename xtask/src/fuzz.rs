//! The fuzz targets of `fuzz/`, each for a while, from its kept inputs. Needs cargo-fuzz and a nightly
//! compiler: `cargo install cargo-fuzz`, `rustup toolchain install nightly`.

use anyhow::bail;

use crate::shell::{root, run};

const TARGETS: [&str; 5] = ["request_json", "output_parser", "tool_arguments", "safetensors_header", "cache_files"];
const SECONDS: u32 = 600;

/// Inputs longer than this are found only by chance and make every run slow.
const LENGTH_MAX: &str = "-max_len=16384";
/// Kept inputs are in the repository, and every test run replays them: only short ones.
const KEPT_LENGTH_MAX: &str = "-max_len=2048";

/// `arguments`: targets (all of them where none is named), and either the seconds for each or `keep`.
pub fn fuzz(arguments: &[String]) -> anyhow::Result<()> {
    let (mut targets, mut seconds, mut keeps) = (Vec::new(), SECONDS, false);
    for argument in arguments {
        match (TARGETS.iter().find(|target| *target == argument), argument.parse()) {
            (Some(target), _) => targets.push(*target),
            (None, Ok(number)) => seconds = number,
            (None, Err(_)) if argument == "keep" => keeps = true,
            (None, Err(_)) => bail!("expected seconds, keep or one of {TARGETS:?}, found {argument:?}"),
        }
    }
    if targets.is_empty() {
        targets = TARGETS.to_vec();
    }
    for target in targets {
        if keeps { keep(target)? } else { search(target, seconds)? }
    }
    Ok(())
}

/// Looks for new inputs: they go to `fuzz/corpus/`, findings to `fuzz/artifacts/`.
fn search(target: &str, seconds: u32) -> anyhow::Result<()> {
    let (corpus, seeds) = folders(target)?;
    let time = format!("-max_total_time={seconds}");
    cargo_fuzz(target, &[&corpus, &seeds, "--", &time, LENGTH_MAX])
}

/// Adds to the kept inputs those of the corpus that reach code which no kept one reaches, the shortest of each.
fn keep(target: &str) -> anyhow::Result<()> {
    let (corpus, seeds) = folders(target)?;
    cargo_fuzz(target, &[&seeds, &corpus, "--", "-merge=1", "-use_counters=0", KEPT_LENGTH_MAX])
}

/// What was found, and what is kept.
fn folders(target: &str) -> anyhow::Result<(String, String)> {
    let corpus = format!("fuzz/corpus/{target}");
    std::fs::create_dir_all(root().join(&corpus))?;
    Ok((corpus, format!("fuzz/seeds/{target}")))
}

fn cargo_fuzz(target: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let program = ["+nightly", "fuzz", "run", "--target-dir", "target/fuzz", target];
    run("cargo", &[&program[..], arguments, &["-timeout=20", "-rss_limit_mb=4096"]].concat(), &[])
}
