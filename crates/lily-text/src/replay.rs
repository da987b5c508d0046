//! Remembers which tokens texts became, so that a conversation that grows is not encoded again from its
//! beginning, and so that an answer that comes back is the tokens that the model said.
//!
//! A model may write a text in other tokens than the encoder would. Encoding its answer anew would then lead
//! away from the state that was saved behind it; [`Replay::encode`] goes on from the remembered tokens as far
//! as the text is the same. What is compared is the rendered text with the guard's marks, which determines the
//! tokens completely.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::TextError;
use crate::encoder::Encoder;
use crate::markup::{Guard, unmark};
use crate::vocabulary::Vocabulary;

/// Conversations in sight at a time are few; each leaves two texts a turn.
const ENTRIES_MAX: usize = 128;
/// Text and tokens together.
const BYTES_MAX: usize = 64 << 20;

pub(crate) struct Replay {
    /// The last used is the last.
    entries: Mutex<VecDeque<Arc<Entry>>>,
    /// Every markup spelling is `<…>` without further brackets, so that none can overlap another: only then
    /// is the encoding before a markup token independent of what follows.
    separable: bool,
}

/// A rendered text and its tokens.
struct Entry {
    marked: String,
    tokens: Vec<u32>,
    /// Behind each markup token: bytes and tokens up to there. Ascending.
    cuts: Vec<(usize, usize)>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.marked.len() + 4 * self.tokens.len() + 16 * self.cuts.len()
    }

    /// The last cut inside a common beginning with `marked`.
    fn cut_before(&self, marked: &str) -> Option<(usize, usize)> {
        let common = self.marked.as_bytes().iter().zip(marked.as_bytes()).take_while(|(a, b)| a == b).count();
        self.cuts[..self.cuts.partition_point(|cut| cut.0 <= common)].last().copied()
    }
}

impl Replay {
    pub fn new(vocabulary: &Vocabulary) -> Replay {
        let plain =
            |text: &str| text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).is_some_and(|name| !name.contains(['<', '>']));
        let separable = vocabulary.added.iter().all(|token| plain(&token.text));
        Replay { entries: Mutex::default(), separable }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokens of a rendered, marked text.
    pub fn encode(&self, marked: &str, encoder: &Encoder) -> Result<Vec<u32>, TextError> {
        let known = self.find(marked);
        let (mut tokens, mut cuts, done) = match &known {
            Some((entry, (bytes, count))) => {
                let cuts = entry.cuts.iter().copied().take_while(|cut| cut.0 <= *bytes).collect();
                (entry.tokens[..*count].to_vec(), cuts, *bytes)
            }
            None => (Vec::new(), Vec::new(), 0),
        };
        encoder.encode_cut(
            &marked[done..],
            |plain| encoder.encode_plain(&unmark(plain)),
            &mut tokens,
            |bytes, count| {
                cuts.push((done + bytes, count));
            },
        )?;
        self.keep(Entry { marked: marked.to_owned(), tokens: tokens.clone(), cuts });
        Ok(tokens)
    }

    /// The entry with the longest usable beginning of `marked`, and its end.
    fn find(&self, marked: &str) -> Option<(Arc<Entry>, (usize, usize))> {
        let mut entries = self.lock();
        // Of equal ones the newest: the last of the maxima.
        let found = entries.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.cut_before(marked)?)));
        let (at, cut) = found.max_by_key(|(_, cut)| cut.0)?;
        let entry = entries.remove(at)?;
        entries.push_back(entry.clone());
        Some((entry, cut))
    }

    /// Remembers that the model answered `output` to the prompt with exactly these tokens.
    pub fn answered(&self, prompt: &[u32], output: &[u32], vocabulary: &Vocabulary, guard: &Guard) {
        let entry = self.lock().iter().rev().find(|entry| entry.tokens == prompt).cloned();
        let Some(entry) = entry else { return };
        let mut entry = Entry { marked: entry.marked.clone(), tokens: entry.tokens.clone(), cuts: entry.cuts.clone() };
        entry.append(output, vocabulary, guard);
        self.keep(entry);
    }

    /// Remembers a conversation of which only the tokens are known.
    pub fn known(&self, tokens: &[u32], vocabulary: &Vocabulary, guard: &Guard) {
        let mut entry = Entry { marked: String::new(), tokens: Vec::new(), cuts: Vec::new() };
        entry.append(tokens, vocabulary, guard);
        self.keep(entry);
    }

    fn keep(&self, entry: Entry) {
        if !self.separable || entry.bytes() > BYTES_MAX {
            return;
        }
        let mut entries = self.lock();
        entries.retain(|known| known.marked != entry.marked);
        entries.push_back(Arc::new(entry));
        let mut bytes: usize = entries.iter().map(|entry| entry.bytes()).sum();
        while entries.len() > ENTRIES_MAX || bytes > BYTES_MAX {
            let Some(oldest) = entries.pop_front() else { return };
            bytes -= oldest.bytes();
        }
    }
}

impl Entry {
    /// Goes on with these tokens, up to the first place that a template could not render alike: half a
    /// character, or text of the model's that spells a think or tool tag.
    fn append(&mut self, output: &[u32], vocabulary: &Vocabulary, guard: &Guard) {
        let special = &vocabulary.special;
        let mut foreign = false;
        for run in output.chunk_by(|&a, &b| !vocabulary.is_added(a) && !vocabulary.is_added(b)) {
            let bytes: Vec<u8> = run.iter().flat_map(|&token| vocabulary.bytes(token)).copied().collect();
            let Ok(text) = String::from_utf8(bytes) else { return };
            if !vocabulary.is_added(run[0]) {
                // As the renderer guards it: everything in tool results, control tokens elsewhere.
                let all = guard.foreign_text(&text);
                if !foreign && all != guard.text(&text) {
                    return;
                }
                self.marked.push_str(&all);
                self.tokens.extend(run);
                continue;
            }
            for &token in run {
                self.marked.push_str(&String::from_utf8_lossy(vocabulary.bytes(token)));
                self.tokens.push(token);
                self.cuts.push((self.marked.len(), self.tokens.len()));
                foreign = Some(token) == special.tool_response || (foreign && Some(token) != special.tool_response_end);
            }
        }
    }
}
