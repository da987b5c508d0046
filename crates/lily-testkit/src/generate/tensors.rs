//! Tensors as a safetensors file holds them: to write a checkpoint, and to read one back, damage it and write it again.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::TestkitError;
use crate::error::read_file;

/// One tensor as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorData {
    /// Element type.
    pub dtype: Dtype,
    /// Slowest dimension first.
    pub shape: Vec<usize>,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
}

/// Reads every tensor of one file.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, TensorData>, TestkitError> {
    let file = read_file(path)?;
    let parsed = SafeTensors::deserialize(&file).map_err(|e| TestkitError::content(path.display().to_string(), e.to_string()))?;
    let data = |view: TensorView| TensorData { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
    Ok(parsed.iter().map(|(name, view)| (name.to_owned(), data(view))).collect())
}

/// Writes one file.
pub fn write_tensors(path: &Path, tensors: &BTreeMap<String, TensorData>) -> Result<(), TestkitError> {
    let problem = |e: safetensors::SafeTensorError| TestkitError::content(path.display().to_string(), e.to_string());
    let view = |t: &'_ TensorData| TensorView::new(t.dtype, t.shape.clone(), &t.bytes).map(|_| ());
    tensors.values().try_for_each(view).map_err(problem)?;
    let views =
        tensors.iter().filter_map(|(name, t)| TensorView::new(t.dtype, t.shape.clone(), &t.bytes).ok().map(|view| (name.clone(), view)));
    let bytes = safetensors::serialize(views, None).map_err(problem)?;
    std::fs::write(path, bytes).map_err(|source| TestkitError::Io { path: path.to_owned(), source })
}
