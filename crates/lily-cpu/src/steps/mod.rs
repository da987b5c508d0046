//! The fused steps on the processor. Each is one or two parallel regions; work is cut by rows, heads, tiles and context
//! blocks, never by the number of threads, so that results do not depend on it.
//!
//! Matrix products are in [`crate::matrix`]; this module brings operands to them and does the rest.

mod attention;
mod delta;
mod experts;
mod rows;

use lily_model::steps::Activations;
use lily_model::{Batch, ModelError, NormSite, Steps};

use crate::buffer::{Buffer, Rows};
use crate::device::CpuDevice;
use crate::layers::{AttentionMixer, DeltaMixer};
use crate::matrix::{Job, PackedMatrix, Projection, Workspace, project};
use crate::team::Team;

impl Steps for CpuDevice {
    type Buffer = Buffer;

    fn activations(&mut self) -> Result<Activations<Buffer>, ModelError> {
        let (config, rows) = (&self.config, self.capacity.rows);
        let hidden = config.hidden;
        let expert_hidden = config.experts_per_token * config.expert_width + config.shared_width;
        Ok(Activations {
            residual: Buffer::rows(rows, hidden, "residual")?,
            normed: Buffer::rows(rows, hidden, "normed")?,
            projected: Buffer::rows(rows, self.projected_width(), "projections")?,
            mixed: Buffer::rows(rows, config.v_width().max(config.q_width()), "mixer results")?,
            routes: Buffer::routes(rows, config.experts_per_token),
            expert_hidden: Buffer::rows(rows, expert_hidden, "expert activations")?,
        })
    }

    fn stage(&mut self, batch: &Batch<'_>) {
        self.staged.set(batch);
        self.plan.cut(&self.attention, &self.staged.spans);
        for span in &self.staged.spans {
            for token in 0..span.tokens {
                self.rope.set(span.first + token, span.start + token);
            }
        }
    }

    fn embed(&mut self, rows: usize, residual: &mut Buffer) {
        rows::embed(self, rows, residual.values_mut());
    }

    fn norm(&mut self, site: NormSite, rows: usize, x: &Buffer, out: &mut Buffer) {
        rows::norm(self, site, rows, x.values(), out.values_mut());
    }

    fn delta_project(&mut self, layer: usize, rows: usize, x: &Buffer, projected: &mut Buffer) {
        let DeltaMixer { qkv, z, b, a, .. } = self.model.delta(layer);
        let (x, y) = (x.values(), projected.values_mut());
        multiply(&mut self.team, &mut self.workspace, [qkv, z, b, a], Operands { rows, x, y, accumulate: false });
    }

    fn delta_update(&mut self, layer: usize, _rows: usize, projected: &Buffer, mixed: &mut Buffer) {
        delta::update(self, layer, projected.values(), mixed.values_mut());
    }

    fn attn_project(&mut self, layer: usize, rows: usize, x: &Buffer, projected: &mut Buffer) {
        let AttentionMixer { q, k, v, .. } = self.model.attention(layer);
        let (x, y) = (x.values(), projected.values_mut());
        multiply(&mut self.team, &mut self.workspace, [q, k, v], Operands { rows, x, y, accumulate: false });
    }

    fn attn_prepare(&mut self, layer: usize, rows: usize, projected: &mut Buffer) {
        attention::prepare(self, layer, rows, projected.values_mut());
    }

    fn attn_mix(&mut self, layer: usize, _rows: usize, projected: &Buffer, mixed: &mut Buffer) {
        attention::mix(self, layer, projected.values(), mixed.values_mut());
    }

    fn mixer_output(&mut self, layer: usize, rows: usize, mixed: &Buffer, residual: &mut Buffer) {
        let matrix = self.model.layers[layer].mixer.out();
        let (x, y) = (mixed.values(), residual.values_mut());
        multiply(&mut self.team, &mut self.workspace, [matrix], Operands { rows, x, y, accumulate: true });
    }

    fn moe_route(&mut self, layer: usize, rows: usize, x: &Buffer, routes: &mut Buffer) {
        experts::route_rows(self, layer, rows, x.values(), routes.route_rows_mut());
    }

    fn moe_gate_up(&mut self, layer: usize, rows: usize, x: &Buffer, routes: &Buffer, hidden: &mut Buffer) {
        experts::gate_up(self, layer, rows, (x.values(), routes.route_rows()), hidden.values_mut());
    }

    fn moe_down(&mut self, layer: usize, rows: usize, routes: &Buffer, hidden: &Buffer, residual: &mut Buffer) {
        experts::down(self, layer, rows, (hidden.values(), routes.route_rows()), residual.values_mut());
    }

    fn head(&mut self, _rows: usize, residual: &Buffer) {
        rows::head(self, residual.values());
    }

    fn read(&self, buffer: &Buffer, rows: usize) -> Vec<f32> {
        match buffer {
            Buffer::Rows(values) => values.first(rows).to_vec(),
            Buffer::Routes(routes) => routes.to_f32(rows),
        }
    }

    fn write(&mut self, buffer: &mut Buffer, rows: usize, values: &[f32]) {
        match buffer {
            Buffer::Rows(out) => out.first_mut(rows).copy_from_slice(values),
            Buffer::Routes(routes) => routes.set_f32(rows, values),
        }
    }
}

/// The buffers of a product.
struct Operands<'a> {
    rows: usize,
    x: &'a Rows,
    y: &'a mut Rows,
    /// Add to `y` instead of overwriting it.
    accumulate: bool,
}

/// `y = [matrices] x`, the matrices' outputs side by side.
fn multiply<const N: usize>(team: &mut Team, workspace: &mut Workspace, matrices: [&PackedMatrix; N], operands: Operands<'_>) {
    let Operands { rows, x, y, accumulate } = operands;
    let mut column = 0;
    let jobs = matrices.map(|matrix| {
        column += matrix.rows();
        Job { matrix, column: column - matrix.rows() }
    });
    let (x_stride, y_stride) = (x.width(), y.width());
    let (x, y) = (x.first(rows), y.first_mut(rows));
    project(team, workspace, Projection { x, x_stride, rows, jobs: &jobs, y, y_stride, accumulate });
}
