//! Finds the checkpoint that `--model` means: a directory, a pulled repository, or the bundled model.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lily_model::Checkpoint;

use crate::bundled;

/// An opened checkpoint and what to call it.
pub struct Source {
    pub name: String,
    pub checkpoint: Checkpoint,
}

pub fn open(model: Option<&str>) -> anyhow::Result<Source> {
    let Some(model) = model else {
        return Ok(Source { name: bundled::NAME.into(), checkpoint: bundled::checkpoint()? });
    };
    let dir = directory(model)?;
    let name = if Path::new(model) == dir { folder_name(&dir) } else { model.to_string() };
    let checkpoint = Checkpoint::open(&dir).with_context(|| format!("cannot open the model {model}"))?;
    Ok(Source { name, checkpoint })
}

/// A directory as it is; otherwise a repository that `lily pull` brought here.
fn directory(model: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        bail!("--model {model}: expected a checkpoint directory, found a file; give the folder that holds config.json");
    }
    let pulled = hf_hub::Cache::from_env().model(model.to_string()).get("config.json");
    match pulled.as_deref().and_then(Path::parent) {
        Some(dir) => Ok(dir.to_path_buf()),
        None if is_repository(model) => bail!("--model {model}: no such directory, and not pulled yet; run: lily pull {model}"),
        None => bail!("--model {model}: no such directory"),
    }
}

/// `org/name`, the form of a repository on the Hub.
pub fn is_repository(model: &str) -> bool {
    let plain =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    matches!(model.split_once('/'), Some((org, name)) if plain(org) && plain(name))
}

fn folder_name(dir: &Path) -> String {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    full.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
