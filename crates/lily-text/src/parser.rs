//! [`OutputParser`]: token ids to events.
//!
//! Start with [`OutputParser::push`]. Think and tool tags are recognised by token id, never by spelling:
//! letters that only look like a tag are text.

use std::sync::Arc;

use crate::output::{OutputEvent, OutputOptions};
use crate::utf8::Utf8Assembler;
use crate::vocabulary::Vocabulary;
use crate::writers::{ContentWriter, ReasoningWriter};

/// Reads one answer. Feed it every generated token, then [`finish`](OutputParser::finish).
pub struct OutputParser {
    vocabulary: Arc<Vocabulary>,
    assembler: Utf8Assembler,
    chat: bool,
    thinking: bool,
    reasoning: ReasoningWriter,
    content: ContentWriter,
    stopped: bool,
}

impl OutputParser {
    pub(crate) fn chat(vocabulary: Arc<Vocabulary>, options: OutputOptions) -> OutputParser {
        let content = ContentWriter::new(options.stop, false, !options.tools.is_empty());
        OutputParser::new(vocabulary, true, options.in_thinking, content)
    }

    pub(crate) fn completion(vocabulary: Arc<Vocabulary>, stop: Vec<String>) -> OutputParser {
        OutputParser::new(vocabulary, false, false, ContentWriter::new(stop, true, false))
    }

    fn new(vocabulary: Arc<Vocabulary>, chat: bool, thinking: bool, content: ContentWriter) -> OutputParser {
        let (assembler, reasoning) = (Utf8Assembler::default(), ReasoningWriter::default());
        OutputParser { vocabulary, assembler, chat, thinking, reasoning, content, stopped: false }
    }

    /// Reads the next token and appends the events that it completes.
    pub fn push(&mut self, token: u32, out: &mut Vec<OutputEvent>) {
        if self.stopped || self.vocabulary.is_control(token) {
            return;
        }
        let mut text = String::new();
        let special = &self.vocabulary.special;
        if self.chat && self.thinking && Some(token) == special.think_end {
            self.assembler.finish(&mut text);
            self.reasoning.push(&text, out);
            self.reasoning.end();
            self.thinking = false;
            return;
        }
        if self.chat && !self.thinking && self.content.is_fresh() && Some(token) == special.think {
            self.thinking = true;
            return;
        }
        self.assembler.push(self.vocabulary.bytes(token), &mut text);
        self.text(&text, out);
    }

    /// Nothing follows: passes on what was held back.
    pub fn finish(&mut self, out: &mut Vec<OutputEvent>) {
        if self.stopped {
            return;
        }
        let mut text = String::new();
        self.assembler.finish(&mut text);
        self.text(&text, out);
        if !self.stopped {
            self.content.finish(out);
        }
        self.stopped = true;
    }

    /// A stop text matched, or the parser was finished.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn text(&mut self, text: &str, out: &mut Vec<OutputEvent>) {
        if self.thinking {
            self.reasoning.push(text, out);
        } else {
            self.stopped = self.content.push(text, out);
        }
    }
}
