//! Where an argument's value ends.
//!
//! A value is free text: code, markup, even examples of this very format. So a closing tag counts only where
//! the format can go on after it: `</parameter>` before another parameter or the function's end, `</function>`
//! before the end of the call. Inside an example that the value itself opened with `<function=`, tags belong
//! to the example, unless nothing follows them.

use crate::tags::{CALL, CALL_END};

pub(crate) const PARAMETER: &[u8] = b"<parameter=";
pub(crate) const PARAMETER_END: &[u8] = b"</parameter>";
pub(crate) const FUNCTION: &[u8] = b"<function=";
pub(crate) const FUNCTION_END: &[u8] = b"</function>";
const CALL_END_SPELLED: &[u8] = b"</tool_call>";

/// White space between closing tags beyond this is not format.
const SPACE_MAX: usize = 256;

/// What stands at a position of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Text of the value: this many bytes.
    Text(usize),
    /// The value ends here; reading goes on at this position.
    End(usize),
    /// It depends on what follows.
    Unknown,
}

/// What is known while a value is read.
pub(crate) struct Closing<'a> {
    /// Text and tags that have not been read yet.
    pub buffer: &'a [u8],
    /// Nothing follows the buffer.
    pub ended: bool,
    /// How many examples the value has opened.
    pub depth: usize,
    /// Whether a name is a parameter of this tool that has no value yet.
    pub expects: &'a dyn Fn(&str) -> bool,
}

/// How the buffer compares with a spelling at one position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    Yes,
    No,
    /// The buffer ends inside the spelling.
    Cut,
}

pub(crate) fn fit(rest: &[u8], spelling: &[u8]) -> Fit {
    if rest.starts_with(spelling) {
        Fit::Yes
    } else if spelling.starts_with(rest) {
        Fit::Cut
    } else {
        Fit::No
    }
}

impl Closing<'_> {
    /// What stands at `at`, where the buffer has a `<` or a tag.
    pub fn at(&self, at: usize) -> Found {
        let rest = &self.buffer[at..];
        match rest[0] {
            CALL_END => self.after_call_end(at + 1, at, Found::Text(1)),
            b'<' => {
                for (spelling, found) in [
                    (PARAMETER_END, Closing::after_parameter as fn(&Self, usize) -> Found),
                    (FUNCTION_END, Closing::after_function),
                    (PARAMETER, Closing::missing_end),
                    (FUNCTION, Closing::example),
                ] {
                    match fit(rest, spelling) {
                        Fit::Yes => return found(self, at),
                        Fit::Cut if self.ended => return self.cut(rest.len(), at),
                        Fit::Cut => return Found::Unknown,
                        Fit::No => {}
                    }
                }
                Found::Text(1)
            }
            _ => Found::Text(1),
        }
    }

    /// The output was cut inside a tag: two letters of one, or one on its own line, are not text that anyone meant.
    fn cut(&self, letters: usize, at: usize) -> Found {
        let begins_line = at > 0 && self.buffer[at - 1] == b'\n';
        if letters > 1 || begins_line { Found::End(at + letters) } else { Found::Text(1) }
    }

    fn example(&self, _at: usize) -> Found {
        Found::Text(FUNCTION.len())
    }

    fn after_parameter(&self, at: usize) -> Found {
        let text = Found::Text(PARAMETER_END.len());
        let Some(next) = self.skip_space(at + PARAMETER_END.len()) else { return text };
        let rest = &self.buffer[next..];
        match rest.first() {
            None => return if self.ended { Found::End(next) } else { Found::Unknown },
            Some(&CALL_END) if self.depth == 0 => return Found::End(next),
            Some(&CALL_END) => return self.after_call_end(next + 1, next, text),
            Some(&CALL) => return if self.depth == 0 { Found::End(next) } else { text },
            _ => {}
        }
        match (fit(rest, PARAMETER), fit(rest, FUNCTION_END)) {
            (Fit::Cut, _) | (_, Fit::Cut) => {
                if self.ended {
                    Found::End(next)
                } else {
                    Found::Unknown
                }
            }
            (Fit::Yes, _) if self.depth == 0 => Found::End(next),
            (Fit::Yes, _) => self.if_expected(next, text),
            (_, Fit::Yes) if self.depth == 0 => Found::End(next),
            (_, Fit::Yes) => self.after_function_in_example(next, text),
            _ => text,
        }
    }

    /// `</function>` with no `</parameter>` before it.
    fn after_function(&self, at: usize) -> Found {
        let text = Found::Text(FUNCTION_END.len());
        if self.depth > 0 {
            return self.after_function_in_example(at, text);
        }
        let Some(next) = self.skip_space(at + FUNCTION_END.len()) else { return text };
        let rest = &self.buffer[next..];
        match rest.first() {
            None if self.ended => Found::End(at),
            None => Found::Unknown,
            Some(&CALL_END | &CALL) => Found::End(at),
            Some(_) => match fit(rest, CALL_END_SPELLED) {
                Fit::Yes => Found::End(at),
                Fit::Cut if self.ended => Found::End(at),
                Fit::Cut => Found::Unknown,
                Fit::No => text,
            },
        }
    }

    /// `</function>` while an example is open: the call's own only if the call ends with it.
    fn after_function_in_example(&self, at: usize, text: Found) -> Found {
        let Some(next) = self.skip_space(at + FUNCTION_END.len()) else { return text };
        match self.buffer.get(next) {
            None if self.ended => Found::End(at),
            None => Found::Unknown,
            Some(&CALL_END) => self.after_call_end(next + 1, at, text),
            Some(_) => text,
        }
    }

    /// `</tool_call>` where the value was not closed: the end only if nothing but another call follows.
    fn after_call_end(&self, after: usize, resume: usize, text: Found) -> Found {
        let Some(next) = self.skip_space(after) else { return text };
        match self.buffer.get(next) {
            None if self.ended => Found::End(resume),
            None => Found::Unknown,
            Some(&CALL) => Found::End(resume),
            Some(_) => text,
        }
    }

    /// `<parameter=` with no `</parameter>` before it: the next parameter if it begins a line and the tool
    /// still waits for a value of that name.
    fn missing_end(&self, at: usize) -> Found {
        let begins_line = at > 0 && self.buffer[at - 1] == b'\n';
        let text = Found::Text(PARAMETER.len());
        if begins_line && self.depth == 0 { self.if_expected(at, text) } else { text }
    }

    fn if_expected(&self, at: usize, text: Found) -> Found {
        let name = &self.buffer[at + PARAMETER.len()..];
        match name.iter().position(|byte| matches!(byte, b'>' | b'\n')) {
            Some(end) if (self.expects)(&String::from_utf8_lossy(&name[..end])) => Found::End(at),
            Some(_) => text,
            None if name.len() > SPACE_MAX => text,
            None if self.ended => Found::End(at),
            None => Found::Unknown,
        }
    }

    /// The next position that is not white space; `None` when there is too much of it.
    fn skip_space(&self, from: usize) -> Option<usize> {
        let space = self.buffer[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        (space <= SPACE_MAX).then_some(from + space)
    }
}
