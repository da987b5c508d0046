//! The attention mixer between its projections.

use lily_model::PAGE_TOKENS;

use crate::attention::{AttentionDims, BLOCKS_MAX, Combine, PrepareHead, Task, TileScratch, TileTask, Work};
use crate::buffer::Rows;
use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kv::KvLayout;
use crate::simd::Kernel;
use crate::staged::Staged;
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
    let (staged, plan) = (&device.staged, &device.plan);
    let rows = staged.tokens.len();
    let pass = Mix {
        dims: device.attention,
        layout: device.kv.layout,
        isa: device.options.isa,
        layer: device.model.attention(layer).index,
        staged,
        cache: device.kv.all(),
        width: projected.width(),
        projected: projected.first(rows),
        mixed_width: mixed.width(),
        mixed: Disjoint::new(mixed.first_mut(rows)),
        partials: Disjoint::new(&mut device.partials),
    };
    let scratch = Disjoint::new(&mut device.scratch);
    let tasks = Chunks::new(plan.tasks.len(), 1);
    let combines = Chunks::new(plan.decoded.len() * pass.dims.heads_q, 1);
    device.team.run(|worker| {
        // SAFETY: every member has its own scratch.
        let scratch = unsafe { &mut scratch.slice(worker.index..worker.index + 1)[0].tile };
        while let Some(taken) = tasks.take(worker) {
            plan.tasks[taken.clone()].iter().for_each(|task| pass.run(task, scratch));
        }
        if plan.decoded.is_empty() {
            return;
        }
        worker.finish(&tasks);
        while let Some(taken) = combines.take(worker) {
            for unit in taken.clone() {
                let (decoded, head) = (unit / pass.dims.heads_q, unit % pass.dims.heads_q);
                pass.combine(decoded, plan.decoded[decoded], head);
            }
        }
    });
}

/// What the tasks of one layer's attention share.
struct Mix<'a> {
    dims: AttentionDims,
    layout: KvLayout,
    isa: Isa,
    /// Index among the attention layers.
    layer: usize,
    staged: &'a Staged,
    cache: &'a [u16],
    width: usize,
    projected: &'a [f32],
    mixed_width: usize,
    mixed: Disjoint<'a, f32>,
    /// `[decoded rows, heads_q, BLOCKS_MAX, partial]`
    partials: Disjoint<'a, f32>,
}

impl Mix<'_> {
    fn run(&self, task: &Task, scratch: &mut TileScratch) {
        let (span, dims) = (&self.staged.spans[task.span], self.dims);
        let (first, count, positions) = match task.work {
            Work::Block { first_page, end_page, .. } => (0, 1, first_page * PAGE_TOKENS..(end_page * PAGE_TOKENS).min(span.start + 1)),
            Work::Tile { first, count } => (first, count, 0..span.start + first + count),
        };
        let row = span.first + first;
        TileTask {
            dims,
            projected: &self.projected[row * self.width..(row + count) * self.width],
            width: self.width,
            head: task.head,
            start: span.start + first,
            pages: &self.staged.pages[span.pages..],
            cache: self.cache,
            layout: self.layout,
            layer: self.layer,
            positions,
            scratch,
        }
        .on(self.isa);
        for member in 0..count * dims.group() {
            let (row, head) = (row + member / dims.group(), task.head * dims.group() + member % dims.group());
            match task.work {
                Work::Block { decoded, block, .. } => {
                    let at = ((decoded * dims.heads_q + head) * BLOCKS_MAX + block) * dims.partial();
                    // SAFETY: every block and head has its own partial.
                    scratch.partial(member, &dims, unsafe { self.partials.slice(at..at + dims.partial()) });
                }
                Work::Tile { .. } => scratch.finish(member, &dims, self.gate(row, head), self.out(row, head), self.isa),
            }
        }
    }

    /// After all blocks of all rows: one row and query head.
    fn combine(&self, decoded: usize, (span, blocks): (usize, usize), head: usize) {
        let row = self.staged.spans[span].first;
        let first = (decoded * self.dims.heads_q + head) * BLOCKS_MAX * self.dims.partial();
        // SAFETY: all tasks are done, and every row and head has its own partials.
        let partials = unsafe { self.partials.slice(first..first + blocks * self.dims.partial()) };
        Combine { dims: self.dims, partials, gate: self.gate(row, head), out: self.out(row, head) }.on(self.isa);
    }

    fn gate(&self, row: usize, head: usize) -> &[f32] {
        &self.projected[row * self.width + self.dims.query_at(head) + self.dims.head_dim..][..self.dims.head_dim]
    }

    /// Where the result of a row and head goes; each is written by one task alone.
    #[allow(clippy::mut_from_ref)]
    fn out(&self, row: usize, head: usize) -> &mut [f32] {
        let at = row * self.mixed_width + head * self.dims.head_dim;
        // SAFETY: every row and head has its own columns, and one task that asks for them once.
        unsafe { self.mixed.slice(at..at + self.dims.head_dim) }
    }
}
