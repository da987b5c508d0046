//! Who may start: the queue is first come, first served, with two exceptions. A prompt whose prefix a running one
//! is about to save waits for it, and a short one may pass a few long ones.

use std::time::Instant;

use lily_model::Device;

use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::tree::{Found, common_prefix};
use crate::{Event, Lookup};

/// A waiting prompt waits a little longer when a running one will soon have saved so many more of its tokens.
const SHARE_MIN: usize = 64;

/// A prompt with at most so many tokens to compute is short: a title or a summary, the next turn of a
/// conversation that is cached.
const SHORT_TOKENS: usize = 512;

/// So often may short prompts that came later start before a sequence.
const OVERTAKEN_MAX: usize = 4;

/// Whether a waiting sequence may start.
enum Admission {
    Start(Found),
    /// It will find more in the cache in a moment; others may go first.
    Later,
    /// There is no room.
    Full,
}

impl<D: Device> Scheduler<D> {
    pub(crate) fn admit(&mut self) {
        for id in self.queue_order() {
            if self.memory.slots_free.is_empty() {
                return;
            }
            let at = self.waiting.iter().position(|sequence| sequence.id == id).expect("nobody else takes from the queue");
            match self.judge(&self.waiting[at]) {
                Admission::Start(found) => {
                    self.waiting.range_mut(..at).for_each(|passed| passed.overtaken += 1);
                    let sequence = self.waiting.remove(at).expect("an index inside the queue");
                    self.start(sequence, found);
                }
                Admission::Later => {}
                // A short one that finds no room stops nobody; behind the first in line, nobody passes.
                Admission::Full if at > 0 => {}
                Admission::Full => return,
            }
        }
    }

    /// The ids of those that wait, in the order in which they may start.
    fn queue_order(&self) -> Vec<u64> {
        let ids = || self.waiting.iter().map(|sequence| sequence.id);
        if self.waiting.len() < 2 || self.memory.slots_free.is_empty() {
            return ids().collect();
        }
        let behind = self.waiting.iter().position(|sequence| sequence.overtaken >= OVERTAKEN_MAX).unwrap_or(self.waiting.len());
        let (short, long): (Vec<&Sequence>, Vec<&Sequence>) = self.waiting.range(..behind).partition(|sequence| self.is_short(sequence));
        short.into_iter().chain(long).map(|sequence| sequence.id).chain(ids().skip(behind)).collect()
    }

    fn is_short(&self, sequence: &Sequence) -> bool {
        sequence.tokens.len() <= SHORT_TOKENS || sequence.tokens.len() - self.memory.cache.find(&sequence.tokens).position <= SHORT_TOKENS
    }

    fn judge(&self, sequence: &Sequence) -> Admission {
        let found = self.memory.cache.find(&sequence.tokens);
        if self.memory.cache.is_on() && self.running.iter().any(|other| will_save_more(other, sequence, found.position)) {
            return Admission::Later;
        }
        // Prompts that run are promised their pages; one that was preempted leaves room for everyone to grow.
        let promised: usize = self.running.iter().map(Sequence::pages_missing).sum();
        let growth = if sequence.started.is_some() { self.running.len() } else { 0 };
        if self.running.is_empty() || self.memory.has_room(sequence, found, promised + growth) {
            Admission::Start(found)
        } else {
            Admission::Full
        }
    }

    fn start(&mut self, mut sequence: Sequence, found: Found) {
        let from_disk = self.start_from_disk(&mut sequence, found);
        // Looking on disk may have cost the entry that was found.
        let found = self.memory.cache.find(&sequence.tokens);
        if !from_disk {
            self.memory.start(&mut sequence, found, &mut self.runner.device);
        }
        if sequence.started.is_none() {
            let reason = self.memory.cache.note(found, from_disk);
            let (prompt, cached, common) = (sequence.prompt, sequence.done, found.common);
            tracing::info!(id = sequence.id, prompt, cached, common, reason, "started");
            sequence.started = Some(Instant::now());
            sequence.cached = cached;
            sequence.reported = cached;
            self.stats.prompt_tokens += prompt as u64;
            self.stats.cached_tokens += cached as u64;
            let _ = sequence.events.send(Event::Started { cached_tokens: cached, lookup: Lookup { common_tokens: common, reason } });
        }
        let at = self.running.partition_point(|other| other.id < sequence.id);
        self.running.insert(at, sequence);
    }
}

/// Whether `other`, which runs, is about to save a prefix of `sequence` that is clearly longer than `position`.
fn will_save_more(other: &Sequence, sequence: &Sequence, position: usize) -> bool {
    let ahead = |&&keep: &&usize| keep > other.done && keep >= position + SHARE_MIN && keep < sequence.tokens.len();
    let Some(&keep) = other.keeps.iter().find(ahead) else { return false };
    common_prefix(&other.tokens[..keep.min(other.prompt)], &sequence.tokens) >= keep
}
