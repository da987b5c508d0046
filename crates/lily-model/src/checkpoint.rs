//! A checkpoint, from a directory or from within the program: tensors by name, no meaning attached.
//!
//! Start with [`Checkpoint::open`]. Shards are memory-mapped, so opening reads headers only; what the
//! tensors mean, and whether they fit the configuration, is the affair of [`crate::weights`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::ModelError;
use crate::shard::{self, Shard};

pub use crate::shard::{Bytes, Dtype, Tensor};

/// The shard of a checkpoint that has but one.
const SINGLE: &str = "model.safetensors";
/// Which shard holds which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    source: Source,
    shards: Vec<Arc<Shard>>,
    tensors: HashMap<String, Tensor>,
}

/// Where the files are.
#[derive(Debug)]
enum Source {
    Directory(PathBuf),
    Embedded(HashMap<&'static str, &'static [u8]>),
}

impl Checkpoint {
    /// Opens a directory that holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
    ///
    /// Fails, naming the file, where one is missing, cut short or corrupt, where the index and the shards
    /// disagree, and where two shards hold the same tensor.
    pub fn open(directory: &Path) -> Result<Self, ModelError> {
        let directory = directory.to_owned();
        match std::fs::metadata(&directory) {
            Ok(found) if found.is_dir() => Self::from_source(Source::Directory(directory)),
            Ok(_) => Err(ModelError::File { path: directory, what: "expected a checkpoint directory, found a file".into() }),
            Err(source) => Err(ModelError::Io { path: directory, source }),
        }
    }

    /// Opens a checkpoint that is part of the program: pairs of file name and content.
    pub fn from_static(files: &[(&'static str, &'static [u8])]) -> Result<Self, ModelError> {
        Self::from_source(Source::Embedded(files.iter().copied().collect()))
    }

    fn from_source(source: Source) -> Result<Self, ModelError> {
        let index = match source.has(INDEX) {
            true => Some(read_index(&source)?),
            false => None,
        };
        let shards: Vec<&str> = match &index {
            Some(index) => index.keys().map(String::as_str).collect(),
            None => vec![SINGLE],
        };
        let mut mapped = Vec::new();
        let mut tensors = HashMap::new();
        let mut homes: HashMap<String, &str> = HashMap::new();
        for name in shards {
            let path = source.path(name);
            let shard = Arc::new(source.shard(name, index.is_some())?);
            let found = shard::tensors(&path, &shard)?;
            mapped.push(shard);
            let promised = index.iter().flat_map(|index| &index[name]);
            if let Some(lost) = promised.into_iter().find(|&tensor| !found.contains_key(tensor)) {
                return Err(ModelError::File { path, what: format!("lacks tensor {lost}, which {INDEX} says it holds") });
            }
            for (tensor, value) in found {
                if let Some(other) = homes.insert(tensor.clone(), name) {
                    return Err(ModelError::File { path, what: format!("holds tensor {tensor}, which {other} holds too") });
                }
                tensors.insert(tensor, value);
            }
        }
        Ok(Checkpoint { source, shards: mapped, tensors })
    }

    /// The tensor of that name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The names of all tensors, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Asks the system to read all shards into memory, in large requests instead of page by page at first
    /// use. May take as long as the reading, so call it from a thread of its own; and only where the weights
    /// fit in memory, else it pushes out what it read before. The system's own advice serves everything
    /// else: matrices are read from front to back, experts in runs of hundreds of KiB.
    pub fn read_ahead(&self) {
        for shard in &self.shards {
            shard.read_ahead();
        }
    }

    /// Another file of the checkpoint, such as `config.json` or `tokenizer.json`.
    pub fn file(&self, name: &str) -> Result<Cow<'static, [u8]>, ModelError> {
        self.source.file(name)
    }

    /// Whether the checkpoint has a file of that name.
    pub fn has_file(&self, name: &str) -> bool {
        self.source.has(name)
    }

    /// Where a file of that name is, for messages; nothing on disk for an embedded checkpoint.
    pub fn path(&self, name: &str) -> PathBuf {
        self.source.path(name)
    }
}

impl Source {
    fn path(&self, name: &str) -> PathBuf {
        match self {
            Source::Directory(directory) => directory.join(name),
            Source::Embedded(_) => Path::new("<embedded>").join(name),
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Source::Directory(directory) => directory.join(name).is_file(),
            Source::Embedded(files) => files.contains_key(name),
        }
    }

    fn file(&self, name: &str) -> Result<Cow<'static, [u8]>, ModelError> {
        let found = match self {
            Source::Directory(_) => std::fs::read(self.path(name)).map(Cow::Owned),
            Source::Embedded(files) => files.get(name).map(|&bytes| Cow::Borrowed(bytes)).ok_or(std::io::ErrorKind::NotFound.into()),
        };
        found.map_err(|source| ModelError::Io { path: self.path(name), source })
    }

    fn shard(&self, name: &str, indexed: bool) -> Result<Shard, ModelError> {
        if !self.has(name) {
            let what = match indexed {
                true => format!("missing shard: {INDEX} names it"),
                false => format!("missing: a checkpoint has this file, or {INDEX} and its shards"),
            };
            return Err(ModelError::File { path: self.path(name), what });
        }
        match self {
            Source::Directory(_) => Shard::map(&self.path(name)),
            Source::Embedded(files) => Ok(Shard::Static(files[name])),
        }
    }
}

/// Tensors by shard, from the index's `weight_map`.
fn read_index(source: &Source) -> Result<BTreeMap<String, Vec<String>>, ModelError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let refuse = |what: String| ModelError::File { path: source.path(INDEX), what };
    let index: Index = serde_json::from_slice(&source.file(INDEX)?).map_err(|fault| refuse(format!("corrupt index: {fault}")))?;
    if index.weight_map.is_empty() {
        return Err(refuse("corrupt index: weight_map names no tensors".into()));
    }
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in index.weight_map {
        // A shard lies beside the index: a downloaded file must not name others.
        if !shard.ends_with(".safetensors") || shard.contains(['/', '\\']) {
            return Err(refuse(format!("corrupt index: tensor {tensor} in {shard:?}, which is no name of a shard")));
        }
        shards.entry(shard).or_default().push(tensor);
    }
    Ok(shards)
}
