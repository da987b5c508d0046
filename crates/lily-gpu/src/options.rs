//! Switches: what each technique is, and what runs without it.
//!
//! Everything is on by default. `lily bench --ablate` turns one off at a time, so that a table shows what each brings.

use lily_model::ModelConfig;

use crate::backend::Backend;
use crate::policy::ATTENTION_MMA_DIMS;

/// How many rows of activations a threadgroup of a matrix product takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileRows {
    /// By the rows at hand, or rows per expert: see [`crate::policy`].
    ByShape,
    /// 16, 32 or 64, always.
    Fixed(u32),
}

/// How the DeltaNet state goes through many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaScan {
    /// Token by token, a column of the state in the registers of a simdgroup.
    Register,
    /// Four tokens at a time, two columns in the registers of eight lanes.
    Blocked,
    /// 32 tokens at a time on tensor cores, where the device multiplies from registers; else four.
    Chunked,
}

/// The switches of the GPU engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Products of many rows dequantise 4-bit tiles on chip; else the matrix is expanded in memory before.
    pub fused_dequantise: bool,
    /// Experts are chosen and rows sorted on the device; else on the host, in the middle of every layer.
    pub device_routing: bool,
    pub tile_rows: TileRows,
    pub delta_scan: DeltaScan,
    /// Lanes share each key and value row in decode; else every lane reads rows of its own.
    pub coalesced_kv: bool,
    /// Query heads that share a key head read each of its rows together in decode; else each for itself.
    pub packed_heads: bool,
    /// From 32K positions on the portable `attn_decode` cuts a context into blocks of fixed size; else into a fixed number of
    /// parts.
    pub fixed_blocks: bool,
    /// Launches wait for what they truly depend on; else each for the one before it.
    pub concurrent: bool,
    /// Norms and top-k disappear into the kernels around them in passes of few rows; else they are launches.
    pub fused_chains: bool,
    /// Products of few rows on tensor cores, where the device multiplies from registers; else with plain arithmetic.
    pub mma_decode: bool,
    /// Products of many rows on warpgroups, where the device has them, those of attention included; else tile by tile of one
    /// simdgroup.
    pub wgmma_prefill: bool,
    /// Tiles of experts are as wide as they have rows, where products of many rows go through warpgroups; else of fixed sizes.
    pub fitted_experts: bool,
    /// Experts of few rows multiply codes from registers, in passes where most have few; else as those of many rows.
    pub thin_experts: bool,
    /// Attention keeps queries, scores and results in registers, where the device multiplies from them; else they go through
    /// threadgroup memory, those of few rows through plain arithmetic.
    pub attention_mma: bool,
    /// The chosen token goes to the next step on the device; else through the host.
    pub device_tokens: bool,
}

/// Which native kernels stand in for portable ones, where they cover a matrix or a head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Native {
    /// Products of few rows.
    pub mma: bool,
    /// Products of many rows.
    pub wgmma: bool,
    /// Attention of many rows.
    pub attention_many: bool,
    /// The same on warpgroups.
    pub attention_wgmma: bool,
    /// Attention of few rows.
    pub attention_few: bool,
    /// The DeltaNet state through many tokens.
    pub scan_mma: bool,
    /// Of the device: see [`Backend::multiprocessors`].
    pub multiprocessors: usize,
}

impl Native {
    pub fn new(options: &GpuOptions, config: &ModelConfig, backend: &impl Backend) -> Self {
        let attention = options.attention_mma && backend.has_mma() && ATTENTION_MMA_DIMS.contains(&config.head_dim);
        Native {
            mma: options.mma_decode && backend.has_mma(),
            // A matrix that is expanded before has no codes left to multiply by.
            wgmma: options.wgmma_prefill && options.fused_dequantise && backend.has_wgmma(),
            attention_many: attention,
            attention_wgmma: attention && options.wgmma_prefill && backend.has_wgmma(),
            // It packs heads and shares reads: without either technique there is only the portable kernel.
            attention_few: attention && options.coalesced_kv && options.packed_heads,
            scan_mma: options.delta_scan == DeltaScan::Chunked && backend.has_mma(),
            multiprocessors: backend.multiprocessors(),
        }
    }

    /// The kernel of attention of many rows.
    pub fn flash_stem(&self) -> &'static str {
        match (self.attention_wgmma, self.attention_many) {
            (true, _) => "attn_flash_wgmma",
            (false, true) => "attn_flash_mma",
            (false, false) => "attn_flash",
        }
    }
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            fused_dequantise: true,
            device_routing: true,
            tile_rows: TileRows::ByShape,
            delta_scan: DeltaScan::Chunked,
            coalesced_kv: true,
            packed_heads: true,
            fixed_blocks: true,
            concurrent: true,
            fused_chains: true,
            mma_decode: true,
            wgmma_prefill: true,
            fitted_experts: true,
            thin_experts: true,
            attention_mma: true,
            device_tokens: true,
        }
    }
}
