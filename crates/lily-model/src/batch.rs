//! What one forward pass is asked to compute: rows of several sequences, each with its own state.
//!
//! A batch is a list of spans. A span is a run of consecutive tokens of one sequence; it names the
//! recurrent-state slot of that sequence, the position of its first token, and its KV pages. Prefill is
//! a span of many rows, decode a span of one row; both can stand in one batch, without padding.

/// In place of a token, alone in its span: the one that the selection queued last chose for the logit row with the number
/// of this span's row in the pass. The host need not know it: see [`crate::Runner::queue_select`].
pub const NEXT: u32 = u32::MAX;

/// Positions per KV page. Page `i` of a sequence holds positions `i * 256 .. (i + 1) * 256`.
pub const PAGE_TOKENS: usize = 256;

/// A recurrent-state slot: DeltaNet state and convolution rows of one sequence, in every DeltaNet layer.
/// Owned by exactly one sequence while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// A KV page: 256 positions of keys and values, in every attention layer. Full pages may be shared
/// between sequences for reading; a page that is written belongs to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Page(pub u32);

/// For which rows of a span the head computes logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: a prefill chunk that is not the prompt's last.
    None,
    /// The last row only: the usual case.
    Last,
    /// Every row: perplexity, tests.
    All,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub slot: Slot,
    /// Position of `tokens[0]` in its sequence.
    pub start: usize,
    /// At least one token, each below the vocabulary size; or [`NEXT`] alone.
    pub tokens: &'a [u32],
    /// The sequence's pages in order of position; they cover `start + tokens.len()` positions.
    pub pages: &'a [Page],
    pub logits: Logits,
}

/// The rows of one forward pass, span after span.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub spans: &'a [Span<'a>],
}

impl Batch<'_> {
    /// Rows of the pass: tokens over all spans.
    pub fn rows(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }

    /// The rows that get logits, as indices into the rows of the pass, ascending.
    pub fn logit_rows(&self) -> Vec<usize> {
        let mut rows = Vec::new();
        let mut first = 0;
        for span in self.spans {
            let end = first + span.tokens.len();
            match span.logits {
                Logits::None => {}
                Logits::Last => rows.extend((first..end).last()),
                Logits::All => rows.extend(first..end),
            }
            first = end;
        }
        rows
    }
}
