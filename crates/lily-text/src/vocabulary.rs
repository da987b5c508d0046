//! The tokenizer's tables: the bytes behind each token, and the ids that the chat format gives a meaning.

use std::collections::HashMap;

use tokenizers::{DecoderWrapper, Tokenizer};

use crate::TextError;

const FILE: &str = "tokenizer.json";

/// Ids of the chat format's markup. The turn markers are always there; a tokenizer without the other tags
/// serves models that neither think nor call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialIds {
    pub im_start: u32,
    pub im_end: u32,
    pub end_of_text: Option<u32>,
    pub think: Option<u32>,
    pub think_end: Option<u32>,
    pub tool_call: Option<u32>,
    pub tool_call_end: Option<u32>,
    pub tool_response: Option<u32>,
    pub tool_response_end: Option<u32>,
}

/// A token that the tokenizer file adds beside the learned vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub text: String,
    /// Control tokens (turn markers, padding, images): never part of what a reader sees.
    pub control: bool,
}

/// Token id to bytes, without locks or hashing: the parser looks up every generated token.
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[ends[id - 1]..ends[id]]`; ids that the tokenizer does not define are empty.
    ends: Vec<u32>,
    control: Vec<bool>,
    pub added: Vec<AddedToken>,
    pub special: SpecialIds,
    /// Rows of the model's embedding: ids at or past it do not exist.
    pub rows: usize,
}

impl Vocabulary {
    /// `rows` is the model's vocabulary size; the tokenizer may be smaller but not larger.
    pub fn new(tokenizer: &Tokenizer, rows: usize) -> Result<Vocabulary, TextError> {
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(TextError::file(FILE, "expected a byte-level decoder, as the qwen family has"));
        }
        let added = added_tokens(tokenizer)?;
        let learned = tokenizer.get_vocab(false);
        let largest = learned.values().copied().chain(added.iter().map(|t| t.id)).max();
        let Some(largest) = largest else {
            return Err(TextError::file(FILE, "the vocabulary is empty"));
        };
        if largest as usize >= rows {
            return Err(TextError::Mismatch(format!("its largest token id is {largest}, the model's embedding has {rows} rows")));
        }
        let special = special_ids(&added)?;
        let mut table: Vec<Vec<u8>> = vec![Vec::new(); largest as usize + 1];
        let byte_of = byte_level_alphabet();
        for (token, id) in &learned {
            table[*id as usize] = token_bytes(token, &byte_of);
        }
        let mut control = vec![false; table.len()];
        for token in &added {
            table[token.id as usize] = token.text.clone().into_bytes();
            control[token.id as usize] = token.control;
        }
        let mut ends = Vec::with_capacity(table.len());
        let mut bytes = Vec::new();
        for token in &table {
            bytes.extend_from_slice(token);
            ends.push(bytes.len() as u32);
        }
        Ok(Vocabulary { bytes, ends, control, added, special, rows })
    }

    /// The bytes of a token; empty for ids of the model that the tokenizer does not define.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let id = token as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub fn is_control(&self, token: u32) -> bool {
        self.control.get(token as usize).copied().unwrap_or(false)
    }

    /// Whether the tokenizer adds this token beside the learned ones.
    pub fn is_added(&self, token: u32) -> bool {
        self.added.binary_search_by_key(&token, |added| added.id).is_ok()
    }

    pub fn id_of(&self, added: &str) -> Option<u32> {
        self.added.iter().find(|t| t.text == added).map(|t| t.id)
    }
}

fn added_tokens(tokenizer: &Tokenizer) -> Result<Vec<AddedToken>, TextError> {
    let mut added = Vec::new();
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        if token.lstrip || token.rstrip || token.single_word {
            let problem = format!("added token {:?} uses lstrip, rstrip or single_word, which are not supported", token.content);
            return Err(TextError::file(FILE, problem));
        }
        added.push(AddedToken { id, text: token.content, control: token.special });
    }
    added.sort_by_key(|t| t.id);
    Ok(added)
}

fn special_ids(added: &[AddedToken]) -> Result<SpecialIds, TextError> {
    let find = |text: &str| added.iter().find(|t| t.text == text).map(|t| t.id);
    let must = |text: &str| find(text).ok_or_else(|| TextError::Mismatch(format!("it lacks the token {text} of the chat format")));
    Ok(SpecialIds {
        im_start: must("<|im_start|>")?,
        im_end: must("<|im_end|>")?,
        end_of_text: find("<|endoftext|>"),
        think: find("<think>"),
        think_end: find("</think>"),
        tool_call: find("<tool_call>"),
        tool_call_end: find("</tool_call>"),
        tool_response: find("<tool_response>"),
        tool_response_end: find("</tool_response>"),
    })
}

/// Byte-level BPE writes each byte as one printable character: itself where it is printable Latin-1,
/// otherwise the next free character from U+0100 on.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    let mut alphabet = HashMap::with_capacity(256);
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let letter = if printable {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).expect("U+0100 to U+0143 are characters")
        };
        alphabet.insert(letter, byte);
    }
    alphabet
}

/// A token outside the alphabet stands for its own text.
fn token_bytes(token: &str, byte_of: &HashMap<char, u8>) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|letter| byte_of.get(&letter).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}
