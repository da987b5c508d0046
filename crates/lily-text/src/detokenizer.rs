//! Tokens to text, piece by piece.

use std::sync::Arc;

use crate::utf8::Utf8Assembler;
use crate::vocabulary::Vocabulary;

/// Text of a growing token sequence. Never hands out part of a character; control tokens are left out.
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    assembler: Utf8Assembler,
}

impl Detokenizer {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>) -> Detokenizer {
        Detokenizer { vocabulary, assembler: Utf8Assembler::default() }
    }

    /// Appends to `text` what this token completes.
    pub fn push(&mut self, token: u32, text: &mut String) {
        if !self.vocabulary.is_control(token) {
            self.assembler.push(self.vocabulary.bytes(token), text);
        }
    }

    /// Nothing follows: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        self.assembler.finish(text);
    }
}
