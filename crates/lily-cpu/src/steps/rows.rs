//! Steps that treat each row alone: embedding, norms, the head.

use lily_model::NormSite;

use crate::buffer::Rows;
use crate::device::CpuDevice;
use crate::matrix::float::row_floats;
use crate::matrix::{Job, Projection, project};
use crate::norm::RmsNorm;
use crate::simd::Kernel;
use crate::team::Disjoint;

/// Rows that a thread takes at least: fewer are not worth another thread.
const ROWS_MIN: usize = 2;

pub(super) fn embed(device: &mut CpuDevice, rows: usize, residual: &mut Rows) {
    let width = residual.width();
    let (tokens, table) = (&device.staged.tokens[..rows], device.model.embedding.view());
    for (&token, out) in tokens.iter().zip(residual.first_mut(rows).chunks_exact_mut(width)) {
        row_floats(&table, token as usize, out);
    }
}

pub(super) fn norm(device: &mut CpuDevice, site: NormSite, rows: usize, x: &Rows, out: &mut Rows) {
    let gain = match site {
        NormSite::Mixer(layer) => &device.model.layers[layer].mixer_norm,
        NormSite::Experts(layer) => &device.model.layers[layer].experts_norm,
    };
    let (isa, eps, width) = (device.options.isa, device.config.rms_eps, x.width());
    let (x, out) = (x.first(rows), out.first_mut(rows));
    if rows < 2 * ROWS_MIN {
        return RmsNorm { x, gain, eps, out }.on(isa);
    }
    let out = Disjoint::new(out);
    device.team.for_each_chunk(rows, ROWS_MIN, |range| {
        let range = range.start * width..range.end * width;
        // SAFETY: chunks do not overlap.
        let out = unsafe { out.slice(range.clone()) };
        RmsNorm { x: &x[range], gain, eps, out }.on(isa);
    });
}

/// Final norm and language-model head of the rows that want logits.
pub(super) fn head(device: &mut CpuDevice, residual: &Rows) {
    let rows = device.staged.logit_rows.len();
    let (hidden, vocab, isa) = (device.config.hidden, device.config.vocab, device.options.isa);
    let input = &mut device.head_input[..rows * hidden];
    for (&row, out) in device.staged.logit_rows.iter().zip(input.chunks_exact_mut(hidden)) {
        RmsNorm { x: residual.row(row), gain: &device.model.norm, eps: device.config.rms_eps, out }.on(isa);
    }
    let projection = Projection {
        x: input,
        x_stride: hidden,
        rows,
        jobs: &[Job { matrix: &device.model.head, column: 0 }],
        y: &mut device.logits[..rows * vocab],
        y_stride: vocab,
        accumulate: false,
    };
    project(&mut device.team, &mut device.workspace, projection);
}
