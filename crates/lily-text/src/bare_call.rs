//! Finds a call that lacks its `<tool_call>`: a line that begins with `<function=` and the name of a tool
//! that the request offers. Anything less is text.

use crate::Tool;

#[derive(Clone, Debug)]
pub(crate) struct BareCallWatch {
    /// `<function=NAME` of every tool.
    openings: Vec<String>,
    /// A `<` at the beginning of a line, and what follows it, while it may become an opening.
    held: String,
    /// Only blanks since the line began.
    line_is_blank: bool,
}

impl BareCallWatch {
    pub fn new(tools: &[Tool]) -> BareCallWatch {
        let openings = tools.iter().map(|tool| format!("<function={}", tool.name)).collect();
        BareCallWatch { openings, held: String::new(), line_is_blank: true }
    }

    /// Appends plain text to `plain`. Returns the beginning of a call, with all that follows it.
    pub fn push(&mut self, text: &str, plain: &mut String) -> Option<String> {
        if self.openings.is_empty() {
            plain.push_str(text);
            return None;
        }
        let mut rest = std::mem::take(&mut self.held);
        rest.push_str(text);
        while let Some(at) = rest.find('<') {
            self.pass(&rest[..at], plain);
            rest.drain(..at);
            match self.opening(&rest) {
                Some(true) => return Some(rest),
                Some(false) => {
                    self.held = rest;
                    return None;
                }
                None => {
                    self.pass("<", plain);
                    rest.drain(..1);
                }
            }
        }
        self.pass(&rest, plain);
        None
    }

    /// Something else follows: what was held is text.
    pub fn flush(&mut self, plain: &mut String) {
        let held = std::mem::take(&mut self.held);
        self.pass(&held, plain);
    }

    /// A tag stands here: what follows begins a line.
    pub fn begin_line(&mut self) {
        self.line_is_blank = true;
    }

    /// Whether `rest` is an opening (true), may become one (false), or is none.
    fn opening(&self, rest: &str) -> Option<bool> {
        if !self.line_is_blank {
            return None;
        }
        let mut possible = None;
        for opening in &self.openings {
            match rest.strip_prefix(opening.as_str()) {
                Some(after) if after.starts_with(['>', '\n']) => return Some(true),
                Some("") => possible = Some(false),
                None if opening.starts_with(rest) => possible = Some(false),
                _ => {}
            }
        }
        possible
    }

    fn pass(&mut self, text: &str, plain: &mut String) {
        let line = text.rfind('\n').map(|newline| &text[newline + 1..]);
        let blank = |line: &str| line.chars().all(|letter| matches!(letter, ' ' | '\t'));
        self.line_is_blank = match line {
            Some(line) => blank(line),
            None => self.line_is_blank && blank(text),
        };
        plain.push_str(text);
    }
}
