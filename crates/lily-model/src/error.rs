//! Everything that can go wrong between a checkpoint on disk and a finished pass.

use std::path::PathBuf;

/// Errors of configuration, checkpoint, weights and passes. Each says what was expected, what was
/// found and where.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file that is not what its name promises: `config.json`, an index, a shard's header.
    #[error("{path}: {what}", path = path.display())]
    File { path: PathBuf, what: String },
    #[error("config.json: {0}")]
    Config(String),
    /// A tensor that is missing or has another shape or type than the configuration asks for.
    #[error("tensor {name}: expected {expected}, {found}")]
    Tensor { name: String, expected: String, found: String },
    /// A batch that the device has no room for, or that names what does not exist: a bug of the caller.
    #[error("batch out of range: {0}")]
    Batch(String),
    /// The device failed: out of memory, lost, or unable to run this model.
    #[error("device: {0}")]
    Device(String),
}
