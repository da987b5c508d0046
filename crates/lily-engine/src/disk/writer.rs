//! The thread that writes: it takes whole byte strings, so that the engine never waits for a disk.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lily_model::StateCopy;

use super::container::{self, DiskError, Kind};
use super::index::Index;
use super::keys::{Key, keys, token_bytes};

/// Byte strings that may wait for the disk: a page of the real model is 5 MB, a state 63 MB.
const QUEUE_MAX: usize = 4;

pub(crate) enum Job {
    Page {
        key: Key,
        bytes: Box<[u8]>,
    },
    /// Its pages were sent before it.
    State {
        tokens: Vec<u32>,
        state: Arc<StateCopy>,
        tail: Box<[u8]>,
    },
}

pub(crate) struct Writer {
    pub jobs: SyncSender<Job>,
    pub thread: JoinHandle<()>,
}

impl Writer {
    pub fn start(index: Arc<Mutex<Index>>) -> Writer {
        let (jobs, receiver) = sync_channel(QUEUE_MAX);
        let work = move || work(&receiver, &index);
        let thread = thread::Builder::new().name("lily-cache-writer".into()).spawn(work).expect("the system can start a thread");
        Writer { jobs, thread }
    }
}

pub(crate) fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A full disk costs a message for each attempt, and nothing else.
fn work(jobs: &Receiver<Job>, index: &Mutex<Index>) {
    for job in jobs {
        if let Err(error) = write(job, index) {
            tracing::warn!(%error, "the cache could not be written");
        }
    }
}

/// The index is locked for what takes no time only.
fn write(job: Job, index: &Mutex<Index>) -> Result<(), DiskError> {
    let model = lock(index).model;
    match job {
        Job::Page { key, bytes } => {
            let path = lock(index).page_path(key);
            let written = container::write(&path, Kind::Page, &model, &[&bytes])?;
            lock(index).add_page(key, written);
        }
        Job::State { tokens, state, tail } => {
            let path = lock(index).state_path(keys(&model, &tokens).1);
            let written = container::write(&path, Kind::State, &model, &[&token_bytes(&tokens), &state.0, &tail])?;
            lock(index).add_state(&tokens, written);
        }
    }
    Ok(())
}
