//! Recurrent state of all sequences: one slot each, allocated at load.
//!
//! A slot is contiguous, DeltaNet layer after layer, so that saving or loading it is one copy. A layer's part is
//! `conv | memory`:
//! - `conv [conv_width - 1, conv_dim]`: the last raw rows before the convolution, oldest first;
//! - `memory [heads_v, blocks, dim_k, 32]`: the matrix of each value head in blocks of 32 of its `dim_v` columns
//!   (the last one padded with zeros). Columns never meet, so a block of 4 dim_k * 32 bytes stays in the nearest cache
//!   through all tokens of a span.

use lily_model::{LayerKind, ModelConfig, ModelError, Slot};

use crate::arena::{Arena, bytes_of, copy_bytes};

/// Columns of one block of a head's memory.
pub(crate) const BLOCK: usize = 32;

/// Where one DeltaNet layer lies in a slot, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateLayout {
    pub memory_head: usize,
    pub layer: usize,
    pub slot: usize,
}

impl StateLayout {
    pub fn new(config: &ModelConfig) -> Self {
        let conv = (config.conv_width - 1) * config.conv_dim();
        let memory_head = config.dim_v.div_ceil(BLOCK) * BLOCK * config.dim_k;
        let layer = conv.next_multiple_of(16) + config.heads_v * memory_head; // memory is at the end, on cache lines
        StateLayout { memory_head, layer, slot: layer * config.layers_of(LayerKind::Delta) }
    }
}

/// The slots.
pub(crate) struct States {
    pub layout: StateLayout,
    values: Arena<f32>,
}

impl States {
    pub fn new(config: &ModelConfig, slots: usize) -> Result<Self, ModelError> {
        let layout = StateLayout::new(config);
        Ok(States { layout, values: Arena::new(layout.slot * slots, "recurrent state")? })
    }

    /// Everything, for steps that cut it up by [`StateLayout`].
    pub fn all(&mut self) -> &mut [f32] {
        &mut self.values
    }

    pub fn slot_bytes(&self) -> usize {
        self.layout.slot * size_of::<f32>()
    }

    pub fn clear(&mut self, slot: Slot) {
        self.slot_mut(slot).fill(0.0);
    }

    pub fn save(&self, slot: Slot) -> Box<[u8]> {
        let start = slot.0 as usize * self.layout.slot;
        bytes_of(&self.values[start..start + self.layout.slot]).into()
    }

    pub fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), ModelError> {
        let expected = self.slot_bytes();
        if bytes.len() != expected {
            return Err(ModelError::Device(format!("state copy: expected {expected} bytes, found {}", bytes.len())));
        }
        copy_bytes(self.slot_mut(slot), bytes);
        Ok(())
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut [f32] {
        let start = slot.0 as usize * self.layout.slot;
        &mut self.values[start..start + self.layout.slot]
    }
}
