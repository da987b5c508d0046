//! Synthetic checkpoints: any shape, in the MLX layout, with random weights that behave like real ones.
//!
//! Start with [`Synth::write`]. They serve benchmarks and tests: the text that such a model writes is
//! noise, yet every tensor has the name, type, size and statistics that a real one has. Memory stays
//! bounded, whatever the model's size, and the same seed gives the same bytes.

mod fill;
mod plan;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::storage::Storage;

use fill::Fill;
pub(crate) use plan::{Planned, plan};

/// Bytes generated and written at a time.
const BUFFER_BYTES: usize = 4 << 20;

/// What to write.
#[derive(Clone, Debug)]
pub struct Synth {
    pub config: ModelConfig,
    pub storage: Storage,
    /// Same seed, same bytes.
    pub seed: u64,
    /// Most bytes of tensors in one shard.
    pub shard_bytes: u64,
}

impl Synth {
    /// A checkpoint of this shape at 4 bits, in shards of at most 5 GB.
    pub fn new(config: ModelConfig) -> Self {
        Synth { storage: Storage::mlx_4bit(&config), config, seed: 1, shard_bytes: 5_000_000_000 }
    }

    /// A checkpoint that follows the text of a `config.json`, quantisation included.
    pub fn from_json(text: &[u8]) -> Result<Self, ModelError> {
        let config = ModelConfig::from_json(text)?;
        Ok(Synth { storage: Storage::from_json(text)?, ..Self::new(config) })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> Result<u64, ModelError> {
        Ok(plan(&self.config, &self.storage)?.iter().map(Planned::bytes).sum())
    }

    /// Writes the checkpoint, creating the directory; `progress` hears bytes written and bytes in all.
    /// Refuses a directory that holds anything.
    pub fn write(&self, directory: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ModelError> {
        let total = self.bytes()?;
        let mut written = 0;
        let mut advance = |bytes: u64| {
            written += bytes;
            progress(written, total);
        };
        self.write_with(directory, &mut |file, tensors| self.write_tensors(file, tensors, &mut advance))
    }

    /// Writes everything but the tensors' bytes, which are left as holes in the files and read as zeros: a
    /// full-size checkpoint that takes no room, for what depends on names and shapes only.
    pub fn write_holes(&self, directory: &Path) -> Result<(), ModelError> {
        self.write_with(directory, &mut |file, tensors| {
            let bytes: u64 = tensors.iter().map(Planned::bytes).sum();
            file.set_len(file.metadata()?.len() + bytes)
        })
    }

    /// Writes headers, index and configuration; `content` writes a shard's tensors behind its header.
    fn write_with(&self, directory: &Path, content: &mut Content<'_>) -> Result<(), ModelError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| ModelError::Io { path, source }
        };
        fs::create_dir_all(directory).map_err(io(directory))?;
        if let Some(found) = fs::read_dir(directory).map_err(io(directory))?.next() {
            let found = found.map_err(io(directory))?.file_name();
            let what = format!("expected an empty or absent directory, it holds {}: nothing is overwritten", found.display());
            return Err(ModelError::File { path: directory.to_owned(), what });
        }
        let tensors = plan(&self.config, &self.storage)?;
        let shards = self.shards(&tensors);
        let mut weight_map = Map::new();
        for (at, shard) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => "model.safetensors".to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
            };
            weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), Value::from(name.as_str()))));
            let path = directory.join(name);
            let mut file = File::create(&path).map_err(io(&path))?;
            file.write_all(&header(shard)).and_then(|()| content(&mut file, shard)).map_err(io(&path))?;
        }
        let total: u64 = tensors.iter().map(Planned::bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        write_json(&directory.join("model.safetensors.index.json"), &index)?;
        // Last: a directory with a config.json is complete.
        write_json(&directory.join("config.json"), &self.config.to_json(&self.storage))
    }

    /// Cuts the tensors into runs of at most `shard_bytes`; a larger tensor has a shard of its own.
    fn shards<'a>(&self, tensors: &'a [Planned]) -> Vec<&'a [Planned]> {
        let mut shards = Vec::new();
        let (mut first, mut bytes) = (0, 0);
        for (at, tensor) in tensors.iter().enumerate() {
            if at > first && bytes + tensor.bytes() > self.shard_bytes {
                shards.push(&tensors[first..at]);
                (first, bytes) = (at, 0);
            }
            bytes += tensor.bytes();
        }
        shards.push(&tensors[first..]);
        shards
    }

    fn write_tensors(&self, file: &mut File, tensors: &[Planned], advance: &mut dyn FnMut(u64)) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        for tensor in tensors {
            let mut fill = Fill::new(self.seed, tensor);
            let mut left = tensor.bytes();
            while left > 0 {
                let part = &mut buffer[..left.min(BUFFER_BYTES as u64) as usize];
                fill.next(part);
                file.write_all(part)?;
                left -= part.len() as u64;
                advance(part.len() as u64);
            }
        }
        Ok(())
    }
}

/// Writes the tensors of one shard.
type Content<'a> = dyn FnMut(&mut File, &[Planned]) -> io::Result<()> + 'a;

/// Length and JSON of a safetensors header, padded to 8 bytes.
fn header(tensors: &[Planned]) -> Vec<u8> {
    let mut json = Map::new();
    json.insert("__metadata__".into(), json!({ "format": "mlx" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        json.insert(
            tensor.name.clone(),
            json!({ "dtype": format!("{:?}", tensor.dtype).to_uppercase(), "shape": tensor.shape, "data_offsets": [start, end] }),
        );
        start = end;
    }
    let mut text = Value::from(json).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [(text.len() as u64).to_le_bytes().as_slice(), &text].concat()
}

fn write_json(path: &Path, json: &Value) -> Result<(), ModelError> {
    fs::write(path, format!("{json:#}\n")).map_err(|source| ModelError::Io { path: path.to_owned(), source })
}
