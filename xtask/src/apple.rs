//! The library crates for Apple's processors, from a Linux machine and without Apple's SDK: lints with warnings denied,
//! then the crates' tests compiled and linked (they cannot run here).
//!
//! [`Toolchain::find`] is where the standard library comes from; the linker is Rust's own, and `apple_stubs.txt` stands for
//! the SDK. The program itself is left out: it pulls `ring`, which compiles C for the target.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail};

use crate::rust_source;
use crate::shell::{root, run};

const TARGET: &str = "aarch64-apple-darwin";
/// Everything but the program; `lily-gpu` without the simulator, which is C++, and CUDA.
const CRATES: [&str; 7] = ["lily-model", "lily-cpu", "lily-gpu", "lily-text", "lily-engine", "lily-server", "lily-testkit"];
/// What is linked: the Metal backend with all below it, and the server with all below it.
const LINKED: [&str; 2] = ["lily-gpu", "lily-server"];
/// Nothing of it runs: no effort for speed.
const QUICK: [&str; 5] = [
    "profile.dev.opt-level=0",
    "profile.dev.debug=false",
    "profile.dev.package.lily-cpu.opt-level=0",
    "profile.dev.package.lily-gpu.opt-level=0",
    "profile.dev.package.lily-testkit.opt-level=0",
];
const STUBS: &str = include_str!("../apple_stubs.txt");

pub fn apple() -> anyhow::Result<()> {
    let toolchain = Toolchain::find()?;
    let out = root().join("target/apple");
    let sdk = out.join("sdk");
    write_stubs(&sdk)?;
    let environment = [
        ("PATH", toolchain.path()?),
        // Cargo sets it for this task, and rustc takes the toolchain that its library is in for its own.
        ("LD_LIBRARY_PATH", toolchain.sysroot.join("lib").display().to_string()),
        // Under rustup, cargo would otherwise start the compiler of the toolchain that runs this task.
        ("RUSTC", toolchain.program("rustc")),
        ("CARGO_TARGET_DIR", out.display().to_string()),
        ("SDKROOT", sdk.display().to_string()),
        ("MACOSX_DEPLOYMENT_TARGET", "14.0".into()),
        ("CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER", toolchain.linker()?.display().to_string()),
        ("CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS", "-Clinker-flavor=ld64.lld -Clink-arg=--error-limit=0".into()),
        // Lets a stable cargo build the standard library; the project itself uses stable features alone.
        ("RUSTC_BOOTSTRAP", "1".into()),
        // Unwinding would need a library that the SDK has.
        ("CARGO_PROFILE_DEV_PANIC", "abort".into()),
    ];
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let cargo = toolchain.program("cargo");
    let step = |command: &[&str], crates: &[&str], after: &[&str]| {
        let mut arguments = command.to_vec();
        arguments.extend(QUICK.iter().flat_map(|setting| ["--config", setting]));
        arguments.extend(["--target", TARGET, "--no-default-features"]);
        arguments.extend(toolchain.build_library());
        arguments.extend(crates.iter().flat_map(|name| ["--package", name]));
        arguments.extend(after);
        run(&cargo, &arguments, &environment)
    };
    step(&["clippy"], &CRATES, &["--", "-D", "warnings"])?;
    step(&["test", "--no-run", "-Zpanic-abort-tests"], &LINKED, &[])
}

/// A Rust toolchain that can compile for the target.
struct Toolchain {
    sysroot: PathBuf,
    /// The standard library is there as source only.
    from_source: bool,
}

impl Toolchain {
    /// The toolchain that runs this, if it has the target's standard library (`rustup target add`) or the source of it;
    /// else a copy of it with the source of the same version, which Debian packs.
    fn find() -> anyhow::Result<Self> {
        let sysroot = PathBuf::from(output("rustc", &["--print", "sysroot"])?);
        if sysroot.join("lib/rustlib").join(TARGET).join("lib").is_dir() {
            return Ok(Toolchain { sysroot, from_source: false });
        }
        if sysroot.join("lib/rustlib/src/rust/library").is_dir() {
            return Ok(Toolchain { sysroot, from_source: true });
        }
        let version = output("rustc", &["--version"])?.split(' ').nth(1).unwrap_or_default().to_owned();
        let sysroot = rust_source::toolchain_with_source(&sysroot, &version)
            .with_context(|| format!("no standard library for {TARGET}: `rustup target add {TARGET}` installs it"))?;
        Ok(Toolchain { sysroot, from_source: true })
    }

    fn program(&self, name: &str) -> String {
        self.sysroot.join("bin").join(name).display().to_string()
    }

    /// With this toolchain's programs first.
    fn path(&self) -> anyhow::Result<String> {
        let path = env::var("PATH").unwrap_or_default();
        Ok(format!("{}:{path}", self.sysroot.join("bin").display()))
    }

    fn build_library(&self) -> &'static [&'static str] {
        if self.from_source { &["-Zbuild-std=std,panic_abort,test", "-Zbuild-std-features="] } else { &[] }
    }

    fn linker(&self) -> anyhow::Result<PathBuf> {
        let host = output("rustc", &["--version", "--verbose"])?;
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not name its host")?;
        let linker = self.sysroot.join("lib/rustlib").join(host).join("bin/rust-lld");
        if !linker.is_file() {
            bail!("expected Rust's own linker at {}", linker.display());
        }
        Ok(linker)
    }
}

/// What a program prints, without the last line's end.
pub fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes a text stub for each library of `apple_stubs.txt`.
fn write_stubs(sdk: &Path) -> anyhow::Result<()> {
    let mut library: Option<(&str, &str)> = None;
    let mut symbols: Vec<&str> = Vec::new();
    let lines = STUBS.lines().filter(|line| !line.starts_with('#')).chain([""]);
    for line in lines {
        if line.starts_with(' ') {
            symbols.extend(line.split_whitespace());
            continue;
        }
        if let Some((path, name)) = library {
            write_stub(&sdk.join(path), name, &symbols)?;
        }
        symbols.clear();
        let mut fields = line.split('|').map(str::trim);
        library = fields.next().zip(fields.next());
    }
    Ok(())
}

fn write_stub(path: &Path, name: &str, symbols: &[&str]) -> anyhow::Result<()> {
    let mut text = format!("--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: '{name}'\n");
    if !symbols.is_empty() {
        let quoted: Vec<String> = symbols.iter().map(|symbol| format!("'{symbol}'")).collect();
        text += &format!("exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {} ]\n", quoted.join(", "));
    }
    text += "...\n";
    let folder = path.parent().context("a stub without a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}
