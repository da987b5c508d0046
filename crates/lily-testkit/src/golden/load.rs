//! Reads one committed golden.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::Deserialize;

use crate::TestkitError;
use crate::error::read_file;
use crate::generate::read_tensors;

/// The goldens over tiny random checkpoints, each with its checkpoint in the same directory.
pub const TINY: [&str; 5] = ["base", "group32", "group128", "bits8", "raw"];

/// `tests/goldens` of this repository.
pub fn goldens_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// What other implementations computed on one checkpoint.
#[derive(Debug)]
pub struct Golden {
    /// The golden's directory, which for a tiny checkpoint is also the checkpoint's.
    pub directory: PathBuf,
    /// The token sequences.
    pub sequences: Vec<Sequence>,
    /// The positions of sequence 0 at which per-layer tensors are given.
    pub positions: Vec<usize>,
    /// Perplexities over held-out texts, for the bundled model.
    pub perplexities: Vec<Perplexity>,
    tensors: BTreeMap<String, Vec<f32>>,
}

/// One sequence and its greedy continuations.
#[derive(Clone, Debug, Deserialize)]
pub struct Sequence {
    /// The text the tokens come from, if any.
    pub text: Option<String>,
    /// Token ids; logits are given at each of them.
    pub tokens: Vec<u32>,
    /// Continuation by mlx-lm in f32.
    pub mlx: Greedy,
    /// Continuation by transformers in f32, for the tiny checkpoints.
    pub transformers: Option<Greedy>,
}

/// A greedy continuation.
#[derive(Clone, Debug, Deserialize)]
pub struct Greedy {
    /// The chosen ids.
    pub tokens: Vec<u32>,
    /// The largest logit minus the second largest, at each of them.
    pub margins: Vec<f32>,
}

/// The mean negative log-likelihood of a text.
#[derive(Clone, Debug, Deserialize)]
pub struct Perplexity {
    /// Path of the text from the root of the repository.
    pub file: String,
    /// Length of the windows the token ids are cut into; each starts from an empty state.
    pub window: usize,
    /// Scored tokens: all but the first of each window.
    pub scored: usize,
    /// Sum of the negative log-likelihoods of each window, in nats, so that a test may take only a few windows.
    pub nll: Vec<f64>,
    /// `exp(sum(nll) / scored)`.
    pub perplexity: f64,
    /// The token ids of the whole text, windows one after the other; the last one may be shorter.
    pub tokens: Vec<u32>,
}

impl Greedy {
    /// Panics at the first id of `tokens` that differs where the margin exceeds twice `error`, the largest error of a
    /// logit (two logits may err towards each other).
    ///
    /// Where it does not, either choice is right; as the texts then part, the rest is not compared. Returns how many
    /// ids were compared, so that a test can demand enough of them.
    pub fn assert_followed(&self, name: &str, tokens: &[u32], error: f64) -> usize {
        for (index, (found, expected)) in tokens.iter().zip(&self.tokens).enumerate() {
            if found != expected {
                let margin = f64::from(self.margins[index]);
                assert!(
                    margin <= 2.0 * error,
                    "{name}: greedy token {index}: expected {expected} by a margin of {margin:.2e}, found {found}"
                );
                return index;
            }
        }
        tokens.len().min(self.tokens.len())
    }
}

#[derive(Deserialize)]
struct Document {
    sequences: Vec<Sequence>,
    #[serde(default)]
    positions: Vec<usize>,
    #[serde(default)]
    perplexities: Vec<Perplexity>,
}

impl Golden {
    /// Loads `tests/goldens/NAME`.
    pub fn load(name: &str) -> Result<Self, TestkitError> {
        Self::load_from(goldens_directory().join(name))
    }

    /// Loads the golden in any directory.
    pub fn load_from(directory: PathBuf) -> Result<Self, TestkitError> {
        let path = directory.join("golden.json");
        let document: Document =
            serde_json::from_slice(&read_file(&path)?).map_err(|e| TestkitError::content(path.display().to_string(), e.to_string()))?;
        let path = directory.join("golden.safetensors");
        let mut tensors = BTreeMap::new();
        for (name, stored) in read_tensors(&path)? {
            if stored.dtype != Dtype::F32 {
                let place = format!("{} {name}", path.display());
                return Err(TestkitError::content(place, format!("expected f32, file has {:?}", stored.dtype)));
            }
            tensors.insert(name, stored.bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect());
        }
        let Document { sequences, positions, perplexities } = document;
        Ok(Self { directory, sequences, positions, perplexities, tensors })
    }

    /// A tensor by name; panics, listing what there is, if there is none: a test that asks for it is wrong.
    ///
    /// - `sequences.S.logits.mlx`, `sequences.S.logits.transformers`: `[tokens, vocab]`;
    /// - `layers.N.input_norm`, `.mixer`, `.residual`, `.moe`, `.output` from transformers: `[positions, hidden]`.
    pub fn tensor(&self, name: &str) -> &[f32] {
        let found = self.tensors.get(name);
        found.unwrap_or_else(|| panic!("no tensor {name}; there are {:?}", self.tensors.keys().collect::<Vec<_>>()))
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The rows of a per-token tensor `[tokens, width]` at the golden's positions, to compare with a layer's tensor.
    pub fn rows_at_positions(&self, tensor: &[f64], width: usize) -> Vec<f64> {
        self.positions.iter().flat_map(|p| tensor[p * width..(p + 1) * width].to_vec()).collect()
    }
}
