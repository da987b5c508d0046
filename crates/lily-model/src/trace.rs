//! Watching a forward pass step by step: what each step wrote, by name, as f32.
//!
//! Wrap a device in [`Traced`] and run it as usual; the layer tests compare the records with those of
//! another implementation, so that a failure names the step. The device is flushed after every step.

use crate::batch::{Batch, Page, Slot};
use crate::error::ModelError;
use crate::runner::{Capacity, Device, StateCopy};
use crate::select::Selection;
use crate::steps::{Activations, NormSite, Steps};

/// What one step wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// `embed`, `layer 3 delta_update`, `logits`.
    pub name: String,
    pub rows: usize,
    /// `[rows, width]`; a width larger than the step's result means that the buffer serves wider ones too.
    pub values: Vec<f32>,
}

/// A device that keeps a record of every step.
pub struct Traced<S> {
    device: S,
    records: Vec<Record>,
    logit_rows: usize,
    /// Why a step did not run: steps return nothing, so the end of the pass says it.
    failed: Option<ModelError>,
}

impl<S> Traced<S> {
    pub fn new(device: S) -> Self {
        Traced { device, records: Vec::new(), logit_rows: 0, failed: None }
    }

    /// The records so far, in the order of the steps; the next pass starts a new list.
    pub fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// The device, without the records.
    pub fn into_inner(self) -> S {
        self.device
    }

    fn keep(&mut self, name: String, rows: usize, values: Vec<f32>) {
        self.records.push(Record { name, rows, values });
    }
}

impl<S: Steps> Traced<S> {
    /// Records a step after it ran.
    fn step(&mut self, name: String, rows: usize, written: &S::Buffer) {
        if let Err(error) = self.device.flush() {
            self.failed.get_or_insert(error);
        }
        let values = self.device.read(written, rows);
        self.keep(name, rows, values);
    }

    fn layer(&mut self, layer: usize, step: &str, rows: usize, written: &S::Buffer) {
        self.step(format!("layer {layer} {step}"), rows, written);
    }
}

impl<S: Steps> Steps for Traced<S> {
    type Buffer = S::Buffer;

    fn activations(&mut self) -> Result<Activations<S::Buffer>, ModelError> {
        self.device.activations()
    }

    fn stage(&mut self, batch: &Batch<'_>) {
        self.logit_rows = batch.logit_rows().len();
        self.device.stage(batch);
    }

    fn embed(&mut self, rows: usize, residual: &mut S::Buffer) {
        self.device.embed(rows, residual);
        self.step("embed".into(), rows, residual);
    }

    fn norm(&mut self, site: NormSite, rows: usize, x: &S::Buffer, out: &mut S::Buffer) {
        self.device.norm(site, rows, x, out);
        match site {
            NormSite::Mixer(layer) => self.layer(layer, "mixer_norm", rows, out),
            NormSite::Experts(layer) => self.layer(layer, "experts_norm", rows, out),
        }
    }

    fn delta_project(&mut self, layer: usize, rows: usize, x: &S::Buffer, projected: &mut S::Buffer) {
        self.device.delta_project(layer, rows, x, projected);
        self.layer(layer, "delta_project", rows, projected);
    }

    fn delta_update(&mut self, layer: usize, rows: usize, projected: &S::Buffer, mixed: &mut S::Buffer) {
        self.device.delta_update(layer, rows, projected, mixed);
        self.layer(layer, "delta_update", rows, mixed);
    }

    fn attn_project(&mut self, layer: usize, rows: usize, x: &S::Buffer, projected: &mut S::Buffer) {
        self.device.attn_project(layer, rows, x, projected);
        self.layer(layer, "attn_project", rows, projected);
    }

    fn attn_prepare(&mut self, layer: usize, rows: usize, projected: &mut S::Buffer) {
        self.device.attn_prepare(layer, rows, projected);
        self.layer(layer, "attn_prepare", rows, projected);
    }

    fn attn_mix(&mut self, layer: usize, rows: usize, projected: &S::Buffer, mixed: &mut S::Buffer) {
        self.device.attn_mix(layer, rows, projected, mixed);
        self.layer(layer, "attn_mix", rows, mixed);
    }

    fn mixer_output(&mut self, layer: usize, rows: usize, mixed: &S::Buffer, residual: &mut S::Buffer) {
        self.device.mixer_output(layer, rows, mixed, residual);
        self.layer(layer, "mixer_output", rows, residual);
    }

    fn moe_route(&mut self, layer: usize, rows: usize, x: &S::Buffer, routes: &mut S::Buffer) {
        self.device.moe_route(layer, rows, x, routes);
        self.layer(layer, "moe_route", rows, routes);
    }

    fn moe_gate_up(&mut self, layer: usize, rows: usize, x: &S::Buffer, routes: &S::Buffer, hidden: &mut S::Buffer) {
        self.device.moe_gate_up(layer, rows, x, routes, hidden);
        self.layer(layer, "moe_gate_up", rows, hidden);
    }

    fn moe_down(&mut self, layer: usize, rows: usize, routes: &S::Buffer, hidden: &S::Buffer, residual: &mut S::Buffer) {
        self.device.moe_down(layer, rows, routes, hidden, residual);
        self.layer(layer, "moe_down", rows, residual);
    }

    fn head(&mut self, rows: usize, residual: &S::Buffer) {
        self.device.head(rows, residual);
    }

    fn read(&self, buffer: &S::Buffer, rows: usize) -> Vec<f32> {
        self.device.read(buffer, rows)
    }

    fn write(&mut self, buffer: &mut S::Buffer, rows: usize, values: &[f32]) {
        self.device.write(buffer, rows, values);
    }

    fn flush(&mut self) -> Result<(), ModelError> {
        self.device.flush()
    }
}

impl<D: Device> Device for Traced<D> {
    fn name(&self) -> String {
        format!("{}, traced", self.device.name())
    }

    fn capacity(&self) -> Capacity {
        self.device.capacity()
    }

    /// Records the logits too.
    fn finish(&mut self) -> Result<(), ModelError> {
        self.device.finish()?;
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let values = (0..self.logit_rows).flat_map(|row| self.device.logits(row).to_vec()).collect();
        self.keep("logits".into(), self.logit_rows, values);
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.device.logits(row)
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        self.device.select(selections)
    }

    fn state_clear(&mut self, slot: Slot) {
        self.device.state_clear(slot);
    }

    fn state_save(&self, slot: Slot) -> StateCopy {
        self.device.state_save(slot)
    }

    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError> {
        self.device.state_load(slot, copy)
    }

    fn state_bytes(&self) -> usize {
        self.device.state_bytes()
    }

    fn page_save(&self, page: Page) -> Box<[u8]> {
        self.device.page_save(page)
    }

    fn page_load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError> {
        self.device.page_load(page, bytes)
    }

    fn page_copy(&mut self, from: Page, to: Page) {
        self.device.page_copy(from, to);
    }
}
