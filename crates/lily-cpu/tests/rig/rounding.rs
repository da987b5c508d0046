//! The CPU device behind the manners of a GPU: it rounds the operands of products to bf16, stores the normalised rows as
//! bf16, and refuses to be read before it was flushed. It can also leave one step out. The rings are tested with it.

use half::bf16;
use lily_cpu::{Buffer, CpuDevice};
use lily_model::{
    Activations, Batch, Capacity, Device, ModelConfig, ModelError, NormSite, Page, Selection, Slot, StateCopy, Steps, Weights,
};
use lily_testkit::generate::Float;
use lily_testkit::golden::tolerance::STEP_BF16;
use lily_testkit::ring::{Bound, Numerics, Subject, Tolerances};

use super::Cpu;

/// The device with the step it leaves out, if any.
pub struct Rounding {
    pub without: Option<&'static str>,
}

pub struct RoundingDevice {
    inner: CpuDevice,
    /// Buffers for rounded operands.
    rounded: Activations<Buffer>,
    head_dim: usize,
    queries: usize,
    without: Option<&'static str>,
    /// Steps wait to be flushed.
    pending: bool,
}

impl Subject for Rounding {
    type Device = RoundingDevice;

    fn label(&self) -> String {
        "cpu, rounding".into()
    }

    fn numerics(&self) -> Numerics {
        Numerics { cache: Float::F16, operands: Float::Bf16, router: Float::Bf16, queries: Float::Bf16 }
    }

    /// Operands that the test wrote round alike on both sides, so nothing is added. The experts' own activations differ
    /// in their last bits before they are rounded, and a few round the other way, as queries do; the norm is stored as
    /// bf16; the head does not round here. Through the layers of a random model, whose router knows no preference, the
    /// rounding grows to 3 % and more of a tensor.
    fn tolerances(&self) -> Tolerances {
        Tolerances {
            norm: STEP_BF16,
            experts: 2e-4,
            attention: 5e-4,
            head: STEP_BF16,
            near_tie: 5e-2,
            layer: Bound::Overall(1e-1),
            layer_attention: Bound::Overall(1e-1),
            ..Tolerances::F32
        }
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<RoundingDevice, ModelError> {
        let mut inner = Cpu::with(lily_cpu::Isa::best(), lily_cpu::Activations::F32, 2).open(config, weights, capacity)?;
        let rounded = inner.activations()?;
        let (head_dim, queries) = (config.head_dim, 2 * config.q_width());
        Ok(RoundingDevice { inner, rounded, head_dim, queries, without: self.without, pending: false })
    }
}

fn round(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
}

impl RoundingDevice {
    /// Notes a step; whether it is to run.
    fn record(&mut self, step: &str) -> bool {
        self.pending = true;
        self.without != Some(step)
    }
}

/// `x` as bf16, in a buffer of the same kind.
fn rounded<'a>(inner: &mut CpuDevice, x: &Buffer, rows: usize, out: &'a mut Buffer) -> &'a Buffer {
    let mut values = inner.read(x, rows);
    round(&mut values);
    inner.write(out, rows, &values);
    out
}

impl Steps for RoundingDevice {
    type Buffer = Buffer;

    fn activations(&mut self) -> Result<Activations<Buffer>, ModelError> {
        self.inner.activations()
    }

    fn stage(&mut self, batch: &Batch<'_>) {
        self.inner.stage(batch);
    }

    fn embed(&mut self, rows: usize, residual: &mut Buffer) {
        if self.record("embed") {
            self.inner.embed(rows, residual);
        }
    }

    fn norm(&mut self, site: NormSite, rows: usize, x: &Buffer, out: &mut Buffer) {
        if self.record("norm") {
            self.inner.norm(site, rows, x, out);
            let mut values = self.inner.read(out, rows);
            round(&mut values);
            self.inner.write(out, rows, &values);
        }
    }

    fn delta_project(&mut self, layer: usize, rows: usize, x: &Buffer, projected: &mut Buffer) {
        if self.record("delta_project") {
            let x = rounded(&mut self.inner, x, rows, &mut self.rounded.normed);
            self.inner.delta_project(layer, rows, x, projected);
        }
    }

    fn delta_update(&mut self, layer: usize, rows: usize, projected: &Buffer, mixed: &mut Buffer) {
        if self.record("delta_update") {
            self.inner.delta_update(layer, rows, projected, mixed);
        }
    }

    fn attn_project(&mut self, layer: usize, rows: usize, x: &Buffer, projected: &mut Buffer) {
        if self.record("attn_project") {
            let x = rounded(&mut self.inner, x, rows, &mut self.rounded.normed);
            self.inner.attn_project(layer, rows, x, projected);
        }
    }

    fn attn_prepare(&mut self, layer: usize, rows: usize, projected: &mut Buffer) {
        if self.record("attn_prepare") {
            self.inner.attn_prepare(layer, rows, projected);
        }
    }

    fn attn_mix(&mut self, layer: usize, rows: usize, projected: &Buffer, mixed: &mut Buffer) {
        if self.record("attn_mix") {
            let mut values = self.inner.read(projected, rows);
            let width = values.len() / rows;
            for row in values.chunks_exact_mut(width) {
                row[..self.queries].chunks_exact_mut(2 * self.head_dim).for_each(|head| round(&mut head[..self.head_dim]));
            }
            self.inner.write(&mut self.rounded.projected, rows, &values);
            self.inner.attn_mix(layer, rows, &self.rounded.projected, mixed);
        }
    }

    fn mixer_output(&mut self, layer: usize, rows: usize, mixed: &Buffer, residual: &mut Buffer) {
        if self.record("mixer_output") {
            let mixed = rounded(&mut self.inner, mixed, rows, &mut self.rounded.mixed);
            self.inner.mixer_output(layer, rows, mixed, residual);
        }
    }

    fn moe_route(&mut self, layer: usize, rows: usize, x: &Buffer, routes: &mut Buffer) {
        if self.record("moe_route") {
            let x = rounded(&mut self.inner, x, rows, &mut self.rounded.normed);
            self.inner.moe_route(layer, rows, x, routes);
        }
    }

    fn moe_gate_up(&mut self, layer: usize, rows: usize, x: &Buffer, routes: &Buffer, hidden: &mut Buffer) {
        if self.record("moe_gate_up") {
            let x = rounded(&mut self.inner, x, rows, &mut self.rounded.normed);
            self.inner.moe_gate_up(layer, rows, x, routes, hidden);
        }
    }

    fn moe_down(&mut self, layer: usize, rows: usize, routes: &Buffer, hidden: &Buffer, residual: &mut Buffer) {
        if self.record("moe_down") {
            let hidden = rounded(&mut self.inner, hidden, rows, &mut self.rounded.expert_hidden);
            self.inner.moe_down(layer, rows, routes, hidden, residual);
        }
    }

    fn head(&mut self, rows: usize, residual: &Buffer) {
        if self.record("head") {
            self.inner.head(rows, residual);
        }
    }

    fn read(&self, buffer: &Buffer, rows: usize) -> Vec<f32> {
        assert!(!self.pending, "a buffer is read while steps wait to be flushed");
        self.inner.read(buffer, rows)
    }

    fn write(&mut self, buffer: &mut Buffer, rows: usize, values: &[f32]) {
        assert!(!self.pending, "a buffer is written while steps wait to be flushed");
        self.inner.write(buffer, rows, values);
    }

    fn flush(&mut self) -> Result<(), ModelError> {
        self.pending = false;
        self.inner.flush()
    }
}

impl Device for RoundingDevice {
    fn name(&self) -> String {
        "cpu, rounding".into()
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn finish(&mut self) -> Result<(), ModelError> {
        self.flush()?;
        self.inner.finish()
    }

    fn logits(&self, row: usize) -> &[f32] {
        assert!(!self.pending, "logits are read while steps wait to be flushed");
        self.inner.logits(row)
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        self.inner.select(selections)
    }

    fn state_clear(&mut self, slot: Slot) {
        self.inner.state_clear(slot);
    }

    fn state_save(&self, slot: Slot) -> StateCopy {
        self.inner.state_save(slot)
    }

    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError> {
        self.inner.state_load(slot, copy)
    }

    fn state_bytes(&self) -> usize {
        self.inner.state_bytes()
    }

    fn page_save(&self, page: Page) -> Box<[u8]> {
        self.inner.page_save(page)
    }

    fn page_load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError> {
        self.inner.page_load(page, bytes)
    }

    fn page_copy(&mut self, from: Page, to: Page) {
        self.inner.page_copy(from, to);
    }
}
