//! Gated causal attention over paged keys and values.
//!
//! All query heads that share a key/value head go together, so that each row of the cache is read and widened once for
//! them. Work is cut into [`Task`]s at the start of a pass ([`Plan`]), by positions and never by the number of threads,
//! so that results do not depend on it:
//! - a span of one token (decode): its context in at most [`BLOCKS_MAX`] blocks of whole pages. Each block leaves a
//!   partial result; [`Combine`] puts them together in order;
//! - a longer span (prefill): tiles of queries, each over all positions that it sees.
//!
//! Both run the same loop, [`tile`]: 32 positions at a time, with a running maximum and sum.

mod combine;
mod plan;
mod prepare;
mod tile;

pub(crate) use combine::Combine;
pub(crate) use plan::{Plan, Task, Work};
pub(crate) use prepare::PrepareHead;
pub(crate) use tile::{TileScratch, TileTask};

use lily_model::ModelConfig;

/// Blocks into which the context of one decoded row is cut, at most.
pub(crate) const BLOCKS_MAX: usize = 64;

/// Rows of queries in a tile: tokens times the heads that share a key/value head.
const TILE_ROWS: usize = 64;

/// Dimensions of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionDims {
    pub heads_q: usize,
    pub heads_kv: usize,
    pub head_dim: usize,
    /// `head_dim` rounded up to whole vectors: the row of the cache and of scratch.
    pub stride: usize,
    pub eps: f32,
}

impl AttentionDims {
    pub fn new(config: &ModelConfig, stride: usize) -> Self {
        let ModelConfig { heads_q, heads_kv, head_dim, rms_eps, .. } = *config;
        AttentionDims { heads_q, heads_kv, head_dim, stride, eps: rms_eps }
    }

    /// Query heads per key/value head.
    pub fn group(&self) -> usize {
        self.heads_q / self.heads_kv
    }

    /// Query tokens in a tile.
    pub fn tile_tokens(&self) -> usize {
        (TILE_ROWS / self.group()).max(1)
    }

    /// Where the query of a head stands in a row of `q+gate | k | v`; its gate follows `head_dim` later.
    pub fn query_at(&self, head: usize) -> usize {
        head * 2 * self.head_dim
    }

    pub fn key_at(&self, head: usize) -> usize {
        self.heads_q * 2 * self.head_dim + head * self.head_dim
    }

    pub fn value_at(&self, head: usize) -> usize {
        self.key_at(self.heads_kv) + head * self.head_dim
    }

    /// Values of one partial result of one head: maximum, sum, then the unscaled row.
    pub fn partial(&self) -> usize {
        16 + self.stride
    }
}
