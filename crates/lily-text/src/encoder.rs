//! Text to tokens. Added tokens (turn markers, think and tool tags) are cut out first; what lies between
//! goes through normalisation, pre-tokenisation and BPE. The cut is made here and not by the tokenizers
//! crate, because the caller decides which spellings are markup and which are only text that spells it.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::tokenizer::{NormalizedString, OffsetType, PreTokenizedString};
use tokenizers::{Model, Normalizer, PreTokenizer, Tokenizer};

use crate::TextError;
use crate::vocabulary::{AddedToken, Vocabulary};

pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    /// Finds the added tokens, longest first; pattern i is `ids[i]`.
    markup: AhoCorasick,
    ids: Vec<u32>,
}

impl Encoder {
    pub fn new(tokenizer: Tokenizer, vocabulary: &Vocabulary) -> Result<Encoder, TextError> {
        let added: Vec<&AddedToken> = vocabulary.added.iter().filter(|t| !t.text.is_empty()).collect();
        let markup = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(added.iter().map(|t| &t.text))
            .map_err(|error| TextError::file("tokenizer.json", error))?;
        Ok(Encoder { tokenizer, markup, ids: added.iter().map(|t| t.id).collect() })
    }

    /// Encodes text whose added-token spellings are all markup. No token is added at either end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_with(text, |plain| self.encode_plain(plain))
    }

    /// Cuts at markup and encodes the rest with `plain`.
    pub fn encode_with(&self, text: &str, plain: impl FnMut(&str) -> Result<Vec<u32>, TextError>) -> Result<Vec<u32>, TextError> {
        let mut tokens = Vec::with_capacity(text.len() / 4);
        self.encode_cut(text, plain, &mut tokens, |_, _| {})?;
        Ok(tokens)
    }

    /// The same, appended to `tokens`; `cut` hears the bytes read and the length of `tokens` behind each markup.
    pub fn encode_cut(
        &self,
        text: &str,
        mut plain: impl FnMut(&str) -> Result<Vec<u32>, TextError>,
        tokens: &mut Vec<u32>,
        mut cut: impl FnMut(usize, usize),
    ) -> Result<(), TextError> {
        let mut done = 0;
        for found in self.markup.find_iter(text) {
            if done < found.start() {
                tokens.extend(plain(&text[done..found.start()])?);
            }
            tokens.push(self.ids[found.pattern().as_usize()]);
            done = found.end();
            cut(done, tokens.len());
        }
        if done < text.len() {
            tokens.extend(plain(&text[done..])?);
        }
        Ok(())
    }

    /// Encodes text in which nothing is markup.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.try_encode_plain(text).map_err(|error| TextError::Encode(error.to_string()))
    }

    fn try_encode_plain(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer.normalize(&mut normalized)?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}
