//! The last station of plain text: what surrounds it is trimmed, stop texts are cut, events leave.

use crate::output::OutputEvent;
use crate::stop::StopFilter;

/// Thinking: white space at both ends belongs to the format, not to the thought.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReasoningWriter {
    /// The block has text.
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

    /// The block ended. A later one is set apart by an empty line.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.started) {
            self.trailing = "\n\n".into();
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
    /// A call came since the last solid text: white space at the end is not content.
    after_call: bool,
    /// Some content has left.
    wrote: bool,
    leading: String,
    trailing: String,
}

impl ContentWriter {
    pub fn answer(stop: Vec<String>, hold_trailing: bool) -> ContentWriter {
        ContentWriter { verbatim: false, hold_trailing, ..ContentWriter::verbatim(stop) }
    }

    pub fn verbatim(stop: Vec<String>) -> ContentWriter {
        ContentWriter {
            stops: StopFilter::new(stop),
            verbatim: true,
            hold_trailing: false,
            fresh: true,
            after_call: false,
            wrote: false,
            leading: String::new(),
            trailing: String::new(),
        }
    }

    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Only white space since the last call.
    pub fn follows_call(&self) -> bool {
        self.fresh && self.after_call
    }

    /// Returns true when a stop text matched: nothing may follow.
    pub fn push(&mut self, text: &str, out: &mut Vec<OutputEvent>) -> bool {
        if self.verbatim || !self.fresh {
            return self.search_stops(text, out);
        }
        self.leading.push_str(text);
        let solid = self.leading.trim_start().len();
        if solid == 0 {
            return false;
        }
        // Whole empty lines go; the indentation of the first line with text stays.
        let white = self.leading.len() - solid;
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
            self.wrote = true;
            out.push(OutputEvent::Content(ready));
        }
    }

    /// A tag stands here: what could have become a stop text is none.
    pub fn settle(&mut self, out: &mut Vec<OutputEvent>) {
        let mut passed = String::new();
        self.stops.finish(&mut passed);
        self.emit(&passed, self.hold_trailing, out);
    }

    /// A think block ended: what follows begins anew.
    pub fn begin_anew(&mut self) {
        self.leading.clear();
        self.fresh = true;
    }

    /// A tool call stands here. Content after it, if any, begins a line of its own.
    pub fn begin_call(&mut self) {
        self.begin_anew();
        self.after_call = true;
        if self.wrote && self.trailing.is_empty() {
            self.trailing.push('\n');
        }
    }

    pub fn finish(&mut self, out: &mut Vec<OutputEvent>) {
        let mut passed = String::new();
        self.stops.finish(&mut passed);
        self.emit(&passed, self.after_call, out);
    }
}
