//! Intermediate tensors by name, kept on request, so that a failing layer can be narrowed down to a step.

use std::collections::BTreeMap;

/// Collects named tensors of a forward pass; [`Trace::off`] collects nothing.
///
/// Names are `layers.N.STEP`. In every layer: `input_norm`, `mixer` (its output), `residual` (after the mixer),
/// `post_norm`, `router` (logits), `experts`, `shared`, `moe`, `output`. In attention layers also `query`, `key`,
/// `value` (after norm and rope), `attention` (before the gate), `gated`. In DeltaNet layers also `qkv` (raw),
/// `convolved`, `decay`, `beta`, `delta` (reads), `gated`. Once per model: `embedding`, `final_norm`.
/// Each holds the tokens of the last call, `[tokens, ...]`.
#[derive(Debug, Default)]
pub struct Trace {
    keep: bool,
    layer: Option<usize>,
    tensors: BTreeMap<String, Vec<f64>>,
}

impl Trace {
    /// Keeps nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Keeps everything.
    pub fn on() -> Self {
        Self { keep: true, ..Self::default() }
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&[f64]> {
        self.tensors.get(name).map(Vec::as_slice)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Later records belong to this layer.
    pub(crate) fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    pub(crate) fn record(&mut self, step: &str, values: &[f64]) {
        if self.keep {
            let name = self.layer.map_or_else(|| step.to_owned(), |layer| format!("layers.{layer}.{step}"));
            self.tensors.insert(name, values.to_vec());
        }
    }
}
