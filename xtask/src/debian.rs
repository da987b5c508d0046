//! Debian's packages, for tasks that need more than Rust: installed where that can be done, asked for where it cannot.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Makes sure that `program` can be started, from `package` if it is not there.
///
/// Only root on a Debian machine installs; anyone else is told what is missing.
pub fn need(program: &str, package: &str) -> anyhow::Result<()> {
    if is_on_path(program) {
        return Ok(());
    }
    let missing = format!("{program} not found; on Debian: apt-get install {package}");
    if !is_on_path("apt-get") || !is_root() {
        bail!("{missing}");
    }
    eprintln!("{program} not found; installing {package}");
    update().with_context(|| missing.clone())?;
    apt(&["install", "-y", "--no-install-recommends", package], &[]).with_context(|| missing.clone())?;
    if !is_on_path(program) {
        bail!("{package} is installed, and there is still no {program}");
    }
    Ok(())
}

/// Reads the lists of packages anew.
pub fn update() -> anyhow::Result<()> {
    apt(&["update"], &[])
}

/// Runs apt-get; its own words go to the terminal only if it fails.
pub fn apt(arguments: &[&str], options: &[String]) -> anyhow::Result<()> {
    let output = Command::new("apt-get")
        .args(["-qq", "-o", "APT::Sandbox::User=root"])
        .args(options)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot start apt-get")?;
    if !output.status.success() {
        bail!("apt-get {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(OsStr::new(program)).exists())
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}
