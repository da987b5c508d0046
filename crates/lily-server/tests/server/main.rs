//! The server ring: whole requests over a real socket, answers checked to the byte where they are fixed.
//!
//! The engine is the real one, with its scheduler and state cache; below it stands a device that says what
//! a test wrote down instead of computing ([`device`]). [`harness`] starts a server on a free port,
//! [`client`] speaks HTTP to it. The rest is cases, one file per kind.

mod client;
mod device;
mod harness;

mod abuse;
mod access;
mod admission;
mod anthropic;
mod chat;
mod completions;
mod lifecycle;
mod mutations;
mod openapi;
mod requests;
mod responses;
mod routes;
mod sampling;
mod structured;
mod traces;
