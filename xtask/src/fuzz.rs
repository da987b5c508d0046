//! The fuzz targets of `fuzz/`, each for a while, from its committed seeds. Needs cargo-fuzz and a nightly
//! compiler: `cargo install cargo-fuzz`, `rustup toolchain install nightly`.

use anyhow::bail;

use crate::shell::run;

const TARGETS: [&str; 5] = ["request_json", "output_parser", "tool_arguments", "safetensors_header", "cache_files"];
const SECONDS: u32 = 600;

/// `arguments`: a target (all of them where none is named) and the seconds for each.
pub fn fuzz(arguments: &[String]) -> anyhow::Result<()> {
    let (mut targets, mut seconds) = (TARGETS.to_vec(), SECONDS);
    for argument in arguments {
        match (TARGETS.iter().find(|target| *target == argument), argument.parse()) {
            (Some(target), _) => targets = vec![*target],
            (None, Ok(number)) => seconds = number,
            (None, Err(_)) => bail!("expected seconds or one of {TARGETS:?}, found {argument:?}"),
        }
    }
    for target in targets {
        let corpus = format!("fuzz/corpus/{target}");
        std::fs::create_dir_all(crate::shell::root().join(&corpus))?;
        let (seeds, time) = (format!("fuzz/seeds/{target}"), format!("-max_total_time={seconds}"));
        let limits = ["-max_len=16384", "-timeout=20", "-rss_limit_mb=4096"];
        let folders = ["+nightly", "fuzz", "run", "--target-dir", "target/fuzz", target, &corpus, &seeds, "--", &time];
        run("cargo", &[&folders[..], &limits].concat(), &[])?;
    }
    Ok(())
}
