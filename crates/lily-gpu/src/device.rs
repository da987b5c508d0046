//! The GPU device: what it holds between passes, and state, pages and results for the engine.
//!
//! The steps themselves are in [`crate::steps`]. They record launches; [`lily_model::Device::finish`] hands the list to
//! the backend. A pass of a shape that comes again and again (decoding) is recorded once and replayed: what changes per
//! step lives in device buffers.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

use lily_model::{Capacity, Device, ModelConfig, ModelError, Page, Selection, Slot, StateCopy, Ticket, Weights, select_token};

use crate::arena::{Arena, StateBytes};
use crate::backend::{Backend, Prepared, Timed};
use crate::buffer::{GpuBuffer, floats};
use crate::commands::{CommandList, Plan, View};
use crate::entries;
use crate::model::Model;
use crate::options::{GpuOptions, Native, TileRows};
use crate::pass::Staged;
use crate::policy::{FEW_ROWS, Parts, attention_parts, brief_rows, thin_covers};
use crate::select::{SelectShape, Tickets};

/// The model's steps on a GPU, or on the simulator of one.
pub struct GpuDevice<B: Backend> {
    pub(crate) config: ModelConfig,
    pub(crate) capacity: Capacity,
    pub(crate) options: GpuOptions,
    pub(crate) native: Native,
    /// All routed experts' products of many rows go through the wgmma kernels.
    pub(crate) wgmma_experts: bool,
    /// Those and the shared expert's go through the fitted kernels instead.
    pub(crate) fitted_experts: bool,
    /// The routed experts' go through the thin kernels in passes where most of them have few rows.
    pub(crate) thin_experts: bool,
    /// In a cell because reading back waits for the device, and [`lily_model::Steps::read`] borrows.
    pub(crate) backend: RefCell<B>,
    pub(crate) model: Model,
    pub(crate) arena: Arena,
    pub(crate) staged: Staged,
    pub(crate) list: CommandList,
    /// The buffer of normalised inputs, once the forward pass has it: fused chains write it early.
    pub(crate) normed: Option<GpuBuffer>,
    /// The norm whose factors are in `arena.sums`, and in how many parts.
    pub(crate) chained: Option<(Chained, usize)>,
    /// The mixer's results, while their heads lack the factor of their norm: what it is made of is in `arena.head_squares`.
    pub(crate) unscaled: Option<GpuBuffer>,
    /// The buffer whose rows are there in halves too, see `kernels/lib/halves.h`.
    pub(crate) halved: Option<View>,
    recorded: HashMap<Shape, Prepared>,
    recorded_choices: HashMap<SelectShape, Prepared>,
    tickets: Tickets,
    /// The staged pass is one that was recorded before: its steps record nothing.
    pub(crate) replays: Option<Prepared>,
    /// Somebody waits for single steps of this pass: every one of them writes what it is there for.
    pub(crate) stepwise: bool,
    /// Why a step could not be carried out: steps return nothing, so the end of the pass says it.
    pub(crate) failed: Option<ModelError>,
    state: StateBytes,
    /// Logits of the last pass, once the host has asked for them.
    logits: OnceCell<Vec<f32>>,
    recorded_plan: Plan,
    /// Times of every launch since [`GpuDevice::profile`] was switched on.
    profile: Option<Vec<Timed>>,
}

/// A norm whose input has been completed and whose factor is known in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chained {
    Mixer(usize),
    Experts(usize),
    Final,
}

/// What a recorded pass depends on beside device buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    parts: Parts,
}

impl<B: Backend> GpuDevice<B> {
    /// Brings the weights to the device and allocates everything.
    ///
    /// # Errors
    /// [`ModelError::Device`] if the model has a shape that the kernels do not cover, or if there is no room.
    pub fn new(
        mut backend: B,
        config: &ModelConfig,
        weights: &Weights,
        capacity: Capacity,
        options: GpuOptions,
    ) -> Result<Self, ModelError> {
        entries::check_shape(config)?;
        let model = Model::new(&mut backend, weights)?;
        let native = Native::new(&options, config, &backend);
        let arena = Arena::new(&mut backend, config, capacity, &options, native, entries::largest_matrix(&model))?;
        let wgmma_experts = native.wgmma && model.layers.iter().all(|layer| layer.gate.all.has_wgmma() && layer.down.all.has_wgmma());
        let by_shape = options.fitted_experts && options.tile_rows == TileRows::ByShape;
        let fitted_experts = wgmma_experts && by_shape && entries::covers_fitted(config, &model);
        let thin_experts = wgmma_experts
            && options.thin_experts
            && options.tile_rows == TileRows::ByShape
            && thin_covers(config.hidden, config.expert_width);
        let mut needed = entries::needed(config, &model, &options, native, fitted_experts);
        if thin_experts {
            needed.extend(["experts_gate_up_thin", "experts_down_thin"]);
        }
        backend.prepare_kernels(&needed)?;
        Ok(GpuDevice {
            config: config.clone(),
            capacity,
            options,
            native,
            wgmma_experts,
            fitted_experts,
            thin_experts,
            backend: RefCell::new(backend),
            model,
            arena,
            staged: Staged::default(),
            list: CommandList::new(!options.concurrent),
            normed: None,
            chained: None,
            unscaled: None,
            halved: None,
            recorded: HashMap::new(),
            recorded_choices: HashMap::new(),
            tickets: Tickets::default(),
            replays: None,
            stepwise: false,
            failed: None,
            state: StateBytes::new(config),
            logits: OnceCell::new(),
            recorded_plan: Plan::default(),
            profile: None,
        })
    }

    /// Launches and levels of the last pass that was recorded to be replayed: a decode step.
    pub fn recorded_plan(&self) -> Plan {
        self.recorded_plan
    }

    /// Times every launch from now on, or no longer; returns the times so far. Timed passes are never replayed and run
    /// launch by launch.
    pub fn profile(&mut self, on: bool) -> Vec<Timed> {
        std::mem::replace(&mut self.profile, on.then(Vec::new)).unwrap_or_default()
    }

    /// The backend, for profiles and tests.
    pub fn backend(&mut self) -> &mut B {
        self.backend.get_mut()
    }

    /// How decode cuts the staged pass's contexts.
    pub(crate) fn parts(&self) -> Parts {
        attention_parts(&self.options, self.native, self.staged.context)
    }

    /// A new pass is staged: forget the last one.
    pub(crate) fn begin(&mut self) {
        self.list.clear();
        self.chained = None;
        self.unscaled = None;
        self.halved = None;
        self.stepwise = false;
        self.logits.take();
        self.replays = match self.profile {
            Some(_) => None,
            None => self.shape().and_then(|shape| self.recorded.get(&shape).copied()),
        };
    }

    /// The shape under which the staged pass is worth recording: decoding, where passes of one shape follow each other.
    fn shape(&self) -> Option<Shape> {
        let decodes = self.staged.rows <= FEW_ROWS && self.staged.single && self.staged.all_rows_have_logits();
        (decodes && self.options.device_routing && !self.stepwise).then(|| Shape { rows: self.staged.rows, parts: self.parts() })
    }

    /// Queues what has been recorded.
    pub(crate) fn submit(&mut self) -> Result<(), ModelError> {
        match &mut self.profile {
            Some(times) => times.extend(self.backend.get_mut().profile(&self.list)?),
            None => self.backend.get_mut().run(&self.list)?,
        }
        self.list.clear();
        Ok(())
    }

    fn check_selections(&self, selections: &[Selection]) -> Result<(), ModelError> {
        let rows = self.staged.logit_rows.len();
        if selections.len() == rows {
            return Ok(());
        }
        Err(ModelError::Batch(format!("{} selections for {rows} logit rows", selections.len())))
    }

    /// Queues a choice that the device serves. `hands_over`: into the next pass as well.
    fn launch_choice(&mut self, selections: &[Selection], hands_over: bool) -> Result<(), ModelError> {
        self.arena.select.write(self.backend.get_mut(), selections);
        let shape = SelectShape::new(selections, hands_over);
        let prepared = match self.recorded_choices.get(&shape) {
            Some(&prepared) => prepared,
            None => {
                let mut list = CommandList::new(!self.options.concurrent);
                self.arena.select.record(&mut list, shape, self.arena.logits, self.arena.few.tokens);
                let prepared = self.backend.get_mut().prepare(&list)?;
                self.recorded_choices.insert(shape, prepared);
                prepared
            }
        };
        self.backend.get_mut().replay(prepared)
    }

    /// After an error of queued work nothing that was queued counts any more, and its own errors are no news.
    fn heed<T>(&mut self, result: Result<T, ModelError>) -> Result<T, ModelError> {
        if result.is_err() {
            self.tickets.lose();
            self.arena.select.forget();
            let _ = self.backend.get_mut().wait();
        }
        result
    }

    /// Waits for the pass; all its logits are with the host afterwards.
    fn fetch_logits(&self) -> Result<&[f32], ModelError> {
        if self.logits.get().is_none() {
            let mut bytes = vec![0; 4 * self.staged.logit_rows.len() * self.config.vocab];
            self.backend.borrow_mut().read(self.arena.logits.part(0, bytes.len()), &mut bytes)?;
            return Ok(self.logits.get_or_init(|| floats(&bytes)));
        }
        Ok(self.logits.get().map_or(&[], Vec::as_slice))
    }

    fn all_logits(&self) -> &[f32] {
        // Whoever asks for logits has no way to hear of an error; choices are made from `fetch_logits`.
        let rows = self.staged.logit_rows.len();
        self.fetch_logits().unwrap_or_else(|_| self.logits.get_or_init(|| vec![f32::NAN; rows * self.config.vocab]))
    }

    fn state_views(&self, slot: Slot) -> [View; 2] {
        let slot = slot.0 as usize;
        let StateBytes { ring, memory, .. } = self.state;
        [self.arena.ring.part(slot * ring, ring), self.arena.memory.part(slot * memory, memory)]
    }

    fn page_view(&self, page: Page) -> View {
        self.arena.kv.part(page.0 as usize * self.state.page, self.state.page)
    }

    pub(crate) fn read_all(&self, views: &[View]) -> Box<[u8]> {
        let mut bytes = vec![0; views.iter().map(|view| view.bytes).sum()];
        let mut rest = &mut bytes[..];
        for view in views {
            let (part, after) = rest.split_at_mut(view.bytes);
            self.backend.borrow_mut().read(*view, part).unwrap_or_else(|error| panic!("the device cannot be read: {error}"));
            rest = after;
        }
        bytes.into()
    }

    fn write_all(&mut self, what: &str, views: &[View], bytes: &[u8]) -> Result<(), ModelError> {
        let expected: usize = views.iter().map(|view| view.bytes).sum();
        if bytes.len() != expected {
            return Err(ModelError::Device(format!("{what}: expected {expected} bytes, found {}", bytes.len())));
        }
        let mut rest = bytes;
        for view in views {
            let (part, after) = rest.split_at(view.bytes);
            self.backend.get_mut().write(*view, part);
            rest = after;
        }
        Ok(())
    }
}

impl<B: Backend> Device for GpuDevice<B> {
    fn name(&self) -> String {
        self.backend.borrow().name()
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn prompt_rows(&self, position: usize) -> usize {
        match self.backend.borrow().must_be_brief() {
            true => brief_rows(position).min(self.capacity.rows),
            false => self.capacity.rows,
        }
    }

    fn finish(&mut self) -> Result<(), ModelError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if let Some(prepared) = self.replays.take() {
            return self.backend.get_mut().replay(prepared);
        }
        let Some(shape) = self.shape().filter(|_| self.profile.is_none()) else { return self.submit() };
        self.recorded_plan = self.list.plan();
        let prepared = self.backend.get_mut().prepare(&self.list)?;
        self.recorded.insert(shape, prepared);
        self.list.clear();
        self.backend.get_mut().replay(prepared)
    }

    fn logits(&self, row: usize) -> &[f32] {
        let vocab = self.config.vocab;
        &self.all_logits()[row * vocab..(row + 1) * vocab]
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        self.check_selections(selections)?;
        if !self.arena.select.serves(selections) {
            let fetched = self.fetch_logits().map(|_| ());
            self.heed(fetched)?;
            return Ok(selections.iter().enumerate().map(|(row, selection)| select_token(self.logits(row), selection)).collect());
        }
        if selections.is_empty() {
            return Ok(Vec::new());
        }
        self.launch_choice(selections, false)?;
        let mut bytes = vec![0; 4 * selections.len()];
        let read = self.backend.get_mut().read(self.arena.select.chosen.part(0, bytes.len()), &mut bytes);
        self.heed(read)?;
        Ok(tokens(&bytes))
    }

    fn queue_select(&mut self, selections: &[Selection]) -> Result<Option<Ticket>, ModelError> {
        self.check_selections(selections)?;
        if !self.options.device_tokens || selections.is_empty() || !self.arena.select.serves(selections) {
            return Ok(None);
        }
        self.launch_choice(selections, true)?;
        let chosen = self.arena.select.chosen.part(0, 4 * selections.len());
        Ok(Some(self.tickets.issue(self.backend.get_mut().read_later(chosen))))
    }

    fn chosen(&mut self, ticket: Ticket) -> Result<Vec<u32>, ModelError> {
        let pending = self.tickets.take(ticket)?;
        let read = self.backend.get_mut().collect(pending);
        self.heed(read).map(|bytes| tokens(&bytes))
    }

    fn state_clear(&mut self, slot: Slot) {
        for view in self.state_views(slot) {
            if view.bytes > 0 {
                self.backend.get_mut().clear(view);
            }
        }
    }

    fn state_save(&self, slot: Slot) -> StateCopy {
        StateCopy(self.read_all(&self.state_views(slot)))
    }

    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError> {
        let views = self.state_views(slot);
        self.write_all("state copy", &views, &copy.0)
    }

    fn state_bytes(&self) -> usize {
        self.state.ring + self.state.memory
    }

    fn page_save(&self, page: Page) -> Box<[u8]> {
        self.read_all(&[self.page_view(page)])
    }

    fn page_load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError> {
        let view = self.page_view(page);
        self.write_all("KV page", &[view], bytes)
    }

    fn page_copy(&mut self, from: Page, to: Page) {
        let (from, to) = (self.page_view(from), self.page_view(to));
        if from != to && from.bytes > 0 {
            self.backend.get_mut().copy(from, to);
        }
    }
}

fn tokens(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}
