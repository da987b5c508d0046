//! The fused steps as launches. Each records what it needs into the device's command list; which kernel serves a row
//! count is in [`crate::policy`].
//!
//! Passes of few rows go through vector kernels, in which every weight is read once for all rows; larger ones through
//! matrix kernels on tiles. With few rows the norms are fused away: see `kernels/lib/chain.h`.

mod attention;
mod delta;
mod experts;
mod multiply;
mod route;

use lily_model::{Activations, Batch, ModelError, NormSite, Steps};

use crate::backend::Backend;
use crate::buffer::{GpuBuffer, Kind, floats};
use crate::commands::View;
use crate::device::{Chained, GpuDevice};
use crate::entry::{Bits, entry};
use crate::launch::{Embed, Halve, Norm};
use crate::policy::{FEW_ROWS, LAYER_POSITIONS, LAYER_WORK, flash_tokens, span_inputs};
use multiply::Product;

impl<B: Backend> Steps for GpuDevice<B> {
    type Buffer = GpuBuffer;

    fn activations(&mut self) -> Result<Activations<GpuBuffer>, ModelError> {
        let (config, rows) = (&self.config, self.capacity.rows);
        let delta = config.conv_dim() + config.v_width() + 2 * config.heads_v;
        let attention = 2 * config.q_width() + 2 * config.kv_width();
        // Few rows have room behind them for what else they are stored as, see `kernels/lib/halves.h`.
        let few = FEW_ROWS.min(rows);
        let mut buffer = |forms: usize, width: usize, kind: Kind, what: &str| {
            let view = self.backend.get_mut().allocate_view(rows.max(few * forms) * width * kind.value_bytes(false), what)?;
            Ok::<GpuBuffer, ModelError>(GpuBuffer { view, width, kind })
        };
        let activations = Activations {
            residual: buffer(1, config.hidden, Kind::F32, "residual")?,
            normed: buffer(3, config.hidden, Kind::Operand, "normed")?,
            projected: buffer(1, delta.max(attention).next_multiple_of(4), Kind::F32, "projections")?,
            mixed: buffer(2, config.v_width().max(config.q_width()), Kind::Operand, "mixer results")?,
            routes: buffer(1, 2 * config.experts_per_token + 1, Kind::Routes, "routes")?,
            expert_hidden: buffer(
                2,
                config.experts_per_token * config.expert_width + config.shared_width,
                Kind::Operand,
                "expert activations",
            )?,
        };
        self.normed = Some(activations.normed);
        Ok(activations)
    }

    fn stage(&mut self, batch: &Batch<'_>) {
        let pass = if batch.rows() <= FEW_ROWS { &self.arena.few } else { &self.arena.many };
        self.staged.set(batch, pass, flash_tokens(self.flash_rows(), self.config.heads_q / self.config.heads_kv));
        pass.write(self.backend.get_mut(), &self.staged, self.arena.few.tokens);
        self.begin();
    }

    fn embed(&mut self, rows: usize, residual: &mut GpuBuffer) {
        let Some(chain) = self.start_step() else { return };
        let matrix = self.model.embedding;
        let stem = if chain { "embed_chain" } else { "embed" };
        let parts = self.config.hidden.div_ceil(8 * 32);
        Embed {
            entry: entry(stem, matrix.bits.suffix()),
            codes: matrix.codes,
            scales: matrix.scales,
            biases: matrix.biases,
            tokens: self.pass().tokens,
            gain: self.model.layers[0].mixer_norm,
            residual: residual.view,
            next: self.next(),
            sums: self.arena.sums,
            hidden: self.config.hidden as u32,
            group_shift: matrix.group_shift,
            halves: self.halves_after([self.config.hidden; 2]),
            grid: [rows, parts, 1],
            threads: 32,
        }
        .launch("embed", &mut self.list);
        self.chained = chain.then_some((Chained::Mixer(0), parts));
        self.halved = chain.then_some(self.next());
    }

    fn norm(&mut self, site: NormSite, rows: usize, x: &GpuBuffer, out: &mut GpuBuffer) {
        if self.start_step().is_none() {
            return;
        }
        let (chained, gain) = match site {
            NormSite::Mixer(layer) => (Chained::Mixer(layer), self.model.layers[layer].mixer_norm),
            NormSite::Experts(layer) => (Chained::Experts(layer), self.model.layers[layer].experts_norm),
        };
        if self.chained.is_some_and(|(ready, _)| ready == chained) {
            return; // its input came with it
        }
        self.chained = None;
        self.norm_rows(x.view, gain, None, out.view, rows);
    }

    fn delta_project(&mut self, layer: usize, rows: usize, x: &GpuBuffer, projected: &mut GpuBuffer) {
        if self.start_step().is_some() {
            let matrices = self.model.delta(layer).projections;
            let product =
                Product { stage: "delta_project", rows, x: x.view, x_stride: x.width, out: projected.view, out_stride: projected.width };
            self.multiply(product, &matrices);
        }
    }

    fn delta_update(&mut self, layer: usize, rows: usize, projected: &GpuBuffer, mixed: &mut GpuBuffer) {
        if let Some(chain) = self.start_step() {
            self.update_delta(layer, rows, projected, mixed, chain);
        }
    }

    fn attn_project(&mut self, layer: usize, rows: usize, x: &GpuBuffer, projected: &mut GpuBuffer) {
        if self.start_step().is_some() {
            let matrices = self.model.attention(layer).projections;
            let product =
                Product { stage: "attn_project", rows, x: x.view, x_stride: x.width, out: projected.view, out_stride: projected.width };
            self.multiply(product, &matrices);
        }
    }

    fn attn_prepare(&mut self, layer: usize, rows: usize, projected: &mut GpuBuffer) {
        if self.start_step().is_some() {
            self.prepare_attention(layer, rows, projected);
        }
    }

    fn attn_mix(&mut self, layer: usize, rows: usize, projected: &GpuBuffer, mixed: &mut GpuBuffer) {
        if self.start_step().is_some() {
            self.mix_attention(layer, rows, projected, mixed);
        }
    }

    fn mixer_output(&mut self, layer: usize, rows: usize, mixed: &GpuBuffer, residual: &mut GpuBuffer) {
        let Some(chain) = self.start_step() else { return };
        let matrix = self.model.layers[layer].mixer.out();
        self.chained = None;
        let product =
            Product { stage: "mixer_output", rows, x: mixed.view, x_stride: mixed.width, out: residual.view, out_stride: residual.width };
        if rows > FEW_ROWS {
            self.multiply_tiles(product, &[matrix], true);
        } else {
            let parts = self.add_output(product, matrix, chain.then(|| self.model.layers[layer].experts_norm));
            self.chained = chain.then_some((Chained::Experts(layer), parts));
        }
    }

    fn moe_route(&mut self, layer: usize, rows: usize, x: &GpuBuffer, routes: &mut GpuBuffer) {
        if self.start_step().is_some() {
            self.route(layer, rows, x, routes);
        }
    }

    fn moe_gate_up(&mut self, layer: usize, rows: usize, x: &GpuBuffer, routes: &GpuBuffer, hidden: &mut GpuBuffer) {
        if self.start_step().is_some() {
            self.gate_up(layer, rows, [x, routes], hidden);
        }
    }

    fn moe_down(&mut self, layer: usize, rows: usize, routes: &GpuBuffer, hidden: &GpuBuffer, residual: &mut GpuBuffer) {
        if self.start_step().is_some() {
            self.down(layer, rows, [routes, hidden], residual);
            self.end_layer(rows);
        }
    }

    fn head(&mut self, _rows: usize, residual: &GpuBuffer) {
        if self.start_step().is_none() || self.staged.logit_rows.is_empty() {
            return;
        }
        let rows = self.staged.logit_rows.len();
        let ready = self.chained.is_some_and(|(ready, _)| ready == Chained::Final) && self.staged.all_rows_have_logits();
        let x = if ready {
            self.next()
        } else {
            self.chained = None;
            self.norm_rows(residual.view, self.model.norm, Some(self.pass().logit_rows), self.arena.head_input, rows);
            self.arena.head_input
        };
        let product =
            Product { stage: "head", rows, x, x_stride: self.config.hidden, out: self.arena.logits, out_stride: self.config.vocab };
        self.multiply(product, &[self.model.head]);
        self.chained = None;
    }

    fn read(&self, buffer: &GpuBuffer, rows: usize) -> Vec<f32> {
        let narrow = rows_are_narrow(self.staged.rows);
        let mut values = buffer.decode(&self.read_all(&[buffer.first(rows, narrow)]), narrow);
        if self.unscaled == Some(*buffer) {
            self.scale_heads(rows, buffer.width, &mut values);
        }
        // What a fused chain wrote lacks the norm's factor.
        if let (Some((_, parts)), true) = (self.chained, self.normed == Some(*buffer)) {
            let sums = floats(&self.read_all(&[self.arena.sums.part(0, 4 * rows * parts)]));
            for (row, sums) in values.chunks_exact_mut(buffer.width).zip(sums.chunks_exact(parts)) {
                let factor = (sums.iter().sum::<f32>() / self.config.hidden as f32 + self.config.rms_eps).sqrt().recip();
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
        values
    }

    fn write(&mut self, buffer: &mut GpuBuffer, rows: usize, values: &[f32]) {
        self.chained = None;
        self.unscaled = self.unscaled.filter(|unscaled| unscaled != buffer);
        self.halved = self.halved.filter(|&halved| halved != buffer.view);
        let narrow = rows_are_narrow(self.staged.rows);
        let bytes = buffer.encode(values, narrow);
        self.backend.get_mut().write(buffer.first(rows, narrow), &bytes);
        if buffer.kind == Kind::Routes {
            self.place(rows, buffer); // the lists of rows of each expert follow from the routes
        }
    }

    fn flush(&mut self) -> Result<(), ModelError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.replays.is_some() {
            return Err(ModelError::Device("a recorded pass is replayed whole: it has no steps to wait for".into()));
        }
        self.stepwise = true;
        self.submit()?;
        self.backend.get_mut().wait()
    }
}

/// Whether a pass of so many rows keeps the inputs of products as half: see `kernels/lib/operand.h`.
fn rows_are_narrow(rows: usize) -> bool {
    rows > FEW_ROWS
}

impl<B: Backend> GpuDevice<B> {
    /// `None` if the staged pass is replayed or has failed: then there is nothing to record. Else whether this pass fuses
    /// its norms.
    fn start_step(&self) -> Option<bool> {
        let records = self.replays.is_none() && self.failed.is_none();
        records.then_some(self.options.fused_chains && self.staged.rows <= FEW_ROWS)
    }

    /// As kernels take it: whether the staged pass keeps inputs of products as half.
    fn narrow(&self) -> u32 {
        u32::from(rows_are_narrow(self.staged.rows))
    }

    /// Hands a large pass over layer by layer: the device begins while the host records the rest, and no command buffer
    /// runs so long that a system which also draws its windows would end it.
    fn end_layer(&mut self, rows: usize) {
        if rows > FEW_ROWS && rows * (LAYER_POSITIONS + self.staged.context) >= LAYER_WORK {
            let submitted = self.submit();
            self.failed = submitted.err();
        }
    }

    /// Where the staged pass stands.
    fn pass(&self) -> &crate::pass::PassBuffer {
        if self.staged.rows <= FEW_ROWS { &self.arena.few } else { &self.arena.many }
    }

    /// The buffer of normalised inputs.
    fn next(&self) -> View {
        self.normed.expect("the forward pass has its activations").view
    }

    /// Parts of the sums that the normalised input still needs; 0 if it is complete.
    fn chained_parts(&self) -> u32 {
        self.chained.map_or(0, |(_, parts)| parts as u32)
    }

    /// Values from a buffer of rows of `cols` inputs to the same in halves, as kernels take it; 0 where no kernel wants them. Whose
    /// rows are not of whole spans has none: its halves would reach into the next row's.
    fn halves_after(&self, [x_stride, cols]: [usize; 2]) -> u32 {
        let wanted = self.native.mma && self.staged.rows <= FEW_ROWS && cols.is_multiple_of(span_inputs(Bits::Q4));
        if wanted { (FEW_ROWS.min(self.capacity.rows) * x_stride) as u32 } else { 0 }
    }

    /// `cols` inputs of each row of `x` in halves, for codes of `bits`: as they were made, or made now.
    fn in_halves(&mut self, stage: &'static str, rows: usize, x: View, [x_stride, cols]: [usize; 2], bits: Bits) -> View {
        let (bytes, after) = (4 * rows * cols, self.halves_after([x_stride, cols]) as usize);
        if self.halved == Some(x) && after > 0 {
            let order = if bits == Bits::Q4 { 1 } else { 2 };
            return x.part(order * 4 * after, bytes);
        }
        let out = self.arena.halves.part(0, bytes);
        Halve {
            entry: entry("halve", bits.suffix()),
            x,
            out,
            cols: cols as u32,
            x_stride: x_stride as u32,
            grid: [cols.div_ceil(256), rows, 1],
            threads: 256,
        }
        .launch(stage, &mut self.list);
        out
    }

    fn norm_rows(&mut self, x: View, gain: View, map: Option<View>, out: View, rows: usize) {
        self.halved = self.halved.filter(|&halved| halved != out);
        Norm {
            entry: "norm",
            x,
            gain,
            map: map.unwrap_or(gain), // bound, not read
            out,
            hidden: self.config.hidden as u32,
            gathers: u32::from(map.is_some()),
            narrow: u32::from(rows > FEW_ROWS),
            eps: self.config.rms_eps,
            grid: [rows, 1, 1],
            threads: 128,
        }
        .launch("norm", &mut self.list);
    }
}
