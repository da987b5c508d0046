//! [`OutputParser`]: token ids to events.
//!
//! Start with [`OutputParser::push`]. A token becomes bytes, or a tag; whole characters and tags go to whoever
//! reads at the moment: the thinking, the content, or an open tool call. Think and tool tags are recognised
//! by token id, never by spelling: letters that only look like a tag are text.

use std::sync::Arc;

use crate::Tool;
use crate::bare_call::BareCallWatch;
use crate::output::{OutputEvent, OutputOptions};
use crate::tags::{CALL, CALL_END, THINK, THINK_END, is_tag, spelled, tag_of};
use crate::tool_call::{Progress, ToolCallReader};
use crate::utf8::Utf8Assembler;
use crate::vocabulary::Vocabulary;
use crate::writers::{ContentWriter, ReasoningWriter};

/// Reads one answer. Feed it every generated token, then [`finish`](OutputParser::finish).
pub struct OutputParser {
    vocabulary: Arc<Vocabulary>,
    assembler: Utf8Assembler,
    /// Completions know no tags.
    chat: bool,
    thinking: bool,
    tools: Vec<Tool>,
    call: Option<ToolCallReader>,
    calls: usize,
    bare_calls: BareCallWatch,
    reasoning: ReasoningWriter,
    content: ContentWriter,
    stopped: bool,
}

impl OutputParser {
    pub(crate) fn chat(vocabulary: Arc<Vocabulary>, options: OutputOptions) -> OutputParser {
        let content = ContentWriter::answer(options.stop, !options.tools.is_empty());
        let parser = OutputParser::completion(vocabulary, Vec::new());
        OutputParser {
            chat: true,
            thinking: options.in_thinking,
            bare_calls: BareCallWatch::new(&options.tools),
            tools: options.tools,
            content,
            ..parser
        }
    }

    pub(crate) fn completion(vocabulary: Arc<Vocabulary>, stop: Vec<String>) -> OutputParser {
        OutputParser {
            vocabulary,
            assembler: Utf8Assembler::default(),
            chat: false,
            thinking: false,
            tools: Vec::new(),
            call: None,
            calls: 0,
            bare_calls: BareCallWatch::new(&[]),
            reasoning: ReasoningWriter::default(),
            content: ContentWriter::verbatim(stop),
            stopped: false,
        }
    }

    /// Reads the next token and appends the events that it completes.
    ///
    /// Control tokens (end of turn and the like) say nothing and are skipped, as are ids without text.
    pub fn push(&mut self, token: u32, out: &mut Vec<OutputEvent>) {
        if self.stopped || self.vocabulary.is_control(token) {
            return;
        }
        let mut text = String::new();
        let tag = tag_of(token, &self.vocabulary.special).filter(|_| self.chat);
        match tag {
            Some(_) => self.assembler.finish(&mut text),
            None => self.assembler.push(self.vocabulary.bytes(token), &mut text),
        }
        let mut input = text.into_bytes();
        input.extend(tag);
        self.read(input, out);
    }

    /// Nothing follows: passes on what was held back, and ends an open tool call with what it has.
    pub fn finish(&mut self, out: &mut Vec<OutputEvent>) {
        let mut text = String::new();
        self.assembler.finish(&mut text);
        self.read(text.into_bytes(), out);
        while let Some(mut call) = self.call.take() {
            let progress = call.finish(&self.tools, out);
            let rest = self.after_call_input(call, progress, out);
            self.read(rest, out);
        }
        if !self.stopped {
            self.flush_watch(out);
        }
        if !self.stopped {
            self.content.finish(out);
        }
        self.stopped = true;
    }

    /// A stop text matched, or the parser was finished: further tokens are ignored.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether the next token would be part of a think block.
    pub fn is_thinking(&self) -> bool {
        self.thinking
    }

    /// Reads whole characters and tags.
    fn read(&mut self, mut input: Vec<u8>, out: &mut Vec<OutputEvent>) {
        while !input.is_empty() && !self.stopped {
            if let Some(mut call) = self.call.take() {
                let progress = call.push(&input, &self.tools, out);
                input = self.after_call_input(call, progress, out);
                continue;
            }
            let rest = input.split_off(input.iter().position(|byte| is_tag(*byte)).unwrap_or(input.len()).max(1));
            let run = std::mem::replace(&mut input, rest);
            if is_tag(run[0]) {
                self.tag(run[0], out);
            } else if let Some(call) = self.text(&spelled(&run), out) {
                input.splice(0..0, call.into_bytes());
            }
        }
    }

    /// Goes on after input went to a call. Returns what the call left.
    fn after_call_input(&mut self, call: ToolCallReader, progress: Progress, out: &mut Vec<OutputEvent>) -> Vec<u8> {
        if call.has_started() {
            if std::mem::take(&mut self.thinking) {
                // A call inside the thinking ends it: some answers forget to close the block.
                self.reasoning.end();
            }
            self.content.begin_call();
        }
        match progress {
            Progress::More => {
                self.call = Some(call);
                Vec::new()
            }
            Progress::Done { rest } => {
                self.calls += 1;
                self.bare_calls.begin_line();
                rest
            }
            Progress::NoCall { text, rest } => {
                self.plain(&text, out);
                rest
            }
        }
    }

    fn tag(&mut self, tag: u8, out: &mut Vec<OutputEvent>) {
        self.flush_watch(out);
        if self.stopped {
            return;
        }
        self.bare_calls.begin_line();
        match tag {
            THINK_END if self.thinking => {
                self.reasoning.end();
                self.thinking = false;
                self.content.begin_anew();
            }
            THINK if !self.thinking && self.content.is_fresh() => self.thinking = true,
            THINK if self.thinking && !self.reasoning.has_started() => {}
            THINK_END if self.content.is_fresh() => {}
            CALL_END if !self.thinking && self.content.follows_call() => {}
            CALL if !self.tools.is_empty() => {
                self.content.settle(out);
                self.call = Some(ToolCallReader::wrapped(self.calls));
            }
            // A tag without meaning here is something that the model wanted to write.
            _ => self.plain(&spelled(&[tag]), out),
        }
    }

    /// Reads text. Returns the beginning of a call that lacks its `<tool_call>`, with what follows.
    fn text(&mut self, text: &str, out: &mut Vec<OutputEvent>) -> Option<String> {
        if self.thinking {
            self.plain(text, out);
            return None;
        }
        let mut plain = String::new();
        let call = self.bare_calls.push(text, &mut plain);
        self.plain(&plain, out);
        if call.is_some() && !self.stopped {
            self.content.settle(out);
            self.call = Some(ToolCallReader::bare(self.calls));
        }
        call
    }

    fn flush_watch(&mut self, out: &mut Vec<OutputEvent>) {
        let mut plain = String::new();
        self.bare_calls.flush(&mut plain);
        self.plain(&plain, out);
    }

    fn plain(&mut self, text: &str, out: &mut Vec<OutputEvent>) {
        if text.is_empty() {
        } else if self.thinking {
            self.reasoning.push(text, out);
        } else {
            self.stopped |= self.content.push(text, out);
        }
    }
}
