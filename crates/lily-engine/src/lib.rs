//! Sessions, scheduling and sampling over one model on one device; speaks tokens, never text.
//!
//! Start with [`Engine::submit`]: a request enters the fair queue of the engine's own thread, and a
//! [`Generation`] hears what becomes of it. Dropping the generation cancels it.

mod request;

pub use request::{Constraint, Event, Finish, Logprobs, Request, Sampling, Usage};

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    #[error("the prompt has {prompt} tokens; the context holds {context}")]
    PromptTooLong { prompt: usize, context: usize },
    #[error("token {token} in the prompt; the vocabulary has {vocab}")]
    UnknownToken { token: u32, vocab: usize },
    #[error("the queue is full: {waiting} requests are waiting")]
    QueueFull { waiting: usize },
    #[error("the engine is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Model(#[from] lily_model::ModelError),
}

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Positions a sequence may have; at most the model's.
    pub context: usize,
    /// Requests that may wait.
    pub queue_max: usize,
    /// Rows of one prefill chunk.
    pub chunk: usize,
}

/// A running engine; clone it freely.
#[derive(Clone)]
pub struct Engine {
    // to be filled by the engine's author: channel to the engine thread, shared statistics
}

/// A submitted request. Dropping it cancels the request within one chunk or token.
pub struct Generation {
    // to be filled: tokio::sync::mpsc::UnboundedReceiver<Event>, cancel flag
}

impl Engine {
    /// Starts the engine's thread over a runner.
    pub fn start<D: lily_model::Device + 'static>(_runner: lily_model::Runner<D>, _options: Options) -> Engine {
        todo!()
    }

    /// Queues a request; fails at once where it can never run.
    pub fn submit(&self, _request: Request) -> Result<Generation, EngineError> {
        todo!()
    }

    /// Positions a sequence may have.
    pub fn context(&self) -> usize {
        todo!()
    }

    /// Stops accepting, finishes or cancels what runs, joins the thread.
    pub fn shutdown(&self, _finish_running: bool) {
        todo!()
    }
}

impl Generation {
    /// The next event; `None` after `Finished` or `Failed`.
    pub async fn next(&mut self) -> Option<Event> {
        todo!()
    }

    /// The same for callers without a runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        todo!()
    }
}
