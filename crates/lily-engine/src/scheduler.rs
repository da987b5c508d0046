//! The engine's thread: each turn of [`Scheduler::run`] composes one batch and gives everyone their due.
//!
//! A batch has one row for each sequence that decodes and at most one chunk of a prompt, of the sequence
//! that was served the longest ago; so a long prompt freezes nobody, and several prompts advance in turn.
//! A sequence that was preempted is an ordinary waiting one whose "prompt" includes what it generated.
//! Read [`Scheduler::turn`] first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_model::{Batch, Device, Logits, Runner, Span};
use tokio::sync::mpsc::UnboundedSender;

use crate::ahead::Flight;
use crate::cache::Sizes;
use crate::disk::DiskTier;
use crate::inbox::{Closing, Inbox};
use crate::memory::Memory;
use crate::sequence::Sequence;
use crate::stats::{CacheStats, Stats};
use crate::{EngineError, Event, Options, persist};

pub(crate) struct Scheduler<D: Device> {
    pub(crate) runner: Runner<D>,
    options: Options,
    inbox: Arc<Inbox>,
    pub(crate) memory: Memory,
    /// In order of arrival, both of them.
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Sequence>,
    pub(crate) disk: Option<DiskTier>,
    /// The pass whose tokens nobody has read yet.
    pub(crate) flight: Option<Flight>,
    /// What a row of a pass of many rows took lately.
    row_time: Duration,
    /// Last events, sent once the statistics and the free slots tell the same.
    endings: Vec<(UnboundedSender<Event>, Event)>,
    pub(crate) stats: Stats,
}

/// Rows of a chunk that is worth a pass, however long it takes: below, reading the weights dominates.
const CHUNK_MIN: usize = 32;

/// One sequence's part of the next batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub id: u64,
    pub rows: usize,
}

impl<D: Device> Scheduler<D> {
    /// `options.context` holds for this device and model.
    pub fn new(runner: Runner<D>, options: Options, inbox: Arc<Inbox>) -> Self {
        let capacity = runner.device.capacity();
        let sizes = Sizes { bytes_max: options.cache_bytes, state: runner.device.state_bytes(), page: runner.config.page_bytes() };
        let chunk = options.chunk.clamp(1, capacity.rows);
        let options =
            Options { chunk, chunk_shared: options.chunk_shared.clamp(1, chunk), keep_every: options.keep_every.max(1), ..options };
        let memory = Memory::new(capacity.slots, capacity.pages, sizes);
        let disk = persist::open(options.disk.as_ref().filter(|_| memory.cache.is_on()), &runner.device);
        let stats = Stats { slots: capacity.slots, pages: capacity.pages, ..Stats::default() };
        let (waiting, running, endings) = (VecDeque::new(), Vec::new(), Vec::new());
        Scheduler { runner, options, inbox, memory, waiting, running, disk, flight: None, row_time: Duration::ZERO, endings, stats }
    }

    /// Works until the engine is closed and everyone has heard their last event.
    pub fn run(mut self) {
        self.publish();
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            let arrivals = self.inbox.collect(idle && !self.disk.as_ref().is_some_and(DiskTier::is_busy));
            for job in arrivals.jobs {
                self.stats.submitted += 1;
                self.waiting.push_back(Sequence::new(job, self.options.context, self.options.keep_every));
            }
            if let Some(closing) = arrivals.closing {
                self.close(closing);
            }
            self.turn();
            self.publish();
            if arrivals.closing.is_some() && self.running.is_empty() && self.waiting.is_empty() {
                self.close_disk();
                self.publish();
                return;
            }
        }
    }

    /// One pass of the model, and what comes before and after it.
    fn turn(&mut self) {
        self.drop_cancelled_waiting();
        self.fly();
        if self.flight.is_some() {
            return;
        }
        self.drop_cancelled_running();
        self.admit();
        let parts = self.compose();
        if self.disk.as_ref().is_some_and(DiskTier::is_busy) && !self.settle() {
            return;
        }
        self.step_disk(parts.is_empty());
        if parts.is_empty() {
            return;
        }
        match self.pass(&parts) {
            Ok(()) => self.deliver(&parts),
            Err(error) => {
                tracing::error!(%error, sequences = parts.len(), "a pass failed");
                let error = Arc::new(EngineError::Model(error));
                parts.iter().for_each(|part| self.fail(part.id, error.clone()));
            }
        }
    }

    fn close(&mut self, closing: Closing) {
        if closing >= Closing::Finish {
            let (begun, new): (VecDeque<_>, VecDeque<_>) = self.waiting.drain(..).partition(|sequence| sequence.started.is_some());
            self.waiting = begun;
            new.into_iter().for_each(|sequence| self.end(sequence, Event::Failed(Arc::new(EngineError::ShuttingDown))));
        }
        if closing == Closing::Cancel {
            let rest: Vec<Sequence> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
            rest.into_iter().for_each(|sequence| self.end(sequence, Event::Failed(Arc::new(EngineError::ShuttingDown))));
        }
    }

    /// Takes out of the queue whose caller is gone: in every turn, also while passes follow each other ahead of the
    /// host, since each of them keeps a place that another request could have.
    fn drop_cancelled_waiting(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|sequence| !sequence.events.is_closed());
        self.stats.cancelled += (before - self.waiting.len()) as u64;
    }

    /// Frees what callers no longer wait for. The prefix computed so far is kept.
    fn drop_cancelled_running(&mut self) {
        let gone: Vec<u64> = self.running.iter().filter(|sequence| sequence.events.is_closed()).map(|sequence| sequence.id).collect();
        if gone.is_empty() || !self.settle() {
            return;
        }
        for id in gone {
            let mut sequence = self.take(id);
            tracing::debug!(id, tokens = sequence.done, "cancelled");
            self.memory.save(&mut sequence, &self.runner.device);
            self.memory.release(&mut sequence);
            self.stats.cancelled += 1;
        }
    }

    /// Chooses who is part of the next batch and sees to their pages.
    fn compose(&mut self) -> Vec<Part> {
        let mut parts = self.choose();
        for part in parts.clone() {
            self.reserve(part);
        }
        // Making room for one may have cost another its place.
        parts.retain(|part| self.running.iter().any(|sequence| sequence.id == part.id));
        parts
    }

    fn choose(&self) -> Vec<Part> {
        let capacity = self.runner.device.capacity();
        let mut turn: Vec<&Sequence> = self.running.iter().collect();
        turn.sort_by_key(|sequence| (sequence.served, sequence.id));
        let prefilling = turn.iter().copied().find(|sequence| sequence.pending() > 1);
        let decoding = turn.iter().copied().filter(|sequence| sequence.pending() == 1);

        let room = capacity.rows.min(capacity.logit_rows);
        let room = if prefilling.is_some() { room - 1 } else { room };
        let mut parts: Vec<Part> = decoding.take(room).map(|sequence| Part { id: sequence.id, rows: 1 }).collect();
        if let Some(sequence) = prefilling {
            let grid = self.options.chunk.min(self.runner.device.prompt_rows(sequence.done));
            let chunk = if parts.is_empty() { grid } else { self.chunk_shared().min(grid) };
            let end = sequence.chunk_end(chunk.min(capacity.rows - parts.len()), grid);
            parts.push(Part { id: sequence.id, rows: end - sequence.done });
        }
        parts
    }

    fn chunk_shared(&self) -> usize {
        let most = self.options.chunk_shared;
        if self.row_time.is_zero() {
            return most;
        }
        let in_time = self.options.wait_shared.as_secs_f64() / self.row_time.as_secs_f64();
        (in_time as usize).clamp(CHUNK_MIN.min(most), most)
    }

    /// Makes room for a part: first at the cost of the cache, then of what is on its way to disk, then of the
    /// youngest sequence, itself included.
    fn reserve(&mut self, part: Part) {
        while let Some(at) = self.running.iter().position(|sequence| sequence.id == part.id) {
            let sequence = &mut self.running[at];
            let end = sequence.done + part.rows;
            if self.memory.grow(sequence, end, &mut self.runner.device).is_ok() {
                return;
            }
            let pool = &mut self.memory.pool;
            if !self.memory.cache.evict_for_page(pool) && !self.disk.as_mut().is_some_and(|disk| disk.give_up(pool)) {
                if !self.settle() {
                    return;
                }
                assert!(self.running.len() > 1, "one sequence finds room in an empty device: the context is bounded by the pages");
                self.preempt();
            }
        }
    }

    /// Sends the youngest running sequence back to the queue, to its place by age.
    fn preempt(&mut self) {
        let mut sequence = self.running.pop().expect("a running sequence");
        tracing::info!(id = sequence.id, tokens = sequence.done, "preempted: no page is free");
        self.stats.preempted += 1;
        self.memory.save(&mut sequence, &self.runner.device);
        self.memory.release(&mut sequence);
        let at = self.waiting.partition_point(|other| other.id < sequence.id);
        self.waiting.insert(at, sequence);
    }

    fn pass(&mut self, parts: &[Part]) -> Result<(), lily_model::ModelError> {
        let started = Instant::now();
        let spans: Vec<Span<'_>> = parts.iter().map(|part| span(&self.running, *part)).collect();
        let batch = Batch { spans: &spans };
        let result = self.stats.timed(&batch, |batch| self.runner.run(batch));
        let elapsed = started.elapsed();
        if batch.rows() >= CHUNK_MIN {
            let row_time = elapsed / batch.rows() as u32;
            self.row_time = if self.row_time.is_zero() { row_time } else { (self.row_time + row_time) / 2 };
        }
        result?;
        let keeps = |part: &Part| self.running.iter().any(|one| one.id == part.id && one.keeps.contains(&(one.done + part.rows)));
        if parts.iter().any(keeps) { self.runner.device.flush() } else { Ok(()) }
    }

    pub(crate) fn sequence(&mut self, id: u64) -> &mut Sequence {
        self.running.iter_mut().find(|sequence| sequence.id == id).expect("a running sequence")
    }

    fn take(&mut self, id: u64) -> Sequence {
        let at = self.running.iter().position(|sequence| sequence.id == id).expect("a running sequence");
        self.running.remove(at)
    }

    pub(crate) fn fail(&mut self, id: u64, error: Arc<EngineError>) {
        let sequence = self.take(id);
        self.end(sequence, Event::Failed(error));
    }

    /// `keep`: its state, for whoever goes on from here.
    pub(crate) fn finish(&mut self, id: u64, reason: crate::Finish, keep: bool) {
        let mut sequence = self.take(id);
        if keep {
            self.memory.save(&mut sequence, &self.runner.device);
            self.keep_on_disk(&sequence);
        }
        let usage = sequence.usage();
        self.stats.decode += usage.decode;
        tracing::info!(id, ?reason, generated = usage.generated_tokens, prefill = ?usage.prefill, decode = ?usage.decode, "finished");
        self.end(sequence, Event::Finished { reason, usage });
    }

    fn end(&mut self, mut sequence: Sequence, event: Event) {
        match &event {
            Event::Finished { reason: crate::Finish::Stop, .. } => self.stats.finished_stop += 1,
            Event::Finished { .. } => self.stats.finished_length += 1,
            _ => self.stats.failed += 1,
        }
        self.memory.release(&mut sequence);
        self.endings.push((sequence.events, event));
    }

    fn publish(&mut self) {
        let Memory { slots_free, pool, cache } = &self.memory;
        let stats = &mut self.stats;
        stats.waiting = self.waiting.len();
        stats.prefilling = self.running.iter().filter(|sequence| sequence.first_token.is_none()).count();
        stats.decoding = self.running.len() - stats.prefilling;
        stats.slots_used = stats.slots - slots_free.len();
        stats.pages_cached = cache.evictable(pool);
        stats.pages_used = pool.total() - pool.free() - stats.pages_cached;
        let (disk_entries, disk_bytes) = match &self.disk {
            Some(disk) => disk.size(),
            None => (stats.cache.disk_entries, stats.cache.disk_bytes),
        };
        stats.cache = CacheStats { entries: cache.len(), bytes: cache.bytes(), disk_entries, disk_bytes, ..cache.stats.clone() };
        self.inbox.publish(stats);
        for (events, event) in self.endings.drain(..) {
            let _ = events.send(event);
        }
    }
}

fn span(running: &[Sequence], part: Part) -> Span<'_> {
    let sequence = running.iter().find(|sequence| sequence.id == part.id).expect("a running sequence");
    let end = sequence.done + part.rows;
    Span {
        slot: sequence.slot.expect("a running sequence has a slot"),
        start: sequence.done,
        tokens: &sequence.tokens[sequence.done..end],
        pages: &sequence.pages,
        logits: if end == sequence.tokens.len() { Logits::Last } else { Logits::None },
    }
}
