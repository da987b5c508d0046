//! A small checkpoint on disk that tests take apart: start at [`Small::new`].

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod raw;
pub mod values;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lily_model::{Checkpoint, ModelConfig, ModelError, Storage, Synth, Weights};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

/// Name to type, shape, bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub const P: &str = "language_model.model.";

pub struct Small {
    directory: tempfile::TempDir,
}

impl Small {
    /// The tiny shape at 4 bits in one shard.
    pub fn new() -> Self {
        Self::of(Synth::new(ModelConfig::tiny()))
    }

    /// The same in several shards.
    pub fn sharded() -> Self {
        Self::of(Synth { shard_bytes: 100_000, ..Synth::new(ModelConfig::tiny()) })
    }

    /// The same without quantisation.
    pub fn plain() -> Self {
        Self::of(Synth { storage: Storage { quantization: None, tied_head: false }, ..Synth::new(ModelConfig::tiny()) })
    }

    pub fn of(synth: Synth) -> Self {
        let directory = tempfile::tempdir().unwrap();
        synth.write(directory.path(), &mut |_, _| ()).unwrap();
        Small { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The first of several shards.
    pub fn first_shard(&self) -> PathBuf {
        let mut names = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        names.find(|path| path.to_string_lossy().contains("-00001-of-")).unwrap()
    }

    pub fn config(&self, edit: impl FnOnce(&mut Value)) {
        self.json("config.json", edit);
    }

    pub fn json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut json: Value = serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap();
        edit(&mut json);
        fs::write(self.file(name), json.to_string()).unwrap();
    }

    /// Rewrites the single shard; its index goes.
    pub fn tensors(&self, edit: impl FnOnce(&mut Tensors)) {
        let path = self.file("model.safetensors");
        let file = fs::read(&path).unwrap();
        let parsed = SafeTensors::deserialize(&file).unwrap();
        let mut tensors: Tensors =
            parsed.iter().map(|(name, view)| (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))).collect();
        edit(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        let _ = fs::remove_file(self.file("model.safetensors.index.json"));
    }

    pub fn load(&self) -> Result<Weights, ModelError> {
        let checkpoint = Checkpoint::open(self.path())?;
        Weights::load(&checkpoint, &ModelConfig::from_checkpoint(&checkpoint)?)
    }

    /// The message of a load that must fail.
    pub fn refusal(&self) -> String {
        self.load().expect_err("the damage must be found").to_string()
    }
}
