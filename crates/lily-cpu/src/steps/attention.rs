//! The attention mixer between its projections.

use lily_model::PAGE_TOKENS;

use crate::attention::{BLOCKS_MAX, Combine, PrepareHead, TileTask, Work};
use crate::buffer::Rows;
use crate::device::CpuDevice;
use crate::simd::Kernel;
use crate::team::{Chunks, Disjoint};

/// Units of preparation, a microsecond each, that are worth the whole team.
const UNITS_MIN: usize = 8;

/// Norm, rotation and cache write: one unit of work per row and key/value head.
pub(super) fn prepare(device: &mut CpuDevice, layer: usize, rows: usize, projected: &mut Rows) {
    let mixer = device.model.attention(layer);
    let (dims, layout, isa, width) = (device.attention, device.kv.layout, device.options.isa, projected.width());
    let (spans, pages, rope) = (&device.staged.spans, &device.staged.pages, &device.rope);
    let projected = Disjoint::new(projected.first_mut(rows));
    let cache = Disjoint::new(device.kv.all_mut());
    let group = dims.group() * 2 * dims.head_dim;
    let work = |units: std::ops::Range<usize>| {
        for unit in units {
            let (row, head) = (unit / dims.heads_kv, unit % dims.heads_kv);
            let span = &spans[spans.partition_point(|span| span.first + span.tokens <= row)];
            let position = span.start + row - span.first;
            let page = pages[span.pages + position / PAGE_TOKENS];
            let key_at = layout.keys(page, mixer.index, head) + position % PAGE_TOKENS * layout.stride;
            let part = |at: usize, length: usize| row * width + at..row * width + at + length;
            // SAFETY: a unit owns its heads' columns of its row, and its position's rows of the cache: a page that is
            // written belongs to one sequence.
            unsafe {
                PrepareHead {
                    dims,
                    queries: projected.slice(part(dims.query_at(head * dims.group()), group)),
                    key: projected.slice(part(dims.key_at(head), dims.head_dim)),
                    value: projected.slice(part(dims.value_at(head), dims.head_dim)),
                    query_gain: &mixer.q_norm,
                    key_gain: &mixer.k_norm,
                    angles: rope.row(row),
                    cached_key: cache.slice(key_at..key_at + layout.stride),
                    cached_value: cache.slice(key_at + layout.half..key_at + layout.half + layout.stride),
                }
            }
            .on(isa);
        }
    };
    let units = rows * dims.heads_kv;
    if units < UNITS_MIN { work(0..units) } else { device.team.for_each_chunk(units, 1, work) }
}

/// Attention and gate: the tasks of the plan, then the decoded rows' partial results.
pub(super) fn mix(device: &mut CpuDevice, layer: usize, projected: &Rows, mixed: &mut Rows) {
    let index = device.model.attention(layer).index;
    let (dims, layout, isa) = (device.attention, device.kv.layout, device.options.isa);
    let (width, mixed_width) = (projected.width(), mixed.width());
    let (staged, plan, cache) = (&device.staged, &device.plan, device.kv.all());
    let rows = staged.tokens.len();
    let (projected, mixed) = (projected.first(rows), Disjoint::new(mixed.first_mut(rows)));
    let partials = Disjoint::new(&mut device.partials);
    let scratch = Disjoint::new(&mut device.scratch);
    let row_partials = BLOCKS_MAX * dims.heads_q * dims.partial();
    let tasks = Chunks::new(plan.tasks.len(), 1);
    let combines = Chunks::new(plan.decoded.len() * dims.heads_q, 1);
    device.team.run(|worker| {
        // SAFETY: every member has its own scratch.
        let scratch = unsafe { &mut scratch.slice(worker.index..worker.index + 1)[0].tile };
        while let Some(taken) = tasks.take(worker.count) {
            for task in &plan.tasks[taken] {
                let span = &staged.spans[task.span];
                let (first, count, positions) = match task.work {
                    Work::Block { first_page, end_page, .. } => {
                        (0, 1, first_page * PAGE_TOKENS..(end_page * PAGE_TOKENS).min(span.start + 1))
                    }
                    Work::Tile { first, count } => (first, count, 0..span.start + first + count),
                };
                let row = span.first + first;
                TileTask {
                    dims,
                    projected: &projected[row * width..(row + count) * width],
                    width,
                    head: task.head,
                    start: span.start + first,
                    pages: &staged.pages[span.pages..],
                    cache,
                    layout,
                    layer: index,
                    positions,
                    scratch,
                }
                .on(isa);
                for member in 0..count * dims.group() {
                    let (row, head) = (row + member / dims.group(), task.head * dims.group() + member % dims.group());
                    match task.work {
                        Work::Block { decoded, block, .. } => {
                            let at = decoded * row_partials + (block * dims.heads_q + head) * dims.partial();
                            // SAFETY: every block and head has its own partial.
                            scratch.partial(member, &dims, unsafe { partials.slice(at..at + dims.partial()) });
                        }
                        Work::Tile { .. } => {
                            let gate = &projected[row * width + dims.query_at(head) + dims.head_dim..];
                            let at = row * mixed_width + head * dims.head_dim;
                            // SAFETY: every row and head has its own columns.
                            scratch.finish(member, &dims, gate, unsafe { mixed.slice(at..at + dims.head_dim) }, isa);
                        }
                    }
                }
            }
        }
        if plan.decoded.is_empty() {
            return;
        }
        worker.barrier();
        while let Some(taken) = combines.take(worker.count) {
            for unit in taken {
                let (decoded, head) = (unit / dims.heads_q, unit % dims.heads_q);
                let (span, blocks) = plan.decoded[decoded];
                let row = staged.spans[span].first;
                let (first, length) = (decoded * row_partials, blocks * dims.heads_q * dims.partial());
                let at = row * mixed_width + head * dims.head_dim;
                Combine {
                    dims,
                    // SAFETY: after the barrier, partials are only read.
                    partials: unsafe { partials.slice(first..first + length) },
                    head,
                    gate: &projected[row * width + dims.query_at(head) + dims.head_dim..],
                    // SAFETY: every row and head has its own columns.
                    out: unsafe { mixed.slice(at..at + dims.head_dim) },
                }
                .on(isa);
            }
        }
    });
}
