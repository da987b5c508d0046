//! One request while it waits and runs: its tokens, how far they are computed, and what it holds.

use std::sync::Arc;
use std::time::Instant;

use lily_model::{PAGE_TOKENS, Page, Slot};
use tokio::sync::mpsc::UnboundedSender;

use crate::inbox::{Job, Ticket};
use crate::sampling::Sampler;
use crate::tree::NodeId;
use crate::{Constraint, Event, Usage};

/// Boundaries closer than this to a later one are not kept, the prompt's first and last two aside: each
/// copy costs a shorter chunk and the bytes of a state.
const KEEP_SPACING: usize = 512;

pub(crate) struct Sequence {
    /// Order of arrival: the age that fairness goes by.
    pub id: u64,
    pub events: UnboundedSender<Event>,
    /// Its place among the requests in flight, given back when it ends.
    pub _ticket: Ticket,

    /// The prompt and what was generated.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    /// Tokens that slot and pages have taken in.
    pub done: usize,
    pub slot: Option<Slot>,
    pub pages: Vec<Page>,
    /// Leading pages that came from the cache: read, never written.
    pub pages_read_only: usize,
    /// Positions ahead at which to keep the state, ascending.
    pub keeps: Vec<usize>,
    /// How alive its conversation is: see the cache.
    pub turns: u32,
    /// The cache entry that this sequence protects while it runs.
    pub pin: Option<NodeId>,

    pub sampler: Sampler,
    pub constraint: Option<Box<dyn Constraint>>,
    pub stop_tokens: Arc<[u32]>,
    pub generated_max: usize,
    pub logprobs: Option<usize>,

    /// Sequences that came later and started before it.
    pub overtaken: usize,
    /// The pass that it was last part of.
    pub served: u64,
    /// Prompt tokens that the caller has heard of.
    pub reported: usize,
    pub cached: usize,
    pub submitted: Instant,
    pub started: Option<Instant>,
    pub first_token: Option<Instant>,
}

impl Sequence {
    pub fn new(job: Job, context: usize, keep_every: usize) -> Self {
        let Job { id, request, events, ticket, submitted } = job;
        let prompt = request.prompt.len();
        Sequence {
            id,
            events,
            _ticket: ticket,
            keeps: plan_keeps(prompt, &request.keep_at, keep_every),
            tokens: request.prompt,
            prompt,
            done: 0,
            slot: None,
            pages: Vec::new(),
            pages_read_only: 0,
            turns: 0,
            pin: None,
            sampler: Sampler::new(request.sampling),
            constraint: request.constraint,
            stop_tokens: request.stop_tokens,
            generated_max: request.max_tokens.unwrap_or(usize::MAX).min(context - prompt),
            logprobs: request.logprobs,
            overtaken: 0,
            served: 0,
            reported: 0,
            cached: 0,
            submitted,
            started: None,
            first_token: None,
        }
    }

    /// Tokens that must be computed before the next one can be chosen; never 0 while it runs. One is a
    /// step of decoding (or the last token of a prompt, which is the same thing).
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.done
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Whether it has a token after the next, and whether that one can be chosen before the next is known.
    pub fn goes_on_unseen(&self) -> bool {
        let told = self.constraint.is_some() || self.logprobs.is_some();
        !told && !self.sampler.looks_back() && self.generated() + 1 < self.generated_max
    }

    /// Where a chunk of at most `rows` rows ends. Chunks end at multiples of the chunk size and at
    /// positions worth keeping, so that a prompt is cut at the same places whether or not its beginning
    /// came from the cache.
    pub fn chunk_end(&self, rows: usize, chunk: usize) -> usize {
        let keep = self.keeps.iter().copied().find(|&keep| keep > self.done).unwrap_or(usize::MAX);
        let grid = (self.done / chunk + 1) * chunk;
        (self.done + rows).min(grid).min(keep).min(self.tokens.len())
    }

    /// Pages still to be taken until all its present tokens and one more have room.
    pub fn pages_missing(&self) -> usize {
        let to_be_copied = usize::from(self.done < self.pages_read_only * PAGE_TOKENS);
        (self.tokens.len() + 1).div_ceil(PAGE_TOKENS).saturating_sub(self.pages.len()) + to_be_copied
    }

    pub fn usage(&self) -> Usage {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Usage {
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            generated_tokens: self.generated(),
            queued: started - self.submitted,
            prefill: first - started,
            decode: now - first,
        }
    }
}

/// Which prefixes of a prompt to keep: message boundaries as far as they lie apart, every few thousand
/// tokens, and, where no boundary is near the end, the last whole page before it.
fn plan_keeps(prompt: usize, keep_at: &[usize], keep_every: usize) -> Vec<usize> {
    let mut boundaries: Vec<usize> = keep_at.iter().copied().filter(|&at| at > 0 && at <= prompt).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    let last_two = boundaries.len().saturating_sub(2);
    let mut next = usize::MAX;
    let mut keeps = Vec::new();
    for (index, &at) in boundaries.iter().enumerate().rev() {
        // The first boundary ends the system prompt, which new conversations share.
        if index == 0 || index >= last_two || at + KEEP_SPACING <= next {
            keeps.push(at);
            next = at;
        }
    }
    if keeps.first().is_none_or(|&last| last + KEEP_SPACING < prompt) {
        keeps.push((prompt - 1) / PAGE_TOKENS * PAGE_TOKENS);
    }
    let far = |at: usize, keeps: &[usize]| keeps.iter().all(|keep| keep.abs_diff(at) >= KEEP_SPACING);
    let regular: Vec<usize> = (1..).map(|n| n * keep_every).take_while(|&at| at < prompt).filter(|&at| far(at, &keeps)).collect();
    keeps.extend(regular);
    keeps.retain(|&at| at > 0);
    keeps.sort_unstable();
    keeps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_are_boundaries_apart_regular_positions_and_the_tail() {
        assert!(plan_keeps(100, &[], 4096).is_empty());
        assert_eq!(plan_keeps(300, &[], 4096), [256]);
        assert!(plan_keeps(256, &[], 4096).is_empty());
        assert_eq!(plan_keeps(9000, &[], 4096), [4096, 8192, 8960]);
        // 900 and 1000 are too close to 1200; the last two and the first stay whatever their distance.
        assert_eq!(plan_keeps(1300, &[500, 680, 900, 1000, 1200, 1290], 4096), [500, 680, 1200, 1290]);
        assert_eq!(plan_keeps(50, &[0, 40, 40, 50, 60], 4096), [40, 50]);
        // A boundary far from the end does not spare the tail.
        assert_eq!(plan_keeps(3000, &[20], 4096), [20, 2816]);
        assert_eq!(plan_keeps(9000, &[4000, 8990], 4096), [4000, 8192, 8990]);
    }
}
