//! The attention mixer between its projections.

use lily_model::LayerKind;

use crate::backend::Backend;
use crate::buffer::GpuBuffer;
use crate::device::GpuDevice;
use crate::entry::{entry, entry2};
use crate::launch::{AttnCombine, AttnDecode, AttnFlash, AttnPrepare};
use crate::policy::{COMBINE_THREADS, COMBINE_VALUES, FEW_ROWS, FLASH_MMA_ROWS, FLASH_ROWS, decode_mma_tiles, packed_heads};

impl<B: Backend> GpuDevice<B> {
    pub(super) fn prepare_attention(&mut self, layer: usize, rows: usize, projected: &GpuBuffer) {
        let (config, arena) = (&self.config, &self.arena);
        let mixer = self.model.attention(layer);
        AttnPrepare {
            entry: "attn_prepare",
            projected: projected.view,
            rows: self.pass().rows,
            pages: self.pass().pages,
            q_gain: mixer.q_norm,
            k_gain: mixer.k_norm,
            page_turns: arena.page_turns,
            turns: arena.turns,
            kv: arena.kv,
            layer: mixer.index as u32,
            layers: config.layers_of(LayerKind::Attention) as u32,
            heads_q: config.heads_q as u32,
            heads_kv: config.heads_kv as u32,
            head_dim: config.head_dim as u32,
            rotary_dim: config.rotary_dim as u32,
            stride: projected.width as u32,
            eps: config.rms_eps,
            grid: [rows, (config.heads_q + 2 * config.heads_kv).div_ceil(4), 1],
            threads: 128,
        }
        .launch("attn_prepare", &mut self.list);
    }

    pub(super) fn mix_attention(&mut self, layer: usize, rows: usize, projected: &GpuBuffer, mixed: &GpuBuffer) {
        let index = self.model.attention(layer).index as u32;
        self.unscaled = None;
        if rows <= FEW_ROWS {
            self.decode_attention(index, rows, projected, mixed);
        } else {
            self.flash_attention(index, projected, mixed);
        }
    }

    fn decode_attention(&mut self, layer: u32, rows: usize, projected: &GpuBuffer, mixed: &GpuBuffer) {
        let (config, arena, parts) = (&self.config, &self.arena, self.parts());
        let per_kv = config.heads_q / config.heads_kv;
        let (entry, head_tiles) = if self.native.attention_few {
            (entry("attn_decode_mma", config.head_dim), config.heads_kv * decode_mma_tiles(per_kv))
        } else {
            let pack = packed_heads(&self.options, per_kv);
            // Reads that do not coalesce exist for the comparison, in the shapes of the real model.
            let strided = !self.options.coalesced_kv && config.head_dim == 256 && pack != 2;
            (entry2(if strided { "attn_decode_strided" } else { "attn_decode" }, config.head_dim, pack), config.heads_q / pack)
        };
        AttnDecode {
            entry,
            projected: projected.view,
            rows: self.pass().rows,
            pages: self.pass().pages,
            kv: arena.kv,
            parts: arena.parts,
            layer,
            layers: config.layers_of(LayerKind::Attention) as u32,
            heads_q: config.heads_q as u32,
            heads_kv: config.heads_kv as u32,
            stride: projected.width as u32,
            splits: parts.splits,
            block_tokens: parts.block_tokens,
            scale: (config.head_dim as f32).sqrt().recip(),
            grid: [parts.splits as usize, head_tiles, rows],
            threads: 128,
        }
        .launch("attn_mix", &mut self.list);
        AttnCombine {
            entry: "attn_combine",
            parts: arena.parts,
            projected: projected.view,
            rows: self.pass().rows,
            mixed: mixed.view,
            heads_q: config.heads_q as u32,
            head_dim: config.head_dim as u32,
            splits: parts.splits,
            block_tokens: parts.block_tokens,
            stride: projected.width as u32,
            mixed_stride: mixed.width as u32,
            halves: self.halves_after([mixed.width, self.config.q_width()]),
            grid: [config.heads_q, rows, config.head_dim.div_ceil(COMBINE_VALUES)],
            threads: COMBINE_THREADS,
        }
        .launch("attn_mix", &mut self.list);
        self.halved = Some(mixed.view);
    }

    fn flash_attention(&mut self, layer: u32, projected: &GpuBuffer, mixed: &GpuBuffer) {
        self.halved = None;
        let config = &self.config;
        AttnFlash {
            entry: entry(self.native.flash_stem(), config.head_dim),
            projected: projected.view,
            tiles: self.pass().tiles,
            pages: self.pass().pages,
            kv: self.arena.kv,
            mixed: mixed.view,
            layer,
            layers: config.layers_of(LayerKind::Attention) as u32,
            heads_q: config.heads_q as u32,
            heads_kv: config.heads_kv as u32,
            stride: projected.width as u32,
            mixed_stride: mixed.width as u32,
            scale: (config.head_dim as f32).sqrt().recip(),
            grid: [self.staged.tiles, config.heads_kv, 1],
            threads: 256,
        }
        .launch("attn_mix", &mut self.list);
    }

    /// Query rows of a tile of attention over many rows.
    pub(super) fn flash_rows(&self) -> usize {
        if self.native.attention_many { FLASH_MMA_ROWS } else { FLASH_ROWS }
    }
}
