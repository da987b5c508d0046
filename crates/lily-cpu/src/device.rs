//! The CPU device: what it allocates at load, and state, pages and results for the engine.
//!
//! The steps themselves are in [`crate::steps`].

use lily_model::{Capacity, Device, LayerKind, ModelConfig, ModelError, Page, Selection, Slot, StateCopy, Weights, select_token};

use crate::arena::Arena;
use crate::attention::{AttentionDims, BLOCKS_MAX, Plan, TileScratch};
use crate::delta::{DeltaDims, DeltaScratch};
use crate::kv::KvPages;
use crate::layers::Model;
use crate::matrix::Workspace;
use crate::options::CpuOptions;
use crate::rope::RopeTable;
use crate::staged::Staged;
use crate::state::States;
use crate::team::Team;

/// The model's steps on the processor.
pub struct CpuDevice {
    pub(crate) config: ModelConfig,
    pub(crate) capacity: Capacity,
    pub(crate) options: CpuOptions,
    pub(crate) model: Model,
    pub(crate) team: Team,
    /// Of the matrix products.
    pub(crate) workspace: Workspace,
    pub(crate) delta: DeltaDims,
    pub(crate) attention: AttentionDims,
    pub(crate) states: States,
    pub(crate) kv: KvPages,
    pub(crate) staged: Staged,
    pub(crate) rope: RopeTable,
    pub(crate) plan: Plan,
    /// One for each member of the team.
    pub(crate) scratch: Vec<MemberScratch>,
    /// Partial results of decoded rows: `[slots, heads_q, BLOCKS_MAX, partial]`.
    pub(crate) partials: Arena<f32>,
    /// Router and shared gate logits, `[rows, experts + 1]`.
    pub(crate) route_logits: Arena<f32>,
    /// Normalised logit rows, `[logit_rows, hidden]`.
    pub(crate) head_input: Arena<f32>,
    /// `[logit_rows, vocab]`
    pub(crate) logits: Arena<f32>,
}

/// One thread's room.
pub(crate) struct MemberScratch {
    pub delta: DeltaScratch,
    pub tile: TileScratch,
}

impl CpuDevice {
    /// Allocates everything. Memory becomes resident as it is touched: slots, pages and rows never used cost none.
    ///
    /// # Errors
    /// [`ModelError::Device`] if a matrix is stored in a way that the loops cannot read, or if there is no room.
    pub fn new(config: &ModelConfig, weights: &Weights, capacity: Capacity, options: CpuOptions) -> Result<Self, ModelError> {
        let team = options.threads.map_or_else(Team::for_machine, Team::new);
        let kv = KvPages::new(config, capacity.pages)?;
        let delta = DeltaDims::new(config);
        let attention = AttentionDims::new(config, kv.layout.stride);
        let Capacity { slots, pages, rows, logit_rows } = capacity;
        let member = || MemberScratch { delta: DeltaScratch::new(&delta), tile: TileScratch::new(&attention) };
        Ok(CpuDevice {
            capacity,
            options,
            model: Model::new(config, weights)?,
            workspace: Workspace::new(options.matrix(), team.count()),
            states: States::new(config, slots)?,
            staged: Staged::with_capacity(rows, slots, pages, logit_rows),
            rope: RopeTable::new(config.rotary_dim, config.rope_theta, rows),
            plan: Plan::with_capacity(&attention, rows, slots),
            scratch: (0..team.count()).map(|_| member()).collect(),
            partials: Arena::new(slots * BLOCKS_MAX * attention.heads_q * attention.partial(), "partial attention results")?,
            route_logits: Arena::new(rows * (config.experts + 1), "router logits")?,
            head_input: Arena::new(logit_rows * config.hidden, "input of the head")?,
            logits: Arena::new(logit_rows * config.vocab, "logits")?,
            config: config.clone(),
            team,
            delta,
            attention,
            kv,
        })
    }

    /// Values of one mixer's projections, the wider kind.
    pub(crate) fn projected_width(&self) -> usize {
        let config = &self.config;
        let delta = config.conv_dim() + config.v_width() + 2 * config.heads_v;
        let attention = 2 * config.q_width() + 2 * config.kv_width();
        let widths = [(LayerKind::Delta, delta), (LayerKind::Attention, attention)];
        let present = widths.into_iter().filter(|(kind, _)| config.layers_of(*kind) > 0);
        present.map(|(_, width)| width).max().unwrap_or(0)
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.options.isa, self.team.count())
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn finish(&mut self) -> Result<(), ModelError> {
        Ok(()) // steps compute at once
    }

    fn logits(&self, row: usize) -> &[f32] {
        let vocab = self.config.vocab;
        &self.logits[row * vocab..(row + 1) * vocab]
    }

    fn select(&mut self, selections: &[Selection]) -> Result<Vec<u32>, ModelError> {
        let rows = self.staged.logit_rows.len();
        if selections.len() != rows {
            return Err(ModelError::Batch(format!("{} selections for {rows} logit rows", selections.len())));
        }
        Ok(selections.iter().enumerate().map(|(row, selection)| select_token(self.logits(row), selection)).collect())
    }

    fn state_clear(&mut self, slot: Slot) {
        self.states.clear(slot);
    }

    fn state_save(&self, slot: Slot) -> StateCopy {
        StateCopy(self.states.save(slot))
    }

    fn state_load(&mut self, slot: Slot, copy: &StateCopy) -> Result<(), ModelError> {
        self.states.load(slot, &copy.0)
    }

    fn state_bytes(&self) -> usize {
        self.states.slot_bytes()
    }

    fn page_save(&self, page: Page) -> Box<[u8]> {
        self.kv.save(page)
    }

    fn page_load(&mut self, page: Page, bytes: &[u8]) -> Result<(), ModelError> {
        self.kv.load(page, bytes)
    }

    fn page_copy(&mut self, from: Page, to: Page) {
        self.kv.copy(from, to);
    }
}
