//! All rings on the GPU of a Mac, with tensor operations where it has them and without.
//!
//! `MTL_DEBUG_LAYER=1 MTL_SHADER_VALIDATION=1 cargo test -p lily-gpu --test metal -- --nocapture` has Metal check every call
//! and every access, and prints what was measured.

#![cfg(target_os = "macos")]

mod rig;

use lily_gpu::backend::metal::{MetalBackend, MetalOptions};
use lily_gpu::backend::tile_check;
use lily_gpu::{Access, Backend, CommandList, DeltaScan, GpuDevice, GpuOptions, Launch, TileRows, View};
use lily_model::{Bytes, Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::{Float, tiny_dims};
use lily_testkit::golden::TINY;
use lily_testkit::golden::tolerance::LOGITS_BF16;
use lily_testkit::reference::ModelDims;
use lily_testkit::ring::kernel::{
    ATTENTION_DIMS, CAPACITY, DELTA_DIMS, ROWS, attention, delta, experts, full_dims, nan, nano_heads, products, rows,
};
use lily_testkit::ring::{Numerics, Subject, Tolerances, layer, model, nano, select};
use rig::{MODEL, NUMERICS, ROUNDED_WEIGHTS, STORED, TOLERANCES, awkward};

/// The GPU with these switches.
#[derive(Clone, Default)]
struct Metal {
    gpu: GpuOptions,
    metal: MetalOptions,
}

impl Metal {
    /// With the tiles that the chip prefers, and with simdgroup matrices.
    fn both() -> [Metal; 2] {
        let without = MetalOptions { without_tensor_ops: true };
        [Metal::default(), Metal { metal: without, ..Metal::default() }]
    }
}

impl Subject for Metal {
    type Device = GpuDevice<MetalBackend>;

    fn label(&self) -> String {
        format!("metal {:?} {:?}", self.metal, self.gpu)
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
        GpuDevice::new(MetalBackend::with_options(self.metal.clone())?, config, weights, capacity, self.gpu)
    }
}

#[test]
fn tiles_are_right_either_way() {
    for metal in Metal::both() {
        let mut backend = MetalBackend::with_options(metal.metal).unwrap();
        println!("{}: {} MB", backend.name(), backend.memory().unwrap() >> 20);
        tile_check::run(&mut backend).unwrap();
    }
}

#[test]
fn copies_keep_their_order_with_work_in_flight() {
    let mut backend = MetalBackend::new().unwrap();
    let mut view = |bytes: usize| View { buffer: backend.allocate(bytes, "test").unwrap(), offset: 0, bytes };
    let (first, second) = (view(1 << 16), view(1 << 16));
    for round in 0..200u8 {
        backend.write(first, &vec![round; first.bytes]);
        backend.copy(first, second);
        backend.clear(first.part(0, 1 << 15));
        backend.write(second.part(4, 8), &[255; 8]);
    }
    let (mut left, mut right) = (vec![0; first.bytes], vec![0; second.bytes]);
    backend.read(first, &mut left).unwrap();
    backend.read(second, &mut right).unwrap();
    assert!(left[..1 << 15].iter().all(|&byte| byte == 0) && left[1 << 15..].iter().all(|&byte| byte == 199));
    assert!(right[..4].iter().all(|&byte| byte == 199) && right[4..12].iter().all(|&byte| byte == 255));
    assert!(right[12..].iter().all(|&byte| byte == 199));
}

#[test]
fn what_cannot_be_done_is_said() {
    let mut backend = MetalBackend::new().unwrap();
    let fault = backend.prepare_kernels(&["no_such_kernel"]).unwrap_err().to_string();
    assert!(fault.contains("no kernel of this name: no_such_kernel"), "{fault}");
    let budget = backend.memory().unwrap();
    let fault = backend.allocate(budget + 1, "too much").unwrap_err().to_string();
    assert!(fault.contains("too much needs") && fault.contains("iogpu.wired_limit_mb="), "{fault}");
    let imported = backend.import(&Bytes::owned(vec![7; 64]), "seven").unwrap();
    let mut bytes = [0; 64];
    backend.read(imported, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);
    let mut list = CommandList::new(false);
    let outside = View { offset: 48, ..imported };
    let launch = Launch {
        kernel: "tile_check",
        stage: "test",
        bindings: vec![(outside, Access::Read)],
        args: Vec::new(),
        grid: [1; 3],
        threads: 32,
    };
    list.push(launch);
    let fault = backend.run(&list).unwrap_err().to_string();
    assert!(fault.contains("expected a view of the 64 bytes of seven, found bytes 48..112"), "{fault}");
}

#[test]
fn kernels_match_the_reference() {
    for metal in Metal::both() {
        rows::check(&metal, &ModelDims { hidden: 192, ..tiny_dims() }, &ROWS);
        for dims in [awkward(), nano_heads()] {
            products::check(&metal, &dims, &ROWS);
            experts::check(&metal, &dims, &ROWS);
        }
        products::check(&metal, &full_dims(), &[1, 3, 9, 130]);
        experts::check(&metal, &full_dims(), &[1, 3, 9, 130]);
        experts::check_counts(&metal, &tiny_dims(), &experts::COUNTS);
        nan::check(&metal, &awkward());
        for vocab in select::VOCABS {
            select::check(&metal, vocab, 40);
        }
    }
}

#[test]
fn delta_and_attention_match_the_reference() {
    for metal in Metal::both() {
        for dims in [awkward().delta, DELTA_DIMS[0], DELTA_DIMS[1]] {
            delta::check(&metal, dims, &delta::SPANS);
            let scan = GpuOptions { delta_scan: DeltaScan::Register, ..metal.gpu };
            delta::check(&Metal { gpu: scan, ..metal.clone() }, dims, &delta::SPANS);
        }
        for dims in [awkward().attention, ATTENTION_DIMS[0], ATTENTION_DIMS[1]] {
            attention::check(&metal, dims, CAPACITY, &attention::BATCHES);
        }
        attention::check_contexts(&metal, ATTENTION_DIMS[0], &attention::CONTEXTS[..6]);
    }
}

#[test]
fn models_agree_with_other_engines() {
    for metal in Metal::both() {
        for name in TINY {
            layer::check(&metal, name);
            model::check_golden_but_ties(&metal, name, MODEL);
        }
        model::check_batch(&metal, 5e-2);
        model::check_saved_state(&metal);
        nano::check_golden(&metal, LOGITS_BF16);
        nano::check_perplexity(&metal, usize::MAX, 1e-3);
    }
}

#[test]
fn the_bundled_model_is_the_same_without_any_technique() {
    let all = GpuOptions::default();
    let arms = [
        GpuOptions { fused_dequantise: false, ..all },
        GpuOptions { device_routing: false, ..all },
        GpuOptions { tile_rows: TileRows::Fixed(16), ..all },
        GpuOptions { delta_scan: DeltaScan::Register, ..all },
        GpuOptions { coalesced_kv: false, ..all },
        GpuOptions { packed_heads: false, ..all },
        GpuOptions { fixed_blocks: false, ..all },
        GpuOptions { concurrent: false, ..all },
        GpuOptions { fused_chains: false, ..all },
    ];
    for gpu in arms {
        nano::check_golden(&Metal { gpu, ..Metal::default() }, LOGITS_BF16);
    }
}
