//! Committed tensors of other implementations, the tolerances they are held to, and the comparison.
//!
//! `tests/goldens/NAME/` holds golden.json (token ids, greedy continuations, perplexities), golden.safetensors
//! (logits and per-layer tensors) and, except for the bundled model, the tiny checkpoint they belong to.
//! `tools/goldens/README.md` says how they are made.

mod compare;
mod load;
pub mod tolerance;

pub use compare::{Comparison, Element, assert_close, assert_rows_close, compare, worst_row};
pub use load::{Golden, Greedy, Perplexity, Sequence, TINY, goldens_directory};
