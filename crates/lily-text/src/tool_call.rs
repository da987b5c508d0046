//! Reads one tool call.
//!
//! ```text
//! <tool_call>              a token of its own; may be missing
//! <function=NAME>
//! <parameter=KEY>
//! VALUE                    free text, any number of lines
//! </parameter>
//! </function>
//! </tool_call>             a token of its own; may be missing
//! ```
//! It looks like XML and is not: nothing is escaped. Start with [`ToolCallReader::push`]. Where a value ends
//! is the hard part: see `closing`. Until the function's name is known nothing is certain, so until then all
//! input is kept and can be given back as text.

use std::hash::{BuildHasher, RandomState};

use serde_json::Value;

use crate::Tool;
use crate::arguments::ArgumentsWriter;
use crate::closing::{Closing, FUNCTION, FUNCTION_END, Fit, Found, PARAMETER, fit};
use crate::output::OutputEvent;
use crate::schema::Parameters;
use crate::tags::{CALL, CALL_END, is_tag, spelled};
use crate::whole_call;

/// A function's name longer than this is none.
const NAME_MAX: usize = 256;
const CALL_END_SPELLED: &[u8] = b"</tool_call>";

/// What became of the input.
#[derive(Debug, PartialEq)]
pub(crate) enum Progress {
    /// All of it was read; the call goes on.
    More,
    /// The call is complete; `rest` follows it.
    Done { rest: Vec<u8> },
    /// This is no call: `text` is what looked like one, `rest` follows it.
    NoCall { text: String, rest: Vec<u8> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before `<function=`, or the `{` of a call in JSON.
    Opening,
    FunctionName,
    /// Between the parameters.
    Body,
    ParameterName,
    ValueStart,
    Value,
    /// After `</function>`.
    Closed,
    /// A call in JSON, or a function whose body is a JSON object: read whole.
    Whole,
}

/// What a state made of the buffer.
enum Step {
    Next(State),
    /// The buffer ends too early to go on.
    Wait,
    Done,
    NoCall,
}

/// One tool call while it is read.
#[derive(Debug)]
pub(crate) struct ToolCallReader {
    index: usize,
    wrapped: bool,
    state: State,
    /// Text and tags that are not read yet.
    buffer: Vec<u8>,
    /// What was read, as long as the call is not certain.
    raw: Vec<u8>,
    name: String,
    started: bool,
    ended: bool,
    arguments: ArgumentsWriter,
    /// Examples of the format that the value has opened.
    depth: usize,
}

static NO_SCHEMA: Value = Value::Null;

impl ToolCallReader {
    /// A call whose `<tool_call>` was read.
    pub fn wrapped(index: usize) -> ToolCallReader {
        ToolCallReader { wrapped: true, raw: vec![CALL], ..ToolCallReader::bare(index) }
    }

    /// A call that begins with `<function=` alone.
    pub fn bare(index: usize) -> ToolCallReader {
        ToolCallReader {
            index,
            wrapped: false,
            state: State::Opening,
            buffer: Vec::new(),
            raw: Vec::new(),
            name: String::new(),
            started: false,
            ended: false,
            arguments: ArgumentsWriter::default(),
            depth: 0,
        }
    }

    /// It is certain that this is a call: its first event was sent.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Reads more of the output: text and tags.
    pub fn push(&mut self, input: &[u8], tools: &[Tool], out: &mut Vec<OutputEvent>) -> Progress {
        self.buffer.extend_from_slice(input);
        let mut json = String::new();
        let progress = self.advance(tools, &mut json, out);
        if !json.is_empty() {
            out.push(OutputEvent::ToolCallArguments { index: self.index, json });
        }
        progress
    }

    /// Nothing follows: the call ends with what it has.
    pub fn finish(&mut self, tools: &[Tool], out: &mut Vec<OutputEvent>) -> Progress {
        self.ended = true;
        self.push(&[], tools, out)
    }

    fn advance(&mut self, tools: &[Tool], json: &mut String, out: &mut Vec<OutputEvent>) -> Progress {
        loop {
            let step = match self.state {
                State::Opening => self.opening(),
                State::FunctionName => self.function_name(),
                State::Body => self.body(json, out),
                State::ParameterName => self.parameter_name(tools, json),
                State::ValueStart => self.value_start(),
                State::Value => self.value(tools, json),
                State::Closed => self.closed(),
                State::Whole => self.whole(json, out),
            };
            match step {
                Step::Next(state) => self.state = state,
                Step::Wait => return Progress::More,
                Step::Done => return Progress::Done { rest: std::mem::take(&mut self.buffer) },
                Step::NoCall => {
                    let text = spelled(&std::mem::take(&mut self.raw));
                    return Progress::NoCall { text, rest: std::mem::take(&mut self.buffer) };
                }
            }
        }
    }

    fn opening(&mut self) -> Step {
        self.drop_space();
        match fit(&self.buffer, FUNCTION) {
            Fit::Yes => {
                self.consume(FUNCTION.len());
                Step::Next(State::FunctionName)
            }
            Fit::Cut if !self.ended => Step::Wait,
            _ if self.wrapped && self.buffer.first() == Some(&b'{') => Step::Next(State::Whole),
            _ => Step::NoCall,
        }
    }

    fn function_name(&mut self) -> Step {
        match self.take_name() {
            Name::Is(name) => {
                self.name = name;
                Step::Next(State::Body)
            }
            Name::Unfinished if !self.ended && self.buffer.len() <= NAME_MAX => Step::Wait,
            _ => Step::NoCall,
        }
    }

    fn body(&mut self, json: &mut String, out: &mut Vec<OutputEvent>) -> Step {
        self.drop_space();
        let (parameter, end) = (fit(&self.buffer, PARAMETER), fit(&self.buffer, FUNCTION_END));
        if parameter == Fit::Yes {
            self.start(out);
            self.consume(PARAMETER.len());
            return Step::Next(State::ParameterName);
        }
        if (parameter == Fit::Cut || end == Fit::Cut) && !self.ended {
            return Step::Wait;
        }
        if end == Fit::Yes {
            self.start(out);
            self.arguments.finish(json);
            self.consume(FUNCTION_END.len());
            return Step::Next(State::Closed);
        }
        match self.buffer.first() {
            Some(b'{') if !self.started => return Step::Next(State::Whole),
            Some(&CALL_END) => self.consume(1),
            Some(&CALL) | None => {}
            Some(_) if !self.started && !self.ended_inside(PARAMETER) && !self.ended_inside(FUNCTION_END) => return Step::NoCall,
            Some(_) if self.ended_inside(PARAMETER) || self.ended_inside(FUNCTION_END) => self.buffer.clear(),
            Some(_) => {}
        }
        self.start(out);
        self.arguments.finish(json);
        Step::Done
    }

    fn parameter_name(&mut self, tools: &[Tool], json: &mut String) -> Step {
        let ends_line = self.buffer.iter().find(|byte| matches!(byte, b'>' | b'\n')) == Some(&b'\n');
        match self.take_name() {
            Name::Is(name) => {
                self.arguments.open(&name, &self.parameters(tools), json);
                self.depth = 0;
                Step::Next(if ends_line { State::Value } else { State::ValueStart })
            }
            Name::Unfinished if !self.ended => Step::Wait,
            Name::Unfinished => {
                self.buffer.clear();
                Step::Next(State::Body)
            }
            Name::Broken(at) => {
                self.consume(at);
                Step::Next(State::Body)
            }
        }
    }

    /// The line break after the parameter's name is the format's.
    fn value_start(&mut self) -> Step {
        match self.buffer.as_slice() {
            [] | [b'\r'] if !self.ended => return Step::Wait,
            [b'\n', ..] => self.consume(1),
            [b'\r', b'\n', ..] => self.consume(2),
            _ => {}
        }
        Step::Next(State::Value)
    }

    fn value(&mut self, tools: &[Tool], json: &mut String) -> Step {
        let parameters = self.parameters(tools);
        let mut from = 0;
        while let Some(offset) = self.buffer[from..].iter().position(|byte| matches!(*byte, b'<' | CALL_END)) {
            let at = from + offset;
            let expects = |name: &str| parameters.knows(name) && !self.arguments.has(name);
            let closing = Closing { buffer: &self.buffer, ended: self.ended, depth: self.depth, expects: &expects };
            match closing.at(at) {
                Found::Text(length) => {
                    self.follow_examples(at);
                    from = at + length;
                }
                Found::Unknown => {
                    self.pass_value(at, json);
                    return Step::Wait;
                }
                Found::End(resume) => {
                    let line_break = self.pass_value(at, json);
                    self.consume(line_break + resume - at);
                    self.arguments.close(json);
                    return Step::Next(State::Body);
                }
            }
        }
        let line_break = self.pass_value(self.buffer.len(), json);
        if !self.ended {
            return Step::Wait;
        }
        self.consume(line_break);
        self.arguments.close(json);
        Step::Next(State::Body)
    }

    /// Passes on the value up to `at`, without a line break there: before a closing tag it is the format's.
    /// What was passed leaves the buffer. Returns the length of the line break.
    fn pass_value(&mut self, at: usize, json: &mut String) -> usize {
        let line_break = match &self.buffer[..at] {
            [.., b'\r', b'\n'] => 2,
            [.., b'\n' | b'\r'] => 1,
            _ => 0,
        };
        let text = spelled(&self.buffer[..at - line_break]);
        self.consume(at - line_break);
        self.arguments.push(&text, json);
        line_break
    }

    /// Counts the examples of the format inside a value.
    fn follow_examples(&mut self, at: usize) {
        if self.buffer[at..].starts_with(FUNCTION) {
            self.depth += 1;
        } else if self.buffer[at..].starts_with(FUNCTION_END) {
            self.depth = self.depth.saturating_sub(1);
        }
    }

    fn closed(&mut self) -> Step {
        self.drop_space();
        match self.buffer.first() {
            None if !self.ended => return Step::Wait,
            Some(&CALL_END) => {
                self.consume(1);
                return Step::Done;
            }
            _ => {}
        }
        if self.wrapped {
            let (spelled_end, second) = (fit(&self.buffer, CALL_END_SPELLED), fit(&self.buffer, FUNCTION));
            if spelled_end == Fit::Yes {
                self.consume(CALL_END_SPELLED.len());
            } else if second == Fit::Yes {
                // A second function in the same block is a call of its own.
                self.buffer.insert(0, CALL);
            } else if (spelled_end == Fit::Cut || second == Fit::Cut) && !self.ended {
                return Step::Wait;
            }
        }
        Step::Done
    }

    fn whole(&mut self, json: &mut String, out: &mut Vec<OutputEvent>) -> Step {
        let end = self.buffer.iter().position(|byte| is_tag(*byte));
        if end.is_none() && !self.ended {
            return Step::Wait;
        }
        let end = end.unwrap_or(self.buffer.len());
        let text = spelled(&self.buffer[..end]);
        let read = if self.name.is_empty() {
            whole_call::read_call(&text)
        } else {
            whole_call::read_body(&text).map(|arguments| (self.name.clone(), arguments))
        };
        let Some((name, arguments)) = read else { return Step::NoCall };
        self.name = name;
        self.start(out);
        json.push_str(&arguments);
        self.consume(end);
        if self.buffer.first() == Some(&CALL_END) {
            self.consume(1);
        }
        Step::Done
    }

    fn start(&mut self, out: &mut Vec<OutputEvent>) {
        if !self.started {
            self.started = true;
            self.raw.clear();
            out.push(OutputEvent::ToolCallStart { index: self.index, id: new_id(), name: self.name.clone() });
        }
    }

    fn parameters<'t>(&self, tools: &'t [Tool]) -> Parameters<'t> {
        let tool = tools.iter().find(|tool| tool.name == self.name);
        Parameters::new(tool.and_then(|tool| tool.parameters.as_ref()).unwrap_or(&NO_SCHEMA))
    }

    /// The name at the start of the buffer, up to `>` or the end of the line.
    fn take_name(&mut self) -> Name {
        let Some(end) = self.buffer.iter().position(|byte| matches!(byte, b'>' | b'\n') || is_tag(*byte)) else {
            return Name::Unfinished;
        };
        let name = spelled(&self.buffer[..end]).trim().trim_matches(['"', '\'']).to_owned();
        if is_tag(self.buffer[end]) || name.is_empty() {
            return Name::Broken(end);
        }
        self.consume(end + 1);
        Name::Is(name)
    }

    /// The output was cut inside this tag.
    fn ended_inside(&self, tag: &[u8]) -> bool {
        self.ended && !self.buffer.is_empty() && fit(&self.buffer, tag) == Fit::Cut
    }

    fn drop_space(&mut self) {
        let space = self.buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.consume(space);
    }

    fn consume(&mut self, length: usize) {
        let read = self.buffer.drain(..length);
        if !self.started {
            self.raw.extend(read);
        }
    }
}

enum Name {
    Is(String),
    Unfinished,
    /// A tag or nothing stands where the name should be; it ends here.
    Broken(usize),
}

/// An id that no other call of any answer has.
fn new_id() -> String {
    let random = || RandomState::new().hash_one(std::time::SystemTime::now());
    format!("call_{:016x}{:08x}", random(), random() as u32)
}
