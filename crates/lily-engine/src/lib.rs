//! Sessions, scheduling, state cache and sampling over one model on one device; speaks tokens, never text.
//!
//! Start with [`Engine::submit`]: a request enters the fair queue of the engine's own thread, and a
//! [`Generation`] hears what becomes of it. Dropping the generation cancels it. The thread's
//! life stands in `scheduler.rs`: each of its turns is one batch of the model.

use std::time::Duration;

mod admission;
mod ahead;
mod cache;
mod deliver;
mod disk;
mod draw;
mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod generation;
mod inbox;
mod memory;
mod pages;
mod persist;
mod request;
mod sampling;
mod scheduler;
mod sequence;
mod stats;
mod tree;

pub use disk::DiskOptions;
pub use engine::Engine;
pub use generation::Generation;
pub use request::{Constraint, Event, Finish, Logprobs, Lookup, Request, Sampling, Usage};
pub use stats::{CacheStats, Stats};

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    #[error("the prompt has {prompt} tokens; the context holds {context}")]
    PromptTooLong { prompt: usize, context: usize },
    #[error("token {token} in the prompt; the vocabulary has {vocab}")]
    UnknownToken { token: u32, vocab: usize },
    /// A sampling parameter that has no meaning.
    #[error("{field}: expected {expected}, found {found}")]
    Sampling { field: &'static str, expected: String, found: String },
    #[error("the queue is full: {waiting} requests are waiting")]
    QueueFull { waiting: usize },
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// A constraint that left the engine without a token to choose.
    #[error("constraint: {0}")]
    Constraint(String),
    /// The engine's thread ended by a bug; it must be started anew.
    #[error("the engine stopped unexpectedly")]
    Stopped,
    #[error(transparent)]
    Model(#[from] lily_model::ModelError),
}

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Positions a sequence may have; at most the model's and what the device's pages hold.
    pub context: usize,
    /// Requests that may wait while all slots are taken.
    pub queue_max: usize,
    /// Rows of one prefill chunk; at most the device's.
    pub chunk: usize,
    /// The most rows of one prefill chunk while other sequences wait for their next token.
    pub chunk_shared: usize,
    /// How long such a chunk may make them wait: fewer rows are taken where the device is slow.
    pub wait_shared: Duration,
    /// Bytes that the state cache may hold: state copies and the KV pages that only it refers to. 0 turns it off.
    pub cache_bytes: usize,
    /// A long prompt's state is kept every so many tokens.
    pub keep_every: usize,
    /// Keeps the state cache on disk as well, so that it survives a restart.
    pub disk: Option<DiskOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            context: usize::MAX,
            queue_max: 64,
            chunk: 512,
            chunk_shared: 128,
            wait_shared: Duration::from_millis(500),
            cache_bytes: 2 << 30,
            keep_every: 4096,
            disk: None,
        }
    }
}
