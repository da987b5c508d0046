//! All rings on a real GPU, full-size shapes included. Where there is none they skip, and say so.
//!
//! `tools/cuda/pack.sh -p lily-gpu --test cuda_ring` makes a program of them that runs without Rust.

#![cfg(all(feature = "cuda", any(target_os = "linux", target_os = "windows")))]

mod cuda_rig;
mod rig;

use lily_gpu::backend::cuda::{CudaBackend, CudaOptions};
use lily_gpu::{DeltaScan, GpuDevice, GpuOptions, TileRows};
use lily_model::{Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::{Float, tiny_dims};
use lily_testkit::golden::tolerance::LOGITS_BF16;
use lily_testkit::golden::{TINY, worst_row};
use lily_testkit::reference::{AttentionDims, ModelDims};
use lily_testkit::ring::kernel::{
    ATTENTION_DIMS, CAPACITY, DELTA_DIMS, ROWS, attention, delta, experts, full_dims, nan, nano_heads, products, rows,
};
use lily_testkit::ring::{Numerics, Subject, Tolerances, ahead, layer, model, nano, select};
use rig::{
    MODEL, NUMERICS, ROUNDED_WEIGHTS, STEPS, STORED, Sim, THIN_COUNTS, TOLERANCES, all_experts_checkpoint, awkward, pass, spans, thin,
};

/// The first GPU with these switches.
struct Cuda(GpuOptions);

impl Subject for Cuda {
    type Device = GpuDevice<CudaBackend>;

    fn label(&self) -> String {
        format!("cuda {:?}", self.0)
    }

    fn numerics(&self) -> Numerics {
        NUMERICS
    }

    fn tolerances(&self) -> Tolerances {
        TOLERANCES
    }

    fn rounded_weights(&self) -> Option<(usize, Float)> {
        ROUNDED_WEIGHTS
    }

    fn stored(&self) -> Float {
        STORED
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<Self::Device, ModelError> {
        let cache = Some(std::env::temp_dir().join("lily-cuda-kernels"));
        GpuDevice::new(CudaBackend::new(CudaOptions { cache, ..CudaOptions::default() })?, config, weights, capacity, self.0)
    }
}

/// The GPU with every switch as it is by default; `None`, with a word, where there is no GPU.
fn cuda() -> Option<Cuda> {
    cuda_rig::gpu(&[]).map(|_| Cuda(GpuOptions::default()))
}

#[test]
fn row_steps_match_the_reference() {
    let Some(cuda) = cuda() else { return };
    rows::check(&cuda, &ModelDims { hidden: 192, ..tiny_dims() }, &ROWS);
    rows::check(&cuda, &full_dims(), &[1, 8, 9, 130]);
}

#[test]
fn projections_match_the_reference() {
    let Some(cuda) = cuda() else { return };
    for dims in [awkward(), nano_heads()] {
        products::check(&cuda, &dims, &ROWS);
    }
    products::check(&cuda, &spans(), &ROWS);
    products::check(&cuda, &full_dims(), &[1, 3, 4, 9, 130, 300]);
    // Enough output tiles for the widest.
    products::check(&cuda, &ModelDims { hidden: 8192, ..tiny_dims() }, &[300]);
}

#[test]
fn experts_match_the_reference() {
    let Some(cuda) = cuda() else { return };
    for dims in [awkward(), nano_heads()] {
        experts::check(&cuda, &dims, &ROWS);
    }
    experts::check(&cuda, &spans(), &ROWS);
    experts::check(&cuda, &full_dims(), &[1, 3, 9, 130]);
    experts::check_counts(&cuda, &tiny_dims(), &experts::COUNTS);
    experts::check_counts(&cuda, &thin(), &THIN_COUNTS);
}

#[test]
fn delta_update_advances_every_span() {
    let Some(cuda) = cuda() else { return };
    for dims in [awkward().delta, DELTA_DIMS[0], DELTA_DIMS[1]] {
        delta::check(&cuda, dims, &delta::SPANS);
        for delta_scan in [DeltaScan::Register, DeltaScan::Blocked] {
            delta::check(&Cuda(GpuOptions { delta_scan, ..cuda.0 }), dims, &delta::SPANS);
        }
        delta::check(&Cuda(GpuOptions { fused_chains: false, ..cuda.0 }), dims, &delta::SPANS[..1]);
    }
}

#[test]
fn attention_sees_its_own_sequence_up_to_its_own_row() {
    let Some(cuda) = cuda() else { return };
    for dims in [awkward().attention, ATTENTION_DIMS[0], ATTENTION_DIMS[1]] {
        attention::check(&cuda, dims, CAPACITY, &attention::BATCHES);
        attention::check(&cuda, dims, CAPACITY, &attention::FEW);
        attention::check(&Cuda(GpuOptions { attention_mma: false, ..cuda.0 }), dims, CAPACITY, &attention::FEW);
        attention::check(&Cuda(GpuOptions { wgmma_prefill: false, ..cuda.0 }), dims, CAPACITY, &attention::BATCHES);
    }
    // The other head sizes of tiles; groups of heads that do not divide them.
    for (heads_q, heads_kv, head_dim) in [(24, 2, 128), (3, 3, 64)] {
        let dims = AttentionDims { heads_q, heads_kv, head_dim, ..ATTENTION_DIMS[0] };
        attention::check(&cuda, dims, CAPACITY, &attention::BATCHES);
    }
}

#[test]
fn attention_as_a_context_grows() {
    let Some(cuda) = cuda() else { return };
    let small = AttentionDims { heads_q: 16, heads_kv: 2, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    attention::check_contexts(&cuda, small, &attention::CONTEXTS);
    attention::check_contexts(&cuda, ATTENTION_DIMS[0], &attention::CONTEXTS[..6]);
}

#[test]
fn the_device_chooses_what_the_definition_chooses() {
    let Some(cuda) = cuda() else { return };
    for vocab in select::VOCABS {
        select::check(&cuda, vocab, 40);
    }
}

#[test]
fn nan_comes_out_where_nan_went_in() {
    let Some(cuda) = cuda() else { return };
    nan::check(&cuda, &awkward());
}

#[test]
fn every_layer_agrees_with_transformers_and_the_reference() {
    let Some(cuda) = cuda() else { return };
    for name in TINY {
        layer::check(&cuda, name);
    }
}

#[test]
fn tiny_models_agree_with_other_engines() {
    let Some(cuda) = cuda() else { return };
    for name in TINY {
        model::check_golden_but_ties(&cuda, name, MODEL);
    }
}

#[test]
fn sequences_state_and_pages_keep_to_themselves() {
    let Some(cuda) = cuda() else { return };
    model::check_batch(&cuda, 5e-2);
    model::check_saved_state(&cuda);
    model::check_wrong_copies(&cuda);
}

#[test]
fn tokens_on_the_device_are_those_through_the_host() {
    let Some(cuda) = cuda() else { return };
    ahead::check(&cuda, true);
    ahead::check_late(&cuda);
    ahead::check(&Cuda(GpuOptions { device_tokens: false, ..cuda.0 }), false);
}

#[test]
fn the_bundled_model_agrees_with_mlx() {
    let Some(cuda) = cuda() else { return };
    nano::check_golden(&cuda, LOGITS_BF16);
    nano::check_perplexity(&cuda, usize::MAX, 1e-3);
}

#[test]
fn the_bundled_model_is_the_same_without_any_technique() {
    let Some(Cuda(all)) = cuda() else { return };
    let arms = [
        GpuOptions { fused_dequantise: false, ..all },
        GpuOptions { device_routing: false, ..all },
        GpuOptions { tile_rows: TileRows::Fixed(16), ..all },
        GpuOptions { delta_scan: DeltaScan::Register, ..all },
        GpuOptions { delta_scan: DeltaScan::Blocked, ..all },
        GpuOptions { coalesced_kv: false, ..all },
        GpuOptions { packed_heads: false, ..all },
        GpuOptions { fixed_blocks: false, ..all },
        GpuOptions { concurrent: false, ..all },
        GpuOptions { fused_chains: false, ..all },
        GpuOptions { mma_decode: false, ..all },
        GpuOptions { wgmma_prefill: false, ..all },
        GpuOptions { fitted_experts: false, ..all },
        GpuOptions { thin_experts: false, ..all },
        GpuOptions { attention_mma: false, ..all },
    ];
    for options in arms {
        nano::check_golden(&Cuda(options), LOGITS_BF16);
    }
}

#[test]
fn passes_on_tensor_cores_agree_with_the_simulator_without() {
    let Some(cuda) = cuda() else { return };
    let checkpoint = all_experts_checkpoint();
    let (expected, vocab) = pass(&Sim::fast(), checkpoint.path(), &STEPS);
    for fused_chains in [true, false] {
        let (found, _) = pass(&Cuda(GpuOptions { fused_chains, ..cuda.0 }), checkpoint.path(), &STEPS);
        worst_row(&format!("fused chains {fused_chains}"), &found, &expected, vocab).assert_within(5e-3);
    }
}

#[test]
fn gpu_and_simulator_agree_position_by_position() {
    let Some(cuda) = cuda() else { return };
    // The same kernels on both, but not the same order of sums: a rounding that chooses another expert moves the perplexity
    // of so few positions by some thousandths. Over a whole text it is `lily eval` that compares.
    nano::agreement(&Sim::fast().native(), &cuda).assert_within(4e-3, 0.99);
}
