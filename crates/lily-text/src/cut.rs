//! The same text in other tokens: whoever reads output must not depend on where the model cut it.

use std::collections::HashMap;

use crate::vocabulary::Vocabulary;

/// Cuts the text between added tokens anew, into tokens of at most `bytes_max` bytes, the longest first.
/// Added tokens stay: they are markup, not text.
pub(crate) fn cut(vocabulary: &Vocabulary, tokens: &[u32], bytes_max: usize) -> Vec<u32> {
    let learned = (0..vocabulary.rows as u32).filter(|&token| !vocabulary.is_added(token));
    let by_bytes: HashMap<&[u8], u32> =
        learned.map(|token| (vocabulary.bytes(token), token)).filter(|(bytes, _)| !bytes.is_empty()).collect();
    let mut pieces = Vec::new();
    for run in tokens.chunk_by(|&a, &b| !vocabulary.is_added(a) && !vocabulary.is_added(b)) {
        if vocabulary.is_added(run[0]) {
            pieces.extend(run);
            continue;
        }
        let bytes: Vec<u8> = run.iter().flat_map(|&token| vocabulary.bytes(token)).copied().collect();
        // A tokenizer that lacks a single byte cannot write the text in shorter tokens.
        pieces.extend(cut_bytes(&by_bytes, &bytes, bytes_max.max(1)).unwrap_or_else(|| run.to_vec()));
    }
    pieces
}

fn cut_bytes(by_bytes: &HashMap<&[u8], u32>, mut bytes: &[u8], bytes_max: usize) -> Option<Vec<u32>> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let longest = bytes_max.min(bytes.len());
        let (length, token) = (1..=longest).rev().find_map(|length| Some((length, *by_bytes.get(&bytes[..length])?)))?;
        pieces.push(token);
        bytes = &bytes[length..];
    }
    Some(pieces)
}
