//! The one error type of the testkit: a file that cannot be read, or one whose content is not what it should be.

use std::path::{Path, PathBuf};

/// Why a checkpoint, a config or a golden could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TestkitError {
    /// The file is missing or unreadable.
    #[error("{path}: {source}")]
    Io {
        /// The file that was asked for.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file was read, but its content contradicts what is expected.
    #[error("{place}: {problem}")]
    Content {
        /// File, field or tensor name.
        place: String,
        /// Expected and found, in words.
        problem: String,
    },
}

impl TestkitError {
    pub(crate) fn content(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Content { place: place.into(), problem: problem.into() }
    }
}

/// Reads a whole file, naming it in the error.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, TestkitError> {
    std::fs::read(path).map_err(|source| TestkitError::Io { path: path.to_owned(), source })
}
