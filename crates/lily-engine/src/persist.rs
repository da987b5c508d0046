//! What the scheduler does with the disk tier: resume from it, feed it, close it.

use lily_model::{Device, PAGE_TOKENS};

use crate::disk::{DiskOptions, DiskTier};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::tree::Found;

/// Reading a state must save so many tokens over what memory holds.
const GAIN_MIN: usize = 64;

/// A cache directory that cannot be used is reported and done without.
pub(crate) fn open<D: Device>(options: Option<&DiskOptions>, device: &D) -> Option<DiskTier> {
    let tier = DiskTier::open(options?, device);
    tier.inspect_err(|error| tracing::warn!(%error, "the cache is not kept on disk")).ok()
}

impl<D: Device> Scheduler<D> {
    /// Starts a sequence from disk if that saves clearly more than `found`, which is what memory has. The
    /// sequence is as it was if not. Others wait while the files are read: a gigabyte for 50,000 tokens of the
    /// real model, a small part of the time that computing them would take from everyone.
    pub(crate) fn start_from_disk(&mut self, sequence: &mut Sequence, found: Found) -> bool {
        let position = self.disk.as_ref().map_or(0, |disk| disk.find(&sequence.tokens));
        if position < found.position + GAIN_MIN {
            return false;
        }
        let nowhere = Found { node: None, position: 0, common: 0 };
        self.memory.start(sequence, nowhere, &mut self.runner.device);
        if self.restore(sequence, position) {
            sequence.done = position;
            sequence.turns = 1;
            self.memory.save(sequence, &self.runner.device);
            return true;
        }
        self.memory.release(sequence);
        false
    }

    fn restore(&mut self, sequence: &mut Sequence, position: usize) -> bool {
        while sequence.pages.len() < position.div_ceil(PAGE_TOKENS) {
            match self.memory.pool.take() {
                Some(page) => sequence.pages.push(page),
                None if self.memory.cache.evict_for_page(&mut self.memory.pool) => {}
                None => return false,
            }
        }
        let disk = self.disk.as_ref().expect("the prefix was found there");
        let slot = sequence.slot.expect("a started sequence has a slot");
        let restored = disk.restore(&sequence.tokens[..position], slot, &sequence.pages, &mut self.runner.device);
        restored.inspect_err(|error| tracing::warn!(%error, "a cached state is unusable and forgotten")).is_ok()
    }

    /// Lists the prefixes that a finished sequence saved: its first and last boundary and its end.
    pub(crate) fn keep_on_disk(&mut self, sequence: &Sequence) {
        let Some(disk) = &mut self.disk else { return };
        let kept = |at: Option<&usize>| at.copied().filter(|&at| at <= sequence.done);
        for at in [kept(sequence.keeps.first()), kept(sequence.keeps.last()), Some(sequence.done)].into_iter().flatten() {
            let tokens = &sequence.tokens[..at];
            if let Some((pages, state)) = self.memory.cache.peek(tokens) {
                disk.keep(tokens, pages, state, &mut self.memory.pool);
            }
        }
    }

    /// One page or state between two passes; while there is nothing else to do, at the writer's pace.
    pub(crate) fn step_disk(&mut self, patience: bool) {
        if let Some(disk) = &mut self.disk {
            disk.step(&self.runner.device, &mut self.memory.pool, patience);
        }
    }

    pub(crate) fn close_disk(&mut self) {
        if let Some(disk) = self.disk.take() {
            let size = disk.finish(&self.runner.device, &mut self.memory.pool);
            (self.stats.cache.disk_entries, self.stats.cache.disk_bytes) = size;
        }
    }
}
