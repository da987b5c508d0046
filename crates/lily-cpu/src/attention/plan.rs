//! How a pass's attention is cut into tasks: the same for all its layers.

use lily_model::PAGE_TOKENS;

use super::{AttentionDims, BLOCKS_MAX};
use crate::staged::StagedSpan;

/// What one task computes, for one key/value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The only token of a span over pages `first_page..end_page` of its sequence: partial `block` of decoded row `decoded`.
    Block { decoded: usize, block: usize, first_page: usize, end_page: usize },
    /// Tokens `first..first + count` of a span over everything before and among them.
    Tile { first: usize, count: usize },
}

/// One unit of parallel work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub span: usize,
    pub head: usize,
    pub work: Work,
}

/// The tasks of the staged pass.
pub(crate) struct Plan {
    pub tasks: Vec<Task>,
    /// Rows with partial results: span and number of blocks, in order of `decoded`.
    pub decoded: Vec<(usize, usize)>,
}

impl Plan {
    /// Room for any pass of `rows` rows in `spans` spans.
    pub fn with_capacity(dims: &AttentionDims, rows: usize, spans: usize) -> Self {
        let tiles = rows / dims.tile_tokens() + spans;
        let blocks = spans * BLOCKS_MAX;
        Plan { tasks: Vec::with_capacity(dims.heads_kv * (tiles + blocks)), decoded: Vec::with_capacity(spans) }
    }

    /// Cuts the spans. Tiles come last position first: the longest tasks start first.
    pub fn cut(&mut self, dims: &AttentionDims, spans: &[StagedSpan]) {
        self.tasks.clear();
        self.decoded.clear();
        for (index, span) in spans.iter().enumerate() {
            if span.tokens == 1 { self.cut_blocks(dims, index, span) } else { self.cut_tiles(dims, index, span) }
        }
    }

    fn cut_blocks(&mut self, dims: &AttentionDims, index: usize, span: &StagedSpan) {
        let pages = (span.start + 1).div_ceil(PAGE_TOKENS);
        let block_pages = pages.div_ceil(BLOCKS_MAX);
        let blocks = pages.div_ceil(block_pages);
        let decoded = self.decoded.len();
        self.decoded.push((index, blocks));
        for (block, head) in (0..blocks).flat_map(|block| (0..dims.heads_kv).map(move |head| (block, head))) {
            let (first_page, end_page) = (block * block_pages, ((block + 1) * block_pages).min(pages));
            self.tasks.push(Task { span: index, head, work: Work::Block { decoded, block, first_page, end_page } });
        }
    }

    fn cut_tiles(&mut self, dims: &AttentionDims, index: usize, span: &StagedSpan) {
        let tile = dims.tile_tokens();
        for first in (0..span.tokens).step_by(tile).rev() {
            let count = tile.min(span.tokens - first);
            self.tasks.extend((0..dims.heads_kv).map(|head| Task { span: index, head, work: Work::Tile { first, count } }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_tiles_cover_every_page_and_token_once() {
        let dims = AttentionDims { heads_q: 6, heads_kv: 2, head_dim: 16, stride: 16, eps: 1e-6 };
        for (start, tokens) in [(0, 1), (255, 1), (256, 1), (16_383, 1), (16_384, 1), (262_143, 1), (0, 22), (300, 130)] {
            let spans = [StagedSpan { first: 0, tokens, start, slot: 0, pages: 0 }];
            let mut plan = Plan::with_capacity(&dims, tokens, 1);
            let capacity = plan.tasks.capacity();
            plan.cut(&dims, &spans);
            assert_eq!(plan.tasks.capacity(), capacity, "no allocation in a pass");
            for head in 0..2 {
                let own = plan.tasks.iter().filter(|task| task.head == head);
                let mut covered: Vec<usize> = own
                    .flat_map(|task| match task.work {
                        Work::Block { first_page, end_page, .. } => first_page..end_page,
                        Work::Tile { first, count } => first..first + count,
                    })
                    .collect();
                covered.sort_unstable();
                let end = if tokens == 1 { (start + 1).div_ceil(PAGE_TOKENS) } else { tokens };
                assert_eq!(covered, (0..end).collect::<Vec<_>>());
            }
            assert!(plan.decoded.iter().all(|&(_, blocks)| blocks <= BLOCKS_MAX));
        }
    }
}
