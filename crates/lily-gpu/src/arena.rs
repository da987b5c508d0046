//! Everything that the device allocates at load beside weights and activations.

use std::f64::consts::TAU;

use lily_model::{Capacity, LayerKind, ModelConfig, ModelError, PAGE_TOKENS};

use crate::backend::Backend;
use crate::commands::View;
use crate::options::{GpuOptions, Native};
use crate::pass::{PassBuffer, PassRoom};
use crate::policy::{DELTA_TILES, FEW_ROWS, OUTPUT_THREADS, ScanBlock, attention_parts_max};
use crate::select::SelectBuffers;

/// The arena.
pub(crate) struct Arena {
    pub few: PassBuffer,
    pub many: PassBuffer,
    /// Last raw rows before the convolutions: `[slots, delta layers, conv_width, conv_dim]` f32.
    pub ring: View,
    /// DeltaNet memories: `[slots, delta layers, heads_v, dim_v, dim_k]` f32.
    pub memory: View,
    /// Keys and values: `[pages, attention layers, heads_kv, keys | values, 256, head_dim]` f16.
    pub kv: View,
    /// Rotations of whole pages, and of positions inside a page: `[.., rotary_dim / 2]` cosine and sine.
    pub page_turns: View,
    pub turns: View,
    /// Sums of squares of few rows, see `kernels/lib/chain.h`.
    pub sums: View,
    /// Inputs in halves, where who made them has not written that: `[few rows, inputs]`, see `kernels/lib/halves.h`.
    pub halves: View,
    /// Router and shared gate logits, `[rows, experts + 1]` f32.
    pub route_logits: View,
    /// What the DeltaNet scan reads, `[rows, conv_dim]` f32 or two halfs; its gates, `[rows, heads_v]`; its result, `[rows, v_width]` f32.
    pub inputs: View,
    pub gates: View,
    /// Factors of its blocks of tokens: `[blocks, heads_v, factors]` f32, see [`ScanBlock`].
    pub factors: View,
    pub reads: View,
    /// Sums of squares of `delta_step_tiled`, `[few rows, heads_v, DELTA_TILES]` f32.
    pub head_squares: View,
    /// Parts of attention of few rows.
    pub parts: View,
    /// Rows of each expert, assignments in expert order, tiles of the grouped products.
    pub counts: View,
    pub order: View,
    pub tiles: View,
    /// Down projections of every assignment, `[rows, per_token + 1, hidden]` f16.
    pub expert_parts: View,
    /// Two expanded matrices, where products do not dequantise.
    pub expanded: Option<[View; 2]>,
    /// Normalised logit rows, `[logit_rows, hidden]`, as [`crate::buffer::Kind::Operand`].
    pub head_input: View,
    /// `[logit_rows, vocab]` f32
    pub logits: View,
    pub select: SelectBuffers,
}

/// Bytes per slot and page, from which `state_save` and `page_save` cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateBytes {
    pub ring: usize,
    pub memory: usize,
    pub page: usize,
}

impl StateBytes {
    pub fn new(config: &ModelConfig) -> Self {
        let delta = config.layers_of(LayerKind::Delta);
        StateBytes {
            ring: 4 * delta * config.conv_width * config.conv_dim(),
            memory: 4 * delta * config.heads_v * config.dim_v * config.dim_k,
            page: config.page_bytes(),
        }
    }
}

impl Arena {
    /// Allocates everything. `expanded` is the size in values of the largest matrix.
    pub fn new(
        backend: &mut impl Backend,
        config: &ModelConfig,
        capacity: Capacity,
        options: &GpuOptions,
        native: Native,
        expanded: usize,
    ) -> Result<Self, ModelError> {
        let Capacity { slots, pages, rows, logit_rows } = capacity;
        let table = pages.min(config.context_max.div_ceil(PAGE_TOKENS));
        let room =
            |rows: usize| PassRoom { rows, spans: rows.min(slots), logit_rows: rows.min(logit_rows), pages: rows.min(slots) * table };
        let state = StateBytes::new(config);
        let few = FEW_ROWS.min(rows);
        let assignments = rows * (config.experts_per_token + 1);
        let splits = attention_parts_max(table * PAGE_TOKENS);
        let few_pass = PassBuffer::new(backend, room(few))?;
        let many_pass = PassBuffer::new(backend, room(rows))?;
        let scan = ScanBlock::new(native.scan_mma);
        let choices = config.experts_per_token * config.expert_width + config.shared_width;
        let inputs = config.hidden.max(config.v_width()).max(config.q_width()).max(choices);
        let mut views = |bytes: usize, what: &str| backend.allocate_view(bytes.max(16), what);
        let arena = Arena {
            ring: views(state.ring * slots, "convolution rows")?,
            memory: views(state.memory * slots, "recurrent state")?,
            kv: views(state.page * pages, "KV pages")?,
            page_turns: views(8 * (config.rotary_dim / 2) * (table + 1), "rotations of pages")?,
            turns: views(8 * (config.rotary_dim / 2) * PAGE_TOKENS, "rotations")?,
            sums: views(4 * few * config.hidden.div_ceil(OUTPUT_THREADS as usize / 32), "sums of squares")?,
            halves: views(4 * few * inputs, "inputs in halves")?,
            route_logits: views(4 * rows * (config.experts + 1), "router logits")?,
            inputs: views(4 * rows * config.conv_dim(), "inputs of the scan")?,
            gates: views(8 * rows * config.heads_v, "gates of the scan")?,
            factors: views(4 * scan.factors * config.heads_v * (rows / scan.tokens + 2 * slots.min(rows) + 1), "factors of the scan")?,
            reads: views(4 * rows * config.v_width(), "results of the scan")?,
            head_squares: views(4 * few * config.heads_v * DELTA_TILES, "sums of squares of heads")?,
            parts: views(4 * few * config.heads_q * splits * (config.head_dim + 2), "parts of attention")?,
            counts: views(4 * config.experts, "rows of each expert")?,
            order: views(4 * assignments, "rows in expert order")?,
            tiles: views(16 * (1 + rows * config.experts_per_token / 16 + config.experts), "tiles of experts")?,
            expert_parts: views(2 * assignments * config.hidden, "results of experts")?,
            expanded: match options.fused_dequantise {
                true => None,
                false => Some([views(2 * expanded, "an expanded matrix")?, views(2 * expanded, "an expanded matrix")?]),
            },
            head_input: views(4 * logit_rows * config.hidden, "input of the head")?,
            logits: views(4 * logit_rows * config.vocab, "logits")?,
            select: SelectBuffers::new(&mut views, config, few)?,
            few: few_pass,
            many: many_pass,
        };
        backend.write(arena.page_turns, &turns(config, (0..=table).map(|page| page * PAGE_TOKENS)));
        backend.write(arena.turns, &turns(config, 0..PAGE_TOKENS));
        Ok(arena)
    }
}

/// Cosines and sines of the rotations of some positions: angles in f64, so that none is off by more than f32's rounding.
fn turns(config: &ModelConfig, positions: impl Iterator<Item = usize>) -> Vec<u8> {
    let half = config.rotary_dim / 2;
    let turn = |position: usize, d: usize| {
        let frequency = config.rope_theta.powf(-(d as f64) / half as f64);
        let angle = (position as f64 * frequency) % TAU;
        [angle.cos() as f32, angle.sin() as f32]
    };
    let pairs = positions.flat_map(|position| (0..half).map(move |d| (position, d)));
    pairs.flat_map(|(position, d)| turn(position, d)).flat_map(f32::to_le_bytes).collect()
}
