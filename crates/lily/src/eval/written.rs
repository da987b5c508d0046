//! Our own predictions as a file that `--reference` reads: to compare two devices, or two versions.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

use super::tally::largest;

/// What is predicted, position by position; see [`mod@super::reference`] for the tensors.
#[derive(Default)]
pub struct Written {
    logprobs: Vec<u8>,
    top1: Vec<u8>,
    logits: Vec<u8>,
    logit_rows: usize,
}

impl Written {
    /// Takes in the next position. `logprob`: of the token after it, if the window has one; `whole`: keep all logits.
    pub fn take(&mut self, logits: &[f32], logprob: Option<f64>, whole: bool) {
        self.logprobs.extend((logprob.unwrap_or(0.0) as f32).to_le_bytes());
        self.top1.extend(largest(logits).to_le_bytes());
        if whole {
            self.logits.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
            self.logit_rows += 1;
        }
    }

    /// Writes the file. `made_by`: this engine and its device.
    pub fn write(&self, path: &Path, tokens: &[u32], window: usize, vocab: usize, made_by: &str) -> anyhow::Result<()> {
        let ids: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let count = vec![tokens.len()];
        // Ids are below 2^31: both signs read the same, and other tools know I32 better.
        let mut views = vec![
            ("tokens", TensorView::new(Dtype::I32, count.clone(), &ids)?),
            ("top1", TensorView::new(Dtype::I32, count.clone(), &self.top1)?),
            ("logprobs", TensorView::new(Dtype::F32, count, &self.logprobs)?),
        ];
        if self.logit_rows > 0 {
            views.push(("logits", TensorView::new(Dtype::F32, vec![self.logit_rows, vocab], &self.logits)?));
        }
        let metadata = HashMap::from([("window".to_owned(), window.to_string()), ("made_by".to_owned(), made_by.to_owned())]);
        serialize_to_file(views, Some(metadata), path).with_context(|| format!("cannot write {}", path.display()))
    }
}
