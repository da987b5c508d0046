//! Developer tasks. `cargo xtask check` is what CI runs after the tests.

mod aarch64;
mod apple;
mod debian;
mod fuzz;
mod metal;
mod rust_source;
mod sdk;
mod shell;
mod tidy;
// The library's own: what it makes of a kernel file is what must be checked.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/lily-gpu/src/translate/mod.rs"]
mod translate;

use std::process::ExitCode;

use anyhow::bail;
use shell::cargo;

const HELP: &str = "\
cargo xtask check     format, lints with warnings denied, docs, tidy: what CI runs after the tests
cargo xtask fmt       formatting only
cargo xtask lint      clippy with warnings denied
cargo xtask doc       public documentation, warnings denied
cargo xtask tidy      house rules: file sizes, module docs, forbidden words
cargo xtask aarch64   tests of the NEON loops under QEMU, with and without the dot-product instructions
cargo xtask metal     every kernel through a strict type check of the Metal Shading Language
cargo xtask apple     lints and links for Apple's processors, without Apple's SDK
cargo xtask sdk       real clients (Python) against a running `lily serve`
cargo xtask schema    requests drawn from the served API description against a running `lily serve`
cargo xtask fuzz      the fuzz targets, ten minutes each; or some of them, or other seconds; keep: what they found becomes seeds";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let task = std::env::args().nth(1).unwrap_or_default();
    match task.as_str() {
        "check" => {
            fmt()?;
            tidy::tidy()?;
            lint()?;
            doc()
        }
        "fmt" => fmt(),
        "lint" => lint(),
        "doc" => doc(),
        "tidy" => tidy::tidy(),
        "aarch64" => aarch64::aarch64(&std::env::args().skip(2).collect::<Vec<_>>()),
        "apple" => apple::apple(),
        "metal" => metal::metal(),
        "sdk" => sdk::sdk(),
        "schema" => sdk::schema(),
        "fuzz" => fuzz::fuzz(&std::env::args().skip(2).collect::<Vec<_>>()),
        "" | "help" | "--help" => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("unknown task {other}\n\n{HELP}"),
    }
}

fn fmt() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])
}

fn lint() -> anyhow::Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

fn doc() -> anyhow::Result<()> {
    cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}
