//! The disk tier of the state cache: saved prefixes that survive a restart.
//!
//! The end of each answer and the message boundaries that its prompt kept go to disk, full KV pages once for
//! all conversations that share them. Copying happens page by page between passes ([`DiskTier::step`]), the
//! writing on a thread of its own ([`writer`]). A prompt that finds more on disk than in memory is restored
//! from there ([`DiskTier::restore`]). Files: [`container`]; the size limit: [`index`].

pub(crate) mod container;
pub(crate) mod index;
pub(crate) mod keys;
mod writer;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex};

use lily_model::{Device, PAGE_TOKENS, Page, Slot, StateCopy};

use crate::pages::PagePool;
pub(crate) use container::DiskError;
use container::{Kind, ModelHash};
use index::Index;
use keys::{Key, keys};
use writer::{Job, Writer, lock};

/// Shorter prefixes are computed again faster than a state is read.
const TOKENS_MIN: usize = 512;

/// Where and how much the state cache may keep on disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Made if absent. Each model has its own directory in it, used by one process at a time.
    pub directory: PathBuf,
    /// Limit for each model's directory.
    pub bytes_max: u64,
    /// What identifies the checkpoint, such as a hash of its index: states of another one are never used.
    pub model: String,
}

/// A prefix on its way to disk. It holds its pages until their bytes are copied.
struct Spill {
    tokens: Vec<u32>,
    pages: Vec<Page>,
    /// Keys of the full ones.
    keys: Vec<Key>,
    state: Arc<StateCopy>,
    next: usize,
}

pub(crate) struct DiskTier {
    index: Arc<Mutex<Index>>,
    model: ModelHash,
    writer: Writer,
    spills: VecDeque<Spill>,
    /// Copied, but the writer's queue was full.
    blocked: Option<Job>,
    page_bytes: u64,
}

impl DiskTier {
    pub fn open<D: Device>(options: &DiskOptions, device: &D) -> Result<DiskTier, DiskError> {
        let page_bytes = device.page_save(Page(0)).len();
        let model = model_hash(&options.model, device, page_bytes);
        let name: String = model[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let index = Index::open(&options.directory.join(name), model, options.bytes_max)?;
        tracing::info!(states = index.states(), bytes = index.bytes(), directory = %options.directory.display(), "cache on disk");
        let index = Arc::new(Mutex::new(index));
        let writer = Writer::start(index.clone());
        Ok(DiskTier { index, model, writer, spills: VecDeque::new(), blocked: None, page_bytes: page_bytes as u64 })
    }

    /// Length of the longest stored prefix, 0 where there is none.
    pub fn find(&self, tokens: &[u32]) -> usize {
        lock(&self.index).find(tokens)
    }

    /// Tokens of the stored prefixes that no longer one begins with.
    pub fn longest(&self) -> Vec<Vec<u32>> {
        lock(&self.index).longest()
    }

    /// States on disk, and all bytes there.
    pub fn size(&self) -> (usize, u64) {
        let index = lock(&self.index);
        (index.states(), index.bytes())
    }

    /// Reads a stored prefix into a slot and into pages that cover it. On an error both hold rubbish, and the
    /// prefix is forgotten.
    pub fn restore<D: Device>(&self, tokens: &[u32], slot: Slot, pages: &[Page], device: &mut D) -> Result<(), DiskError> {
        let (page_keys, key) = keys(&self.model, tokens);
        let forget = |page| {
            move |error| {
                lock(&self.index).forget(tokens, page);
                error
            }
        };
        self.restore_state(tokens, key, slot, pages, device).map_err(forget(None))?;
        for (&key, &page) in page_keys.iter().zip(pages) {
            self.restore_page(key, page, device).map_err(forget(Some(key)))?;
        }
        lock(&self.index).touch(tokens);
        Ok(())
    }

    fn restore_state<D: Device>(&self, tokens: &[u32], key: Key, slot: Slot, pages: &[Page], device: &mut D) -> Result<(), DiskError> {
        let path = lock(&self.index).state_path(key);
        let parts = container::read(&path, Kind::State, &self.model)?;
        let [stored, state, tail] =
            <[Vec<u8>; 3]>::try_from(parts).map_err(|parts| DiskError::file(&path, format!("expected 3 parts, found {}", parts.len())))?;
        if keys::tokens_of(&stored).as_deref() != Some(tokens) {
            return Err(DiskError::file(&path, "it is the state of other tokens"));
        }
        device.state_load(slot, &StateCopy(state.into()))?;
        if !tokens.len().is_multiple_of(PAGE_TOKENS) {
            device.page_load(*pages.last().expect("pages cover the tokens"), &tail)?;
        }
        Ok(())
    }

    fn restore_page<D: Device>(&self, key: Key, page: Page, device: &mut D) -> Result<(), DiskError> {
        let path = lock(&self.index).page_path(key);
        let parts = container::read(&path, Kind::Page, &self.model)?;
        let [bytes] =
            <[Vec<u8>; 1]>::try_from(parts).map_err(|parts| DiskError::file(&path, format!("expected 1 part, found {}", parts.len())))?;
        Ok(device.page_load(page, &bytes)?)
    }

    /// Puts a saved prefix on the list of what goes to disk, unless it is there or too short to be worth it.
    pub fn keep(&mut self, tokens: &[u32], pages: &[Page], state: Arc<StateCopy>, pool: &mut PagePool) {
        let bytes = pages.len() as u64 * self.page_bytes + state.0.len() as u64 + 4 * tokens.len() as u64;
        let index = lock(&self.index);
        let listed = self.spills.iter().any(|spill| spill.tokens == tokens);
        if tokens.len() < TOKENS_MIN || listed || index.contains(tokens) || !index.could_hold(bytes) {
            return;
        }
        pages.iter().for_each(|&page| pool.hold(page));
        let (keys, _) = keys(&self.model, tokens);
        self.spills.push_back(Spill { tokens: tokens.to_vec(), pages: pages.to_vec(), keys, state, next: 0 });
    }

    pub fn is_busy(&self) -> bool {
        self.blocked.is_some() || !self.spills.is_empty()
    }

    /// Copies and hands over one page or state; with `patience`, waits for the writer where it is behind.
    pub fn step<D: Device>(&mut self, device: &D, pool: &mut PagePool, patience: bool) {
        let Some(job) = self.blocked.take().or_else(|| self.next_job(device, pool)) else { return };
        if patience {
            // A writer that is gone has reported why.
            let _ = self.writer.jobs.send(job);
        } else if let Err(TrySendError::Full(job)) = self.writer.jobs.try_send(job) {
            self.blocked = Some(job);
        }
    }

    fn next_job<D: Device>(&mut self, device: &D, pool: &mut PagePool) -> Option<Job> {
        let spill = self.spills.front_mut()?;
        while let Some(&key) = spill.keys.get(spill.next) {
            let page = spill.pages[spill.next];
            spill.next += 1;
            if !lock(&self.index).has_page(key) {
                return Some(Job::Page { key, bytes: device.page_save(page) });
            }
        }
        let spill = self.spills.pop_front()?;
        let tail = spill.pages.get(spill.keys.len()).map_or_else(Box::default, |&page| device.page_save(page));
        spill.pages.iter().for_each(|&page| pool.release(page));
        Some(Job::State { tokens: spill.tokens, state: spill.state, tail })
    }

    /// Gives up what is not copied yet, because its pages are needed. `false` if there was nothing.
    pub fn give_up(&mut self, pool: &mut PagePool) -> bool {
        let pages: Vec<Page> = self.spills.drain(..).flat_map(|spill| spill.pages).collect();
        pages.iter().for_each(|&page| pool.release(page));
        !pages.is_empty()
    }

    /// Writes everything that is listed and ends the writer. Returns the size at the end.
    pub fn finish<D: Device>(mut self, device: &D, pool: &mut PagePool) -> (usize, u64) {
        while self.is_busy() {
            self.step(device, pool, true);
        }
        let Writer { jobs, thread } = self.writer;
        drop(jobs);
        let _ = thread.join();
        let index = lock(&self.index);
        (index.states(), index.bytes())
    }
}

/// A device's layout is part of what a file belongs to: `name` begins with the kind of the device.
fn model_hash<D: Device>(model: &str, device: &D, page_bytes: usize) -> ModelHash {
    let name = device.name();
    let kind = name.split(' ').next().unwrap_or_default();
    *blake3::hash(format!("{model}\n{kind}\n{} {page_bytes}", device.state_bytes()).as_bytes()).as_bytes()
}
