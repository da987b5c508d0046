//! `lily pull`: a checkpoint from the Hugging Face Hub into its ordinary cache, resumed where it stopped.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use indicatif::{ProgressBar, ProgressStyle};
use lily_model::{Checkpoint, ModelConfig, Weights};

use crate::cli::PullArgs;
use crate::source;

/// Broken connections are resumed this many times per file.
const RETRIES: usize = 8;

pub fn pull(args: PullArgs) -> anyhow::Result<()> {
    if !source::is_repository(&args.repository) {
        bail!("{}: expected a repository as org/name, for example mlx-community/Qwen3.6-35B-A3B-4bit", args.repository);
    }
    let repo = Repo::with_revision(args.repository.clone(), RepoType::Model, args.revision.clone());
    let cached = Cache::from_env().repo(repo.clone());
    let api = ApiBuilder::from_env().with_retries(RETRIES).with_user_agent("lily", env!("CARGO_PKG_VERSION")).build()?.repo(repo);

    let listing = api.info().with_context(|| format!("cannot list {} at revision {}", args.repository, args.revision))?;
    let mut files: Vec<&str> = listing.siblings.iter().map(|file| file.rfilename.as_str()).filter(|name| wanted(name)).collect();
    files.sort_by_key(|name| (name.ends_with(".safetensors"), name.to_string()));
    if !files.contains(&"config.json") {
        bail!(
            "{}: expected a checkpoint with a config.json; the repository has {} files, none of that name",
            args.repository,
            listing.siblings.len()
        );
    }

    let mut config = None;
    for (at, name) in files.iter().enumerate() {
        let path = fetch(&api, &cached, name, &format!("{}/{}", at + 1, files.len()))?;
        if *name == "config.json" {
            config = Some(path);
        }
    }
    let dir = config.as_deref().and_then(Path::parent).context("config.json was not stored")?;
    verify(dir).with_context(|| format!("{} was downloaded, but is not a model that Lily runs", args.repository))?;
    writeln!(io::stdout(), "{}", dir.display())?;
    eprintln!("Ready: lily chat --model {}", args.repository);
    Ok(())
}

/// What a checkpoint needs, and nothing else of a repository.
fn wanted(name: &str) -> bool {
    const NAMES: [&str; 6] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
    ];
    NAMES.contains(&name) || (name.ends_with(".safetensors") && !name.contains('/'))
}

/// Downloads one file, going on where an earlier try stopped.
fn fetch(api: &ApiRepo, cached: &CacheRepo, name: &str, label: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = cached.get(name) {
        eprintln!("{label} {name}: already here");
        return Ok(path);
    }
    let bar = Bar::new(format!("{label} {name}"));
    let mut tries = 0;
    loop {
        let path = api.download_with_progress(name, bar.clone()).map_err(|error| match error {
            ApiError::InvalidResume => anyhow::anyhow!(
                "{name}: the part already here is longer than the file on the Hub; remove the *.part file below {} and pull again",
                Cache::from_env().path().display()
            ),
            other => anyhow::Error::new(other).context(format!("{name}: the download stopped; run the same command again to resume it")),
        })?;
        // The Hub client takes a connection that closed early for the end of the file.
        let (found, expected) = (fs::metadata(&path)?.len(), bar.expected());
        if found == expected {
            return Ok(path);
        }
        make_part_again(&path)?;
        tries += 1;
        if tries > RETRIES {
            bail!("{name}: the download stopped after {found} of {expected} bytes; run the same command again to resume it");
        }
    }
}

/// Turns an incomplete file of the cache back into what the Hub client resumes.
fn make_part_again(path: &Path) -> anyhow::Result<()> {
    let blob = path.canonicalize()?;
    if path != blob {
        fs::remove_file(path)?;
    }
    fs::rename(&blob, blob.with_extension("part")).with_context(|| format!("cannot rename {}", blob.display()))
}

/// Opens what was downloaded and checks every tensor's name, shape and type: a damaged file shows now.
fn verify(dir: &Path) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::open(dir)?;
    let config = ModelConfig::from_checkpoint(&checkpoint)?;
    Weights::load(&checkpoint, &config)?;
    Ok(())
}

/// One file's progress bar. The Hub client starts it anew on each try.
#[derive(Clone)]
struct Bar(ProgressBar);

impl Bar {
    fn new(label: String) -> Self {
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}").expect("the template is valid");
        let bar = ProgressBar::new(0).with_style(style).with_message(label);
        bar.enable_steady_tick(Duration::from_millis(250));
        Bar(bar)
    }

    /// Bytes of the file on the Hub; 0 before the first answer.
    fn expected(&self) -> u64 {
        self.0.length().unwrap_or_default()
    }
}

impl Progress for Bar {
    fn init(&mut self, size: usize, _filename: &str) {
        self.0.set_length(size as u64);
        self.0.set_position(0);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish();
    }
}
