//! The staged pass: a copy of the batch in room that was allocated at load.

use lily_model::{Batch, Logits, Page};

/// One span of the staged pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagedSpan {
    /// Its first row in the pass.
    pub first: usize,
    pub tokens: usize,
    /// Position of its first token.
    pub start: usize,
    pub slot: usize,
    /// Where its pages start in [`Staged::pages`].
    pub pages: usize,
}

/// Tokens, spans and page tables of the pass that runs next.
pub(crate) struct Staged {
    pub tokens: Vec<u32>,
    pub spans: Vec<StagedSpan>,
    /// Page tables, span after span.
    pub pages: Vec<Page>,
    /// Rows that get logits, ascending.
    pub logit_rows: Vec<usize>,
}

impl Staged {
    /// Room for `rows` rows; page tables grow to the longest ones seen and then stay.
    pub fn with_capacity(rows: usize, spans: usize, pages: usize, logit_rows: usize) -> Self {
        Staged {
            tokens: Vec::with_capacity(rows),
            spans: Vec::with_capacity(spans),
            pages: Vec::with_capacity(pages),
            logit_rows: Vec::with_capacity(logit_rows),
        }
    }

    pub fn set(&mut self, batch: &Batch<'_>) {
        self.tokens.clear();
        self.spans.clear();
        self.pages.clear();
        self.logit_rows.clear();
        for span in batch.spans {
            let (first, tokens) = (self.tokens.len(), span.tokens.len());
            let pages = self.pages.len();
            self.spans.push(StagedSpan { first, tokens, start: span.start, slot: span.slot.0 as usize, pages });
            self.tokens.extend_from_slice(span.tokens);
            self.pages.extend_from_slice(span.pages);
            match span.logits {
                Logits::None => {}
                Logits::Last => self.logit_rows.push(first + tokens - 1),
                Logits::All => self.logit_rows.extend(first..first + tokens),
            }
        }
    }
}
