//! Keeps what people wrote apart from the chat format's own markup.
//!
//! A message that contains the letters `<|im_end|>` must not end its turn. So before rendering, an invisible
//! mark is put inside every such spelling; the template cannot tell, the encoder no longer finds a control
//! token there, and the mark is taken out again just before the text around it is encoded as ordinary text.
//! Everything else is encoded exactly as if the rendered prompt had been encoded in one go, because text is
//! only ever cut at real markup.
//!
//! What is protected: control tokens (turn markers, end of text, images) everywhere; in tool results, which
//! come from outside, every added token. Elsewhere think and tool tags keep their meaning, since templates
//! and prompts rely on it.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use crate::TextError;
use crate::vocabulary::Vocabulary;

/// A noncharacter: valid in a string, never in a text meant for others. Where it occurs all the same, it is
/// doubled.
const MARK: char = '\u{FDD0}';

pub(crate) struct Guard {
    control: AhoCorasick,
    any: AhoCorasick,
}

impl Guard {
    pub fn new(vocabulary: &Vocabulary) -> Result<Guard, TextError> {
        let finder = |all: bool| {
            let spellings = vocabulary.added.iter().filter(|t| t.text.chars().count() > 1 && (all || t.control)).map(|t| t.text.as_str());
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(spellings)
                .map_err(|error| TextError::file("tokenizer.json", error))
        };
        Ok(Guard { control: finder(false)?, any: finder(true)? })
    }

    /// Protects against control tokens.
    pub fn text(&self, text: &str) -> String {
        mark(text, &self.control)
    }

    /// Protects against every added token.
    pub fn foreign_text(&self, text: &str) -> String {
        mark(text, &self.any)
    }

    pub fn json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.json(item)).collect()),
            Value::Object(map) => Value::Object(self.json_map(map)),
            other => other.clone(),
        }
    }

    pub fn json_map(&self, map: &Map<String, Value>) -> Map<String, Value> {
        map.iter().map(|(key, value)| (self.text(key), self.json(value))).collect()
    }
}

fn mark(text: &str, finder: &AhoCorasick) -> String {
    let text = text.replace(MARK, "\u{FDD0}\u{FDD0}");
    let mut marked = String::with_capacity(text.len());
    let mut done = 0;
    for found in finder.find_iter(&text) {
        let first_letter = text[found.start()..].chars().next().map_or(0, char::len_utf8);
        marked.push_str(&text[done..found.start() + first_letter]);
        marked.push(MARK);
        done = found.start() + first_letter;
    }
    marked.push_str(&text[done..]);
    marked
}

/// Takes the marks out: a single one disappears, a doubled one becomes one.
pub(crate) fn unmark(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != MARK {
            plain.push(letter);
        } else if let Some(next) = letters.next() {
            // The letter after a single mark is never a mark: spellings begin with one letter that is none.
            plain.push(next);
        }
    }
    plain
}
