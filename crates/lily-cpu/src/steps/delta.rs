//! The DeltaNet mixer between its projections: one unit of work per span and key head.

use crate::buffer::Rows;
use crate::delta::DeltaHead;
use crate::device::CpuDevice;
use crate::simd::Kernel;
use crate::team::{Chunks, Disjoint};

pub(super) fn update(device: &mut CpuDevice, layer: usize, projected: &Rows, mixed: &mut Rows) {
    let mixer = device.model.delta(layer);
    let (dims, isa, width, mixed_width) = (device.delta, device.options.isa, projected.width(), mixed.width());
    let rows = device.staged.tokens.len();
    let (spans, layout) = (&device.staged.spans, device.states.layout);
    let group_memory = layout.memory_head * (dims.heads_v / dims.heads_k);
    let states = Disjoint::new(device.states.all());
    let scratch = Disjoint::new(&mut device.scratch);
    let (projected, mixed) = (projected.first(rows), Disjoint::new(mixed.first_mut(rows)));
    let units = Chunks::new(spans.len() * dims.heads_k, 1);
    device.team.run(|worker| {
        // SAFETY: every member has its own scratch.
        let scratch = unsafe { &mut scratch.slice(worker.index..worker.index + 1)[0] };
        while let Some(taken) = units.take(worker) {
            for unit in taken.clone() {
                let (span, head) = (&spans[unit / dims.heads_k], unit % dims.heads_k);
                let start = span.slot * layout.slot + mixer.index * layout.layer;
                let memory = start + layout.layer - dims.heads_v * layout.memory_head + head * group_memory;
                let span_rows = span.first..span.first + span.tokens;
                DeltaHead {
                    dims,
                    layer: &mixer.vectors,
                    head,
                    projected: &projected[span_rows.start * width..span_rows.end * width],
                    width,
                    conv: &states,
                    conv_at: start,
                    // SAFETY: spans of a batch own different slots, and heads different parts of a slot.
                    memory: unsafe { states.slice(memory..memory + group_memory) },
                    mixed: &mixed,
                    mixed_at: span.first * mixed_width,
                    mixed_width,
                    scratch: &mut scratch.delta,
                }
                .on(isa);
            }
        }
    });
}
