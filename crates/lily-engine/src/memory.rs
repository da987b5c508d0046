//! What sequences hold on the device: slots, pages, saved prefixes. Taking, growing, saving, giving back.

use lily_model::{Device, PAGE_TOKENS, Slot};

use crate::cache::{Place, Prefix, Resume, Sizes, StateCache};
use crate::pages::PagePool;
use crate::sequence::Sequence;
use crate::tree::Found;

/// No page is free. The caller decides who has to give one up.
#[derive(Debug)]
pub(crate) struct NoPage;

pub(crate) struct Memory {
    pub slots_free: Vec<Slot>,
    pub pool: PagePool,
    pub cache: StateCache,
}

impl Memory {
    pub fn new(slots: usize, pages: usize, sizes: Sizes) -> Self {
        Memory { slots_free: (0..slots as u32).rev().map(Slot).collect(), pool: PagePool::new(pages), cache: StateCache::new(sizes, pages) }
    }

    /// Whether a sequence's present tokens find room beside those that run, on top of `reserved` pages.
    pub fn has_room(&self, sequence: &Sequence, found: Found, reserved: usize) -> bool {
        let shared = found.position / PAGE_TOKENS;
        let needed = (sequence.tokens.len() + 1).div_ceil(PAGE_TOKENS) - shared;
        needed + reserved <= self.pool.free() + self.cache.evictable_beside(found.node, &self.pool)
    }

    /// Gives a sequence a slot with the state of the deepest saved prefix. There must be a free slot.
    pub fn start<D: Device>(&mut self, sequence: &mut Sequence, found: Found, device: &mut D) {
        let slot = self.slots_free.pop().expect("a free slot");
        sequence.slot = Some(slot);
        let Some(id) = found.node else { return device.state_clear(slot) };

        let Resume { pages, state, turns } = self.cache.resume(id);
        if let Err(error) = device.state_load(slot, state) {
            tracing::warn!(%error, position = found.position, "a cached state could not be loaded; it is dropped");
            self.cache.discard(id, &mut self.pool);
            return device.state_clear(slot);
        }
        pages.iter().for_each(|&page| self.pool.hold(page));
        sequence.pages = pages.to_vec();
        sequence.pages_read_only = pages.len();
        sequence.done = found.position;
        sequence.turns = turns;
        self.cache.pin(id);
        sequence.pin = Some(id);
    }

    /// Makes the pages of positions `done..end` exist and belong to the sequence. What was taken before
    /// [`NoPage`] stays with it.
    pub fn grow<D: Device>(&mut self, sequence: &mut Sequence, end: usize, device: &mut D) -> Result<(), NoPage> {
        let first = sequence.done / PAGE_TOKENS;
        if first < sequence.pages_read_only {
            let shared = sequence.pages[first];
            if self.pool.holders(shared) > 1 {
                let own = self.pool.take().ok_or(NoPage)?;
                device.page_copy(shared, own);
                self.pool.release(shared);
                sequence.pages[first] = own;
            }
            sequence.pages_read_only = first;
        }
        while sequence.pages.len() * PAGE_TOKENS < end {
            sequence.pages.push(self.pool.take().ok_or(NoPage)?);
        }
        Ok(())
    }

    /// Keeps the state after the tokens done so far, where that is worth its bytes.
    pub fn save<D: Device>(&mut self, sequence: &mut Sequence, device: &D) {
        let Some(slot) = sequence.slot else { return };
        if sequence.done == 0 {
            return;
        }
        let tokens = &sequence.tokens[..sequence.done];
        let entry = match self.cache.place(tokens) {
            Place::Needless => return,
            Place::Taken(id) => Some(id),
            Place::Worthwhile => {
                // Its own earlier copy may have to go for this one.
                sequence.pin.take().inspect(|&id| self.cache.unpin(id));
                let pages = &sequence.pages[..sequence.done.div_ceil(PAGE_TOKENS)];
                self.cache.insert(Prefix { tokens, pages, turns: sequence.turns }, device.state_save(slot), &mut self.pool)
            }
        };
        sequence.pin.take().inspect(|&id| self.cache.unpin(id));
        entry.inspect(|&id| self.cache.pin(id));
        sequence.pin = entry;
    }

    /// Takes back all that a sequence holds on the device; saved prefixes stay.
    pub fn release(&mut self, sequence: &mut Sequence) {
        sequence.pin.take().inspect(|&id| self.cache.unpin(id));
        self.slots_free.extend(sequence.slot.take());
        for page in std::mem::take(&mut sequence.pages) {
            self.pool.release(page);
        }
        sequence.pages_read_only = 0;
        sequence.done = 0;
    }
}
