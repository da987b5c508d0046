//! The staged pass: what the host tells the device before every pass, as `kernels/lib/pass.h` reads it.
//!
//! Everything stands in one buffer with fixed places, so that one copy brings it and recorded lists stay valid. There are
//! two of them: a small one for passes of few rows, where a copy's size is time, and a large one.

use lily_model::{Batch, Logits, NEXT, PAGE_TOKENS};

use crate::backend::Backend;
use crate::commands::View;

/// Where the parts of a staged pass stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassBuffer {
    whole: View,
    pub tokens: View,
    pub rows: View,
    pub spans: View,
    pub logit_rows: View,
    /// Tiles of `attn_flash`.
    pub tiles: View,
    /// Page tables, span after span; last, because few of them are used.
    pub pages: View,
}

/// The largest pass that a [`PassBuffer`] has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassRoom {
    pub rows: usize,
    pub spans: usize,
    pub logit_rows: usize,
    /// Page ids over all spans.
    pub pages: usize,
}

/// A pass as the host remembers it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Staged {
    pub rows: usize,
    pub spans: usize,
    pub logit_rows: Vec<u32>,
    pub tiles: usize,
    /// Tokens of the longest span.
    pub longest: usize,
    /// Every span has one token.
    pub single: bool,
    /// The longest context of any row.
    pub context: usize,
    bytes: Vec<u8>,
}

impl PassBuffer {
    pub fn new(backend: &mut impl Backend, room: PassRoom) -> Result<Self, lily_model::ModelError> {
        let sizes = [4 * room.rows, 16 * room.rows, 16 * room.spans, 4 * room.logit_rows, 16 * room.rows, 4 * room.pages];
        let mut at = 0;
        let places = sizes.map(|size| {
            let start = at;
            at += size.next_multiple_of(16);
            (start, size)
        });
        let whole = backend.allocate_view(at, "the staged pass")?;
        let [tokens, rows, spans, logit_rows, tiles, pages] = places.map(|(start, size)| whole.part(start, size));
        Ok(PassBuffer { whole, tokens, rows, spans, logit_rows, tiles, pages })
    }

    /// Writes the pass that [`Staged::set`] laid out for this buffer. Tokens that the device chose come from `chosen`, row by
    /// row, or are in their places where that is this buffer's own part.
    pub fn write(&self, backend: &mut impl Backend, staged: &Staged, chosen: View) {
        let last = (0..staged.rows).rfind(|&row| staged.token(self, row) == NEXT);
        let Some(last) = last else { return backend.write(self.whole.part(0, staged.bytes.len()), &staged.bytes) };
        let from = self.rows.offset;
        backend.write(self.whole.part(from, staged.bytes.len() - from), &staged.bytes[from..]);
        let bytes = 4 * (last + 1);
        if chosen != self.tokens {
            backend.copy(chosen.part(0, bytes), self.tokens.part(0, bytes));
        }
        for row in (0..staged.rows).filter(|&row| staged.token(self, row) != NEXT) {
            backend.write(self.tokens.part(4 * row, 4), &staged.token(self, row).to_le_bytes());
        }
    }
}

impl Staged {
    /// Lays out a batch for `buffer`. `tile_tokens`: of a tile of attention over many rows.
    pub fn set(&mut self, batch: &Batch<'_>, buffer: &PassBuffer, tile_tokens: usize) {
        self.rows = batch.rows();
        self.spans = batch.spans.len();
        self.logit_rows.clear();
        self.longest = batch.spans.iter().map(|span| span.tokens.len()).max().unwrap_or(0);
        self.single = batch.spans.iter().all(|span| span.tokens.len() == 1);
        self.context = batch.spans.iter().map(|span| span.start + span.tokens.len()).max().unwrap_or(0);
        self.tiles = 0;
        self.bytes.clear();
        self.bytes.resize(buffer.pages.offset, 0);
        let (mut first, mut pages) = (0, 0);
        for (index, span) in batch.spans.iter().enumerate() {
            let (slot, count) = (span.slot.0, span.tokens.len());
            put(&mut self.bytes, &buffer.spans, index, &[first as u32, count as u32, slot, span.start as u32]);
            for (at, &token) in span.tokens.iter().enumerate() {
                put(&mut self.bytes, &buffer.tokens, first + at, &[token]);
                put(&mut self.bytes, &buffer.rows, first + at, &[slot, (span.start + at) as u32, pages as u32, first as u32]);
            }
            for at in (0..count).step_by(tile_tokens) {
                let tokens = tile_tokens.min(count - at) as u32;
                put(&mut self.bytes, &buffer.tiles, self.tiles, &[(first + at) as u32, tokens, (span.start + at) as u32, pages as u32]);
                self.tiles += 1;
            }
            // Pages behind the span's last row are not read; a table may be longer.
            let used = (span.start + count).div_ceil(PAGE_TOKENS);
            self.bytes.extend(span.pages[..used].iter().flat_map(|page| page.0.to_le_bytes()));
            let rows = first as u32..(first + count) as u32;
            match span.logits {
                Logits::None => {}
                Logits::Last => self.logit_rows.extend(rows.last()),
                Logits::All => self.logit_rows.extend(rows),
            }
            (first, pages) = (first + count, pages + used);
        }
        for (at, &row) in self.logit_rows.iter().enumerate() {
            put(&mut self.bytes, &buffer.logit_rows, at, &[row]);
        }
    }

    fn token(&self, buffer: &PassBuffer, row: usize) -> u32 {
        let at = buffer.tokens.offset + 4 * row;
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    /// Whether every row gets logits, in order.
    pub fn all_rows_have_logits(&self) -> bool {
        self.logit_rows.len() == self.rows
    }
}

/// Writes words as entry `index` of a part.
fn put(bytes: &mut [u8], part: &View, index: usize, words: &[u32]) {
    let start = part.offset + index * 4 * words.len();
    for (to, word) in bytes[start..start + 4 * words.len()].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}
