//! What the engine counts, for `/metrics`, `/health`, logs and tests.

use std::time::{Duration, Instant};

use lily_model::Batch;

/// A snapshot, taken after each pass. Gauges say what is the case now; the rest only grows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Gauges: requests that wait, that are being prefilled, that decode.
    pub waiting: usize,
    pub prefilling: usize,
    pub decoding: usize,
    pub slots_used: usize,
    pub slots: usize,
    /// Pages that running sequences hold, shared ones included once.
    pub pages_used: usize,
    /// Pages that only the state cache holds: free when they are needed.
    pub pages_cached: usize,
    pub pages: usize,

    pub submitted: u64,
    pub finished_stop: u64,
    pub finished_length: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// Sequences that lost slot and pages to an older one and began again.
    pub preempted: u64,

    /// Tokens of started prompts; those taken from the cache; those computed (again after a preemption).
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub prefill_tokens: u64,
    pub generated_tokens: u64,
    /// Forward passes, and the rows in them.
    pub passes: u64,
    pub rows: u64,

    /// Sums over requests that got their first token (`queued`, `prefill`) or finished (`decode`).
    pub queued: Duration,
    pub prefill: Duration,
    pub decode: Duration,
    /// Time inside forward passes, waiting for queued ones included.
    pub busy: Duration,

    pub cache: CacheStats,
}

impl Stats {
    /// Counts a pass and the time that it takes to run, or to queue.
    pub(crate) fn timed<T>(&mut self, batch: &Batch<'_>, run: impl FnOnce(&Batch<'_>) -> T) -> T {
        let started = Instant::now();
        self.passes += 1;
        self.rows += batch.rows() as u64;
        let result = run(batch);
        self.busy += started.elapsed();
        result
    }

    pub fn running(&self) -> usize {
        self.prefilling + self.decoding
    }
}

/// The state cache's part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheStats {
    /// Gauges.
    pub entries: usize,
    pub bytes: usize,
    pub bytes_max: usize,

    /// On disk: states, and all bytes.
    pub disk_entries: usize,
    pub disk_bytes: u64,

    /// Prompts that resumed from memory, and from disk.
    pub hits: u64,
    pub hits_disk: u64,
    /// The cache is off.
    pub misses_off: u64,
    /// Nothing is cached yet.
    pub misses_empty: u64,
    /// No cached sequence begins with the same token.
    pub misses_other_prompt: u64,
    /// A cached sequence shares a prefix, but no copy of its state lies inside it.
    pub misses_no_copy: u64,
    pub saved: u64,
    /// Entries dropped for the byte budget, and for the pages they held.
    pub evicted_for_bytes: u64,
    pub evicted_for_pages: u64,
}

impl CacheStats {
    pub fn misses(&self) -> u64 {
        self.misses_off + self.misses_empty + self.misses_other_prompt + self.misses_no_copy
    }
}
