//! Stop texts: found across any cut of the stream, never passed on, and held back only while ambiguous.

#[derive(Clone, Debug)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    /// The end of the text so far, as far as it may be the beginning of a stop.
    held: String,
}

impl StopFilter {
    /// Empty stop texts are ignored.
    pub fn new(stops: Vec<String>) -> StopFilter {
        StopFilter { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    /// Appends to `passed` what certainly belongs to the answer. Returns the stop text that ended it, after
    /// which nothing more may be pushed.
    ///
    /// Of several matches, the one that is complete first in the stream counts, so that the answer does not
    /// depend on where tokens end.
    pub fn push(&mut self, text: &str, passed: &mut String) -> Option<&str> {
        if self.stops.is_empty() {
            passed.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, stop)))
            .min_by_key(|(end, start, _)| (*end, *start));
        if let Some((_, start, stop)) = first {
            passed.push_str(&self.held[..start]);
            self.held.clear();
            return Some(stop);
        }
        let safe = self.held.len() - self.ambiguous();
        passed.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        None
    }

    /// Nothing follows: what was ambiguous is not a stop.
    pub fn finish(&mut self, passed: &mut String) {
        passed.push_str(&self.held);
        self.held.clear();
    }

    /// Length of the longest end of `held` that begins a stop text.
    fn ambiguous(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let ends = self.held.char_indices().map(|(start, _)| &self.held[start..]);
        ends.filter(|end| end.len() < longest).find(|end| self.stops.iter().any(|stop| stop.starts_with(end))).map_or(0, str::len)
    }
}
