//! One safetensors file: its bytes, mapped or embedded, and the tensors that its header names.

use std::collections::HashMap;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Metadata, SafeTensorError, SafeTensors};

use crate::error::ModelError;

/// Element types that the model's tensors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    U32,
}

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// One shard's bytes: memory-mapped from disk, part of the program, or put together at load.
#[derive(Debug)]
pub(crate) enum Shard {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
    Owned(Box<[u8]>),
}

impl Shard {
    /// Maps a file. Nothing is read until it is used.
    pub fn map(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is read-only. Whoever shortens or rewrites a checkpoint that is in use breaks
        // the run, as with every memory-mapped model; nobody else writes to the file.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Shard::Mapped(map))
    }

    /// Asks the system to read the whole file into memory. Advice only: that it is refused is no error.
    pub fn read_ahead(&self) {
        #[cfg(unix)]
        if let Shard::Mapped(map) = self {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Shard::Mapped(map) => map,
            Shard::Static(bytes) => bytes,
            Shard::Owned(bytes) => bytes,
        }
    }
}

/// A range of a shard; cheap to clone, keeps the mapping alive. The start has no particular alignment: some
/// writers do not pad the header.
#[derive(Clone, Debug)]
pub struct Bytes {
    shard: Arc<Shard>,
    range: Range<usize>,
}

impl Bytes {
    /// Bytes made in memory, for tensors that had to be put together and for tests.
    pub fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Bytes { shard: Arc::new(Shard::Owned(bytes.into())), range }
    }

    /// The whole mapped file that these bytes are part of, from its first page on; `None` for bytes that are not mapped.
    /// For devices that can use a mapping as it is.
    pub fn mapping(&self) -> Option<&[u8]> {
        match &*self.shard {
            Shard::Mapped(map) => Some(map),
            Shard::Static(_) | Shard::Owned(_) => None,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.shard.bytes()[self.range.clone()]
    }
}

/// A tensor of a checkpoint, as its file has it.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// `None` for a type that no tensor of the text model has.
    pub dtype: Option<Dtype>,
    pub shape: Vec<usize>,
    /// Row-major, little-endian.
    pub bytes: Bytes,
    stored: safetensors::Dtype,
}

impl Tensor {
    /// Shape and type as messages show them: `[8192, 4, 1] BF16`.
    pub fn describe(&self) -> String {
        format!("{:?} {}", self.shape, self.stored)
    }
}

/// The tensors of one shard. `path` is for messages.
pub(crate) fn tensors(path: &Path, shard: &Arc<Shard>) -> Result<HashMap<String, Tensor>, ModelError> {
    let (header_bytes, header) = SafeTensors::read_metadata(shard.bytes()).map_err(|fault| header_error(path, shard.bytes(), fault))?;
    let data = 8 + header_bytes;
    let tensor = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let (start, end) = info.data_offsets;
        let bytes = Bytes { shard: shard.clone(), range: data + start..data + end };
        (name, Tensor { dtype: dtype(info.dtype), shape: info.shape.clone(), bytes, stored: info.dtype })
    };
    Ok(header.tensors().into_iter().map(tensor).collect())
}

fn dtype(stored: safetensors::Dtype) -> Option<Dtype> {
    match stored {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::BF16 => Some(Dtype::Bf16),
        safetensors::Dtype::U32 => Some(Dtype::U32),
        _ => None,
    }
}

/// Tells a file that was cut short from one that is something else.
fn header_error(path: &Path, bytes: &[u8], fault: SafeTensorError) -> ModelError {
    let what = match (&fault, bytes_promised(bytes)) {
        (_, _) if bytes.len() < 8 => {
            format!("truncated: a safetensors file starts with 8 bytes of header length, found {} bytes", bytes.len())
        }
        (SafeTensorError::MetadataIncompleteBuffer, Some(promised)) if promised > bytes.len() as u64 => {
            format!("truncated: its header promises {promised} bytes, the file has {}", bytes.len())
        }
        (SafeTensorError::MetadataIncompleteBuffer, Some(promised)) => {
            format!("longer than its header says: {promised} bytes expected, the file has {}", bytes.len())
        }
        (SafeTensorError::InvalidHeaderLength, _) => {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("checked to have 8 bytes"));
            format!("truncated or corrupt: its header takes {length} bytes, the file has {} in all", bytes.len())
        }
        _ => format!("corrupt safetensors header: {fault}"),
    };
    ModelError::File { path: PathBuf::from(path), what }
}

/// Length of the whole file according to its header.
fn bytes_promised(bytes: &[u8]) -> Option<u64> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let end = usize::try_from(length).ok()?.checked_add(8)?;
    let header: Metadata = serde_json::from_slice(bytes.get(8..end)?).ok()?;
    Some(end as u64 + header.data_len() as u64)
}
