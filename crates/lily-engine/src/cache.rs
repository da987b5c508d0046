//! The state cache: saved prefixes, each with a copy of the recurrent state and a hold on its KV pages.
//!
//! A prompt resumes at the deepest saved prefix of it ([`StateCache::find`]). What has to go when bytes or
//! pages run out is decided by [`StateCache::score`].

use std::sync::Arc;

use lily_model::{Page, StateCopy};

use crate::pages::PagePool;
use crate::stats::CacheStats;
use crate::tree::{Found, NodeId, Saved, TokenTree};

/// A copy that saves fewer tokens than this over the one before it is not worth taking.
const KEEP_MIN: usize = 16;

/// Sizes that the budget counts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The budget; 0 turns the cache off.
    pub bytes_max: usize,
    /// Bytes of one state copy, and of one KV page.
    pub state: usize,
    pub page: usize,
}

struct Entry {
    pages: Vec<Page>,
    /// Shared with the disk tier while it writes.
    state: Arc<StateCopy>,
    /// The cache's clock when the entry was last used.
    used: f64,
    /// How often it was resumed from, those before it in the conversation included: a sign of life.
    turns: u32,
    /// Running sequences that resumed here or saved this.
    pins: u32,
}

/// A prefix to be saved.
pub(crate) struct Prefix<'a> {
    pub tokens: &'a [u32],
    /// The pages that its positions lie in.
    pub pages: &'a [Page],
    /// See [`Resume::turns`].
    pub turns: u32,
}

/// Where a sequence resumes.
pub(crate) struct Resume<'a> {
    pub pages: &'a [Page],
    pub state: &'a StateCopy,
    /// Handed on to what the sequence saves.
    pub turns: u32,
}

/// What [`StateCache::place`] says about a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Taken(NodeId),
    Worthwhile,
    /// The cache is off, or an entry just before saves nearly as much.
    Needless,
}

pub(crate) struct StateCache {
    tree: TokenTree<Entry>,
    sizes: Sizes,
    /// Entries that hold each page.
    held: Vec<u32>,
    pages_held: usize,
    /// Rises to the score of each evicted entry, so that unused entries age whatever they are worth.
    clock: f64,
    pub stats: CacheStats,
}

impl StateCache {
    pub fn new(sizes: Sizes, pages: usize) -> Self {
        let stats = CacheStats { bytes_max: sizes.bytes_max, ..CacheStats::default() };
        StateCache { tree: TokenTree::new(), sizes, held: vec![0; pages], pages_held: 0, clock: 0.0, stats }
    }

    /// Whether a copy would survive its own insertion.
    pub fn is_on(&self) -> bool {
        self.sizes.bytes_max >= self.sizes.state + self.sizes.page
    }

    /// The deepest entry from which `tokens` can be continued: at least the last token is computed again,
    /// because its logits are needed.
    pub fn find(&self, tokens: &[u32]) -> Found {
        self.tree.find(tokens, tokens.len() - 1)
    }

    /// Counts a prompt's lookup and says in words how it went.
    pub fn note(&mut self, found: Found, from_disk: bool) -> &'static str {
        let on = self.is_on();
        let stats = &mut self.stats;
        let (count, reason) = match found {
            _ if from_disk => (&mut stats.hits_disk, "hit on disk"),
            Found { node: Some(_), .. } => (&mut stats.hits, "hit"),
            _ if !on => (&mut stats.misses_off, "the cache is off"),
            _ if self.tree.len() == 0 => (&mut stats.misses_empty, "nothing is cached"),
            Found { common: 0, .. } => (&mut stats.misses_other_prompt, "no cached prompt begins like this"),
            _ => (&mut stats.misses_no_copy, "no state copy inside the common prefix"),
        };
        *count += 1;
        reason
    }

    /// What a sequence needs in order to resume at an entry, which counts as used and as alive.
    pub fn resume(&mut self, id: NodeId) -> Resume<'_> {
        let entry = self.tree.get_mut(id).expect("found entries exist");
        entry.used = self.clock;
        entry.turns += 1;
        Resume { pages: &entry.pages, state: &entry.state, turns: entry.turns }
    }

    /// The entry for exactly these tokens.
    pub fn peek(&self, tokens: &[u32]) -> Option<(&[Page], Arc<StateCopy>)> {
        let found = self.tree.find(tokens, tokens.len());
        let entry = self.tree.get(found.node.filter(|_| found.position == tokens.len())?)?.value;
        Some((&entry.pages, entry.state.clone()))
    }

    /// Whether a copy after exactly these tokens should be taken. An entry that is there counts as used.
    pub fn place(&mut self, tokens: &[u32]) -> Place {
        let found = self.tree.find(tokens, tokens.len());
        match found.node {
            Some(id) if found.position == tokens.len() => {
                self.tree.get_mut(id).expect("found entries exist").used = self.clock;
                Place::Taken(id)
            }
            _ if self.is_on() && tokens.len() - found.position >= KEEP_MIN => Place::Worthwhile,
            _ => Place::Needless,
        }
    }

    /// Saves a prefix. Other entries may have to go for it, or it goes itself at once (`None`).
    pub fn insert(&mut self, prefix: Prefix<'_>, state: StateCopy, pool: &mut PagePool) -> Option<NodeId> {
        let Prefix { tokens, pages, turns } = prefix;
        for &page in pages {
            pool.hold(page);
            self.held[page.0 as usize] += 1;
            self.pages_held += usize::from(self.held[page.0 as usize] == 1);
        }
        let id = self.tree.insert(tokens, Entry { pages: pages.to_vec(), state: Arc::new(state), used: self.clock, turns, pins: 0 });
        self.stats.saved += 1;
        while self.bytes() > self.sizes.bytes_max {
            let Some(worst) = self.worst(pool, |_, entry| entry.pins == 0) else { break };
            self.remove(worst, pool);
            self.stats.evicted_for_bytes += 1;
        }
        self.tree.get(id).map(|_| id)
    }

    /// Drops the entry that is worth least among those that stand in the way of a free page. `false` when
    /// no eviction can free one: running sequences hold the rest.
    pub fn evict_for_page(&mut self, pool: &mut PagePool) -> bool {
        let alone = |_: &Self, entry: &Entry| entry.pages.iter().any(|&page| pool.holders(page) == 1);
        let among_entries = |cache: &Self, entry: &Entry| entry.pages.iter().any(|&page| cache.only_here(page, pool));
        let Some(worst) = self.worst(pool, alone).or_else(|| self.worst(pool, among_entries)) else { return false };
        self.remove(worst, pool);
        self.stats.evicted_for_pages += 1;
        true
    }

    /// Drops an entry that turned out to be unusable.
    pub fn discard(&mut self, id: NodeId, pool: &mut PagePool) {
        self.remove(id, pool);
    }

    pub fn pin(&mut self, id: NodeId) {
        if let Some(entry) = self.tree.get_mut(id) {
            entry.pins += 1;
        }
    }

    pub fn unpin(&mut self, id: NodeId) {
        if let Some(entry) = self.tree.get_mut(id) {
            entry.pins -= 1;
        }
    }

    /// Pages that eviction can free.
    pub fn evictable(&self, pool: &PagePool) -> usize {
        (0..self.held.len() as u32).filter(|&page| self.only_here(Page(page), pool)).count()
    }

    /// The same when a sequence is about to share the pages of one entry.
    pub fn evictable_beside(&self, shared: Option<NodeId>, pool: &PagePool) -> usize {
        let shared = shared.and_then(|id| self.tree.get(id)).map_or(&[][..], |saved| &saved.value.pages);
        self.evictable(pool) - shared.iter().filter(|&&page| self.only_here(page, pool)).count()
    }

    /// Whether only entries, and no running sequence, hold a page.
    pub fn only_here(&self, page: Page, pool: &PagePool) -> bool {
        let held = self.held[page.0 as usize];
        held > 0 && pool.holders(page) == held
    }

    pub fn bytes(&self) -> usize {
        self.tree.len() * self.sizes.state + self.pages_held * self.sizes.page
    }

    pub fn len(&self) -> usize {
        self.tree.len()
    }

    fn worst(&self, pool: &PagePool, eligible: impl Fn(&Self, &Entry) -> bool) -> Option<NodeId> {
        let eligible = self.tree.iter().filter(|(_, saved)| eligible(self, saved.value));
        eligible.map(|(id, saved)| (id, self.score(saved, pool))).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id)
    }

    /// What an entry is worth: when it was last used, plus the tokens that would be computed again without
    /// it, for each state copy's worth of bytes that it takes, times how likely that is. Pure last-use order
    /// would let every title or summary request push out a piece of a long conversation, since all copies
    /// are equally big. Here a prompt that was never continued counts a tenth until it is, and a copy that a
    /// longer one has taken over from a quarter; and whatever nobody uses any more ages with the clock.
    fn score(&self, saved: Saved<'_, Entry>, pool: &PagePool) -> f64 {
        let entry = saved.value;
        let own_pages = entry.pages.iter().filter(|&&page| pool.holders(page) == 1).count();
        let bytes = self.sizes.state + own_pages * self.sizes.page;
        let alive = (f64::from(entry.turns) + 0.1) / (f64::from(entry.turns) + 1.0);
        let likely = if saved.inner { alive / 4.0 } else { alive };
        entry.used + saved.gap as f64 * likely * self.sizes.state.max(1) as f64 / bytes.max(1) as f64
    }

    fn remove(&mut self, id: NodeId, pool: &mut PagePool) {
        if let Some(saved) = self.tree.get(id) {
            self.clock = self.clock.max(self.score(saved, pool));
        }
        let entry = self.tree.remove(id);
        for page in entry.pages {
            self.held[page.0 as usize] -= 1;
            self.pages_held -= usize::from(self.held[page.0 as usize] == 0);
            pool.release(page);
        }
    }
}
