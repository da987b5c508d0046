//! What runs instead of each technique: with every switch off in turn, models and steps stay what they are.

#![cfg(all(feature = "sim", unix))]

mod rig;

use lily_gpu::{DeltaScan, GpuOptions, TileRows};
use lily_testkit::reference::AttentionDims;
use lily_testkit::ring::kernel::attention;
use lily_testkit::ring::{model, nano};
use rig::Sim;

/// One switch each.
const OFF: [fn(&mut GpuOptions); 12] = [
    |options| options.fused_dequantise = false,
    |options| options.device_routing = false,
    |options| options.tile_rows = TileRows::Fixed(16),
    |options| options.tile_rows = TileRows::Fixed(32),
    |options| options.tile_rows = TileRows::Fixed(64),
    |options| options.delta_scan = DeltaScan::Register,
    |options| options.coalesced_kv = false,
    |options| options.packed_heads = false,
    |options| options.fixed_blocks = false,
    |options| options.concurrent = false,
    |options| options.fused_chains = false,
    |options| options.device_tokens = false,
];

/// With 4-bit and with plain matrices: prefill through tiles, rows of a batch through vector kernels.
#[test]
fn tiny_models_agree_without_any_technique() {
    for off in OFF {
        let without = Sim::fast().with(off);
        for name in ["base", "raw"] {
            model::check_golden_but_ties(&without, name, without.model_bound());
        }
        model::check_batch(&without, 5e-2);
    }
}

/// Tiles on warpgroups, with everything as it is by default and with one switch at a time that they have to do with.
#[test]
fn tiny_models_agree_on_native_kernels() {
    let native = Sim::fast().native();
    let arms: [fn(&mut GpuOptions); 6] = [
        |_| {},
        |options| options.tile_rows = TileRows::Fixed(16),
        |options| options.wgmma_prefill = false,
        |options| options.attention_mma = false,
        |options| options.delta_scan = DeltaScan::Blocked,
        |options| options.fused_dequantise = false,
    ];
    for off in arms {
        let with = native.with(off);
        model::check_golden_but_ties(&with, "base", with.model_bound());
        model::check_batch(&with, 5e-2);
    }
}

/// Its heads are the real model's: reads that do not coalesce and packed heads exist for them.
#[test]
fn the_bundled_model_reads_its_cache_either_way() {
    for off in [|options: &mut GpuOptions| options.coalesced_kv = false, |options: &mut GpuOptions| options.packed_heads = false] {
        nano::agreement_over(&Sim::fast(), &Sim::fast().with(off), 24).assert_within(1e-3, 0.99);
    }
}

/// Fixed blocks and parts of a context, at a length where they differ.
#[test]
fn long_contexts_are_cut_either_way() {
    let heads = AttentionDims { heads_q: 4, heads_kv: 1, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    for fixed_blocks in [true, false] {
        attention::check_contexts(&Sim::fast().with(|options| options.fixed_blocks = fixed_blocks), heads, &[257, 32768]);
    }
    // The native kernel has numbers of parts of its own.
    attention::check_contexts(&Sim::fast().native(), AttentionDims { head_dim: 64, ..heads }, &[257, 4097, 16_400]);
}
