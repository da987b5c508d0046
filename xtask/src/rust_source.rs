//! The source of Rust's standard library where rustup cannot fetch it: Debian packs the source of each release.
//!
//! A newer Debian than the machine's may be needed for it. Its package lists are read into a folder of their own; nothing
//! of it is installed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::apple::output;
use crate::debian;

/// Where Debian may have the version of the toolchain, likeliest first.
const SUITES: [&str; 3] = ["trixie-backports", "forky", "sid"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A copy of the toolchain at `sysroot` that has the source of its standard library; made once for each version.
pub fn toolchain_with_source(sysroot: &Path, version: &str) -> anyhow::Result<PathBuf> {
    let home = std::env::var("HOME").context("HOME is not set")?;
    let cache = Path::new(&home).join(".cache/lily/apple");
    let copy = cache.join(format!("rust-{version}"));
    let done = copy.join("complete");
    if done.is_file() {
        return Ok(copy);
    }
    if !debian::is_on_path("apt-get") {
        bail!("without Debian's packages there is no source of Rust {version} to be had here");
    }
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&cache)?;
    let package = download(&cache, version)?;
    let source = cache.join(format!("source-{version}"));
    let _ = fs::remove_dir_all(&source);
    output("dpkg-deb", &["--extract", &text(&package), &text(&source)])?;
    // Hard links where the cache is on the toolchain's disk, else copies.
    if output("cp", &["-al", &text(sysroot), &text(&copy)]).is_err() {
        let _ = fs::remove_dir_all(&copy);
        output("cp", &["-a", &text(sysroot), &text(&copy)])?;
    }
    fs::create_dir_all(copy.join("lib/rustlib/src"))?;
    std::os::unix::fs::symlink(source.join(format!("usr/src/rustc-{version}")), copy.join("lib/rustlib/src/rust"))?;
    if !copy.join("lib/rustlib/src/rust/library").is_dir() {
        bail!("{} has no standard library in it", package.display());
    }
    fs::write(done, "")?;
    Ok(copy)
}

/// The package `rust-src` of a version, downloaded into `cache`.
fn download(cache: &Path, version: &str) -> anyhow::Result<PathBuf> {
    let mirror = mirror()?;
    let mut tried = Vec::new();
    for suite in SUITES {
        let apt = Apt::new(cache, &mirror, suite)?;
        let found = debian::apt(&["update"], &apt.options).and_then(|()| apt.candidate(version));
        match found {
            Ok(candidate) => return apt.download(&candidate, version),
            Err(fault) => tried.push(format!("{suite}: {fault:#}")),
        }
    }
    bail!("no package rust-src {version}:\n  {}", tried.join("\n  "))
}

/// The server that the machine's own package lists come from.
fn mirror() -> anyhow::Result<String> {
    let targets = || output("apt-get", &["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main"]);
    if targets()?.is_empty() {
        debian::update()?;
    }
    let all = targets()?;
    let main = all.lines().find(|uri| !uri.contains("security"));
    main.map(str::to_owned).context("apt-get knows no server of Debian's packages")
}

/// apt-get with lists of one suite only, apart from the machine's.
struct Apt {
    folder: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Path, mirror: &str, suite: &str) -> anyhow::Result<Self> {
        let folder = cache.join("apt").join(suite);
        for inner in ["lists/partial", "cache/archives/partial", "empty"] {
            fs::create_dir_all(folder.join(inner))?;
        }
        fs::write(folder.join("status"), "")?;
        fs::write(folder.join("sources.list"), format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))?;
        let at = |name: &str| folder.join(name).display().to_string();
        let settings = [
            ("Dir::Etc::sourcelist", at("sources.list")),
            ("Dir::Etc::sourceparts", at("empty")),
            ("Dir::Etc::preferences", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", at("empty")),
            ("Dir::State", at("")),
            ("Dir::State::lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("Acquire::Languages", "none".into()),
        ];
        let options = settings.iter().map(|(name, value)| format!("-o{name}={value}")).collect();
        Ok(Apt { folder, options })
    }

    /// The package's full version, such as `1.95.0+dfsg1-2`.
    fn candidate(&self, version: &str) -> anyhow::Result<String> {
        let mut arguments: Vec<&str> = self.options.iter().map(String::as_str).collect();
        arguments.extend(["madison", "rust-src"]);
        let table = output("apt-cache", &arguments)?;
        let versions: Vec<&str> = table.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
        let found = versions.iter().find(|found| found.starts_with(&format!("{version}+")));
        found.map(|found| (*found).to_owned()).with_context(|| format!("expected {version}, found {versions:?}"))
    }

    fn download(&self, candidate: &str, version: &str) -> anyhow::Result<PathBuf> {
        // Downloads go to the folder that apt-get runs in.
        let mut command = std::process::Command::new("apt-get");
        command.args(["-qq", "-oAPT::Sandbox::User=root"]).args(&self.options);
        let status = command.args(["download", &format!("rust-src={candidate}")]).current_dir(&self.folder).status()?;
        if !status.success() {
            bail!("apt-get download rust-src={candidate} failed");
        }
        let entries = fs::read_dir(&self.folder)?.filter_map(Result::ok).map(|entry| entry.path());
        let is_package =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("rust-src_{version}")));
        entries.into_iter().find(is_package).context("apt-get downloaded nothing")
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
