//! The last station of plain text: what surrounds it is trimmed, stop texts are cut, events leave.

use crate::output::OutputEvent;
use crate::stop::StopFilter;

/// Thinking: white space at both ends belongs to the format, not to the thought.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReasoningWriter {
    started: bool,
    /// White space that is passed on only if something follows.
    trailing: String,
}

impl ReasoningWriter {
    pub fn push(&mut self, text: &str, out: &mut Vec<OutputEvent>) {
        let text = if self.started { text } else { text.trim_start() };
        if text.is_empty() {
            return;
        }
        self.started = true;
        if let Some(ready) = hold_trailing(&mut self.trailing, text) {
            out.push(OutputEvent::Reasoning(ready));
        }
    }

    pub fn has_started(&self) -> bool {
        self.started
    }

    /// The block ended. A later block is set apart by an empty line.
    pub fn end(&mut self) {
        self.trailing.clear();
        if self.started {
            self.trailing.push_str("\n\n");
        }
    }
}

/// Returns what may be passed on now; white space at the end waits in `trailing`.
fn hold_trailing(trailing: &mut String, text: &str) -> Option<String> {
    let solid = text.trim_end();
    if solid.is_empty() {
        trailing.push_str(text);
        return None;
    }
    let mut ready = std::mem::take(trailing);
    ready.push_str(solid);
    trailing.push_str(&text[solid.len()..]);
    Some(ready)
}

/// Content: empty lines at its beginning go (they belong to the think block before it), stop texts end it,
/// and before a tool call so does the white space at its end.
#[derive(Clone, Debug)]
pub(crate) struct ContentWriter {
    stops: StopFilter,
    /// Completions pass every letter; answers are trimmed.
    verbatim: bool,
    /// Tools are offered: white space waits until it is known that no call follows.
    hold_trailing: bool,
    /// Only white space so far, since the beginning or since the last think block or call.
    fresh: bool,
    leading: String,
    trailing: String,
    /// A call came since the last solid text: white space at the end is not content.
    after_call: bool,
}

impl ContentWriter {
    pub fn new(stop: Vec<String>, verbatim: bool, hold_trailing: bool) -> ContentWriter {
        ContentWriter {
            stops: StopFilter::new(stop),
            verbatim,
            hold_trailing,
            fresh: true,
            leading: String::new(),
            trailing: String::new(),
            after_call: false,
        }
    }

    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns true when a stop text matched: nothing may follow.
    pub fn push(&mut self, text: &str, out: &mut Vec<OutputEvent>) -> bool {
        if self.verbatim {
            return self.search_stops(text, out);
        }
        if !self.fresh {
            return self.search_stops(text, out);
        }
        self.leading.push_str(text);
        let white = self.leading.len() - self.leading.trim_start().len();
        if white == self.leading.len() {
            return false;
        }
        // Whole empty lines go; the indentation of the first line with text stays.
        let first_line = self.leading[..white].rfind('\n').map_or(0, |newline| newline + 1);
        let text = self.leading.split_off(first_line);
        self.leading.clear();
        self.fresh = false;
        self.after_call = false;
        self.search_stops(&text, out)
    }

    fn search_stops(&mut self, text: &str, out: &mut Vec<OutputEvent>) -> bool {
        let mut passed = String::new();
        let matched = self.stops.push(text, &mut passed).map(str::to_owned);
        let Some(stop) = matched else {
            self.emit(&passed, self.hold_trailing, out);
            return false;
        };
        self.emit(&passed, false, out);
        out.push(OutputEvent::StopMatched { stop });
        true
    }

    fn emit(&mut self, text: &str, hold: bool, out: &mut Vec<OutputEvent>) {
        let ready = if hold {
            hold_trailing(&mut self.trailing, text)
        } else {
            let mut all = std::mem::take(&mut self.trailing);
            all.push_str(text);
            (!all.is_empty()).then_some(all)
        };
        if let Some(ready) = ready {
            out.push(OutputEvent::Content(ready));
        }
    }

    /// A think block or a tool call stands here: what could have been a stop text is none, and the content
    /// that may follow begins anew.
    pub fn interrupt(&mut self, by_call: bool, out: &mut Vec<OutputEvent>) {
        let mut passed = String::new();
        self.stops.finish(&mut passed);
        self.emit(&passed, true, out);
        self.leading.clear();
        self.fresh = true;
        self.after_call |= by_call;
    }

    pub fn finish(&mut self, out: &mut Vec<OutputEvent>) {
        let mut passed = String::new();
        self.stops.finish(&mut passed);
        self.emit(&passed, self.after_call, out);
    }
}
