//! The CPU engine's tests on AArch64, under an emulator: the NEON loops run wherever there is QEMU.
//!
//! Twice: on a processor with the dot-product instructions and on one without. Needs a cross linker, QEMU's
//! user emulation and either the target's standard library or its source, which is then built.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell::run;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
/// Emulated processors: everything, and one without `sdot`.
const PROCESSORS: [&str; 2] = ["max", "cortex-a57"];

/// Runs the matrix tests, or whatever `arguments` to `cargo test` choose.
pub fn aarch64(arguments: &[String]) -> anyhow::Result<()> {
    for program in [LINKER, EMULATOR] {
        if !is_on_path(program) {
            bail!("{program} not found (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user-static)");
        }
    }
    let mut command = vec!["test", "--target", TARGET, "--target-dir", "target/aarch64"];
    let library = sysroot()?.join("lib/rustlib");
    if !library.join(TARGET).join("lib").exists() {
        if !library.join("src/rust/library").exists() {
            bail!("no standard library for {TARGET} and no source of it: `rustup target add {TARGET}` or `rustup component add rust-src`");
        }
        command.extend(["-Zbuild-std=std,panic_unwind,test", "-Zbuild-std-features="]);
    }
    let chosen: Vec<&str> = arguments.iter().map(String::as_str).collect();
    command.extend(if chosen.is_empty() { &["-p", "lily-cpu", "--lib", "--test", "matrix"] } else { &chosen[..] });
    // The cargo that runs this task, so that its toolchain is used throughout.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    for processor in PROCESSORS {
        let runner = format!("{EMULATOR} -cpu {processor} -L /usr/aarch64-linux-gnu");
        let environment = [
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner),
            // Lets a stable cargo build the standard library; the project itself uses stable features alone.
            ("RUSTC_BOOTSTRAP", "1"),
        ];
        eprintln!("on an emulated {processor}:");
        run(&cargo, &command, &environment)?;
    }
    Ok(())
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(OsStr::new(program)).exists())
}

fn sysroot() -> anyhow::Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().context("cannot start rustc")?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).to_owned())
}
