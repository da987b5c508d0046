//! The caller's end of a request.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::inbox::Inbox;
use crate::{EngineError, Event};

/// A submitted request. Dropping it cancels the request within one chunk or token.
pub struct Generation {
    events: UnboundedReceiver<Event>,
    inbox: Arc<Inbox>,
    ended: bool,
}

impl Generation {
    pub(crate) fn new(events: UnboundedReceiver<Event>, inbox: Arc<Inbox>) -> Self {
        Generation { events, inbox, ended: false }
    }

    /// The next event; `None` after `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        self.note(event)
    }

    /// The same for callers without a runtime; inside an asynchronous task it panics.
    pub fn next_blocking(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// A channel that closes before a last event means that the engine's thread is gone.
    fn note(&mut self, event: Option<Event>) -> Option<Event> {
        let event = event.unwrap_or_else(|| Event::Failed(Arc::new(EngineError::Stopped)));
        self.ended = matches!(event, Event::Finished { .. } | Event::Failed(_));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // The engine sees the closed channel; it has to look, even when it is asleep.
        self.events.close();
        self.inbox.wake();
    }
}
