//! Where callers and the engine's thread meet: arrived requests, the wish to stop, the latest statistics.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::stats::Stats;
use crate::{EngineError, Event, Request};

/// An accepted request on its way to the scheduler.
pub(crate) struct Job {
    /// Order of arrival.
    pub id: u64,
    pub request: Request,
    pub events: UnboundedSender<Event>,
    pub ticket: Ticket,
    pub submitted: Instant,
}

/// A place among the requests in flight; dropping it makes room for another.
pub(crate) struct Ticket(Arc<Inbox>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

/// How the engine ends, from patient to impatient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Closing {
    /// All handles are gone: what was accepted is finished.
    Drain,
    /// What runs is finished, what waits is refused.
    Finish,
    /// Everything ends now.
    Cancel,
}

/// What [`Inbox::collect`] found.
pub(crate) struct Arrivals {
    pub jobs: Vec<Job>,
    pub closing: Option<Closing>,
}

#[derive(Default)]
struct State {
    arrived: Vec<Job>,
    /// Accepted requests that have not ended.
    in_flight: usize,
    next_id: u64,
    closing: Option<Closing>,
    /// The thread ended by a panic.
    crashed: bool,
    /// Set by whoever wants the thread to look around.
    woken: bool,
    stats: Stats,
}

pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    /// Accepted requests that may be in flight: the slots and the queue.
    in_flight_max: usize,
    queue_max: usize,
}

impl Inbox {
    pub fn new(slots: usize, queue_max: usize) -> Self {
        Inbox { state: Mutex::default(), changed: Condvar::new(), in_flight_max: slots.saturating_add(queue_max), queue_max }
    }

    /// The state stays sound whatever panicked while it was locked: no update of it is made in steps.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn accept(self: &Arc<Self>, request: Request, events: UnboundedSender<Event>) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.crashed {
            return Err(EngineError::Stopped);
        }
        if state.closing.is_some() {
            return Err(EngineError::ShuttingDown);
        }
        if state.in_flight >= self.in_flight_max {
            return Err(EngineError::QueueFull { waiting: self.queue_max });
        }
        let id = state.next_id;
        state.next_id += 1;
        state.in_flight += 1;
        let ticket = Ticket(self.clone());
        state.arrived.push(Job { id, request, events, ticket, submitted: Instant::now() });
        drop(state);
        self.wake();
        Ok(())
    }

    pub fn close(&self, closing: Closing) {
        let mut state = self.lock();
        state.closing = state.closing.max(Some(closing));
        drop(state);
        self.wake();
    }

    pub fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_all();
    }

    /// What arrived since the last call. With `block`, sleeps until something happened.
    pub fn collect(&self, block: bool) -> Arrivals {
        let mut state = self.lock();
        while block && !state.woken && state.closing.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.woken = false;
        Arrivals { jobs: std::mem::take(&mut state.arrived), closing: state.closing }
    }

    /// The thread is gone: nothing that arrives from now on would be seen.
    pub fn seal(&self, crashed: bool) {
        let mut state = self.lock();
        state.crashed |= crashed;
        state.closing = Some(Closing::Cancel);
        let unseen = std::mem::take(&mut state.arrived);
        drop(state);
        // Their tickets lock the inbox.
        drop(unseen);
    }

    pub fn publish(&self, stats: &Stats) {
        self.lock().stats = stats.clone();
    }

    pub fn stats(&self) -> Stats {
        let state = self.lock();
        let mut stats = state.stats.clone();
        stats.waiting += state.arrived.len();
        stats
    }
}
