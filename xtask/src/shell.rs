//! Runs programs in the repository's root and turns their failure into an error.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root")
}

pub fn cargo(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    run(env!("CARGO"), args, env)
}

pub fn run(program: &str, args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    eprintln!("$ {} {}", Path::new(program).file_name().unwrap_or_default().to_string_lossy(), args.join(" "));
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("{program} {} failed: {status}", args.join(" "));
    }
    Ok(())
}
