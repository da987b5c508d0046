//! Lily over HTTP: OpenAI's API in front of one engine. Knows text and tokens, no tensors.
//!
//! Start with the routes in `router.rs`. A generating request goes: `body.rs` (JSON, limits) → the route's
//! `request.rs` (fields, checked) → `generate.rs` (prompt to pieces of an answer) → the route's `reply.rs`
//! (pieces to chunks, or folded to one object) → `sse.rs`. Around it: `serve.rs` accepts connections and
//! stops, `auth.rs` and `access.rs` wrap every route.
//!
//! Invariants: a whole answer is the folded stream; dropping a response cancels its work; what a client
//! sends never brings a status of 500 or above.

mod access;
mod anthropic;
mod auth;
mod body;
mod chat;
mod completions;
mod error;
mod fields;
mod figures;
mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod generate;
mod health;
mod host;
mod metrics;
mod models;
mod openapi;
mod options;
mod page;
mod responses;
mod router;
mod sampling;
mod secrets;
mod serve;
mod service;
mod sse;
mod tokenize;
mod trace;
mod usage;

pub use chat::tools::read_tools;
pub use options::{ServerError, ServerOptions, bind};
pub use serve::serve;
pub use service::{Service, checkpoint_sampling};
