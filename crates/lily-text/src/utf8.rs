//! Bytes to text across token borders: a character is passed on when its last byte is there.

/// Collects the bytes of a character that tokens split. What can never become valid is replaced by U+FFFD,
/// as `String::from_utf8_lossy` does; what may still become valid waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Utf8Assembler {
    /// An incomplete sequence: at most three bytes.
    waiting: Vec<u8>,
}

impl Utf8Assembler {
    /// Appends to `text` all that `bytes` complete.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        if self.waiting.is_empty()
            && let Ok(whole) = std::str::from_utf8(bytes)
        {
            text.push_str(whole);
            return;
        }
        self.waiting.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.waiting.len();
            if invalid.is_empty() || (at_end && may_continue(invalid)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.waiting.drain(..done);
    }

    /// Nothing follows: what still waits was not UTF-8.
    pub fn finish(&mut self, text: &mut String) {
        if !self.waiting.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.waiting.clear();
        }
    }
}

/// Whether a sequence that is invalid at the end of the bytes is only cut short.
fn may_continue(invalid: &[u8]) -> bool {
    std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
}
