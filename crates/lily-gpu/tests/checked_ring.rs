//! Every kernel on the checked build of the simulator, which names races, stray and unset memory: single steps against
//! the reference, then whole passes against the fast build, since only they fuse chains and let launches run at once.
//!
//! `cargo test -p lily-gpu --test checked_ring -- --nocapture` prints how long each part takes.

#![cfg(all(feature = "sim", unix))]

#[path = "rig/noting.rs"]
mod noting;
mod rig;

use std::collections::BTreeSet;
use std::time::Instant;

use lily_gpu::backend::sim::SimBackend;
use lily_gpu::{DeltaScan, GpuDevice, GpuOptions, TileRows, sources};
use lily_model::{Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::{Float, tiny_dims};
use lily_testkit::golden::{goldens_directory, worst_row};
use lily_testkit::reference::{AttentionDims, DeltaDims, ModelDims};
use lily_testkit::ring::kernel::{CAPACITY, attention, delta, experts, products, rows};
use lily_testkit::ring::{Numerics, Subject, Tolerances, select};
use noting::{Launched, Noting};
use rig::{FEW_STEPS, STEPS, Sim, awkward, fitted, pass, spans, spans_checkpoint};

/// A simulator that notes what it launches.
#[derive(Clone)]
struct Watched {
    sim: Sim,
    launched: Launched,
}

impl Watched {
    fn native(&self) -> Self {
        Watched { sim: self.sim.native(), launched: self.launched.clone() }
    }

    fn with(&self, change: impl FnOnce(&mut GpuOptions)) -> Self {
        Watched { sim: self.sim.with(change), launched: self.launched.clone() }
    }
}

impl Subject for Watched {
    type Device = GpuDevice<Noting<SimBackend>>;

    fn label(&self) -> String {
        self.sim.label()
    }

    fn numerics(&self) -> Numerics {
        self.sim.numerics()
    }

    fn tolerances(&self) -> Tolerances {
        self.sim.tolerances()
    }

    fn rounded_weights(&self) -> Option<(usize, Float)> {
        self.sim.rounded_weights()
    }

    fn stored(&self) -> Float {
        self.sim.stored()
    }

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<Self::Device, ModelError> {
        let inner = SimBackend::new(self.sim.simulator(), self.sim.sim.clone())?;
        GpuDevice::new(Noting { inner, launched: self.launched.clone() }, config, weights, capacity, self.sim.gpu)
    }
}

const fn heads(heads_q: usize, heads_kv: usize, head_dim: usize) -> AttentionDims {
    AttentionDims { heads_q, heads_kv, head_dim, rotary_dim: head_dim / 4, rope_theta: 1e7 }
}

fn single_steps(checked: &Watched) {
    let unfused = checked.with(|options| options.fused_chains = false);
    let expanded = checked.with(|options| options.fused_dequantise = false);
    timed("rows", || rows::check(checked, &ModelDims { hidden: 192, ..tiny_dims() }, &[1, 14]));
    timed("products", || {
        products::check(checked, &tiny_dims(), &[1, 2, 3, 8, 9, 17, 49]);
        products::check(checked, &awkward(), &[1, 7, 33]);
        products::check(&checked.native(), &spans(), &[1, 3, 6, 9, 17, 49, 130]);
        products::check(&checked.native(), &tiny_dims(), &[130]);
        products::check(&checked.native(), &awkward(), &[33]);
        products::check(&unfused, &tiny_dims(), &[2]);
        products::check(&expanded, &tiny_dims(), &[9]);
    });
    timed("experts", || {
        experts::check(checked, &tiny_dims(), &[1, 3, 9, 33]);
        experts::check(checked, &awkward(), &[2, 17]);
        experts::check(&checked.native(), &spans(), &[1, 2, 9, 33]);
        experts::check_counts(&checked.native(), &fitted(), &[0, 1, 16, 17, 33, 170]);
        let many = checked.native().with(|options| options.thin_experts = false);
        experts::check(&many.with(|options| options.fitted_experts = false), &spans(), &[33]);
        for tile in [32, 64] {
            experts::check(&checked.native().with(|options| options.tile_rows = TileRows::Fixed(tile)), &tiny_dims(), &[70]);
        }
        experts::check(&unfused, &tiny_dims(), &[2]);
        experts::check(&expanded, &tiny_dims(), &[17]);
        for tile in [32, 64] {
            experts::check(&checked.with(|options| options.tile_rows = TileRows::Fixed(tile)), &tiny_dims(), &[70]);
        }
    });
    timed("delta", || {
        let register = checked.with(|options| options.delta_scan = DeltaScan::Register);
        let middle = DeltaDims { heads_k: 1, heads_v: 2, dim_k: 64, dim_v: 36, conv_width: 4 };
        let wide = DeltaDims { heads_k: 1, heads_v: 2, dim_k: 128, dim_v: 128, conv_width: 4 };
        for subject in [checked, &register] {
            delta::check(subject, awkward().delta, &[&[1], &[33, 1, 5]]);
            delta::check(subject, middle, &[&[1, 1], &[6]]);
            delta::check(subject, wide, &[&[1], &[6, 3]]);
        }
        let chunks = DeltaDims { dim_v: 40, ..middle };
        delta::check(&checked.native(), chunks, &[&[1, 1], &[6], &[65, 32]]);
        delta::check(&checked.native(), wide, &[&[33, 3]]);
        let tall = DeltaDims { heads_k: 1, heads_v: 2, dim_k: 32, dim_v: 256, conv_width: 4 };
        for subject in [checked, &unfused] {
            delta::check(subject, tall, &[&[1, 1]]);
        }
        delta::check(checked, tall, &[&[9, 4]]);
        delta::check(&checked.native(), awkward().delta, &[&[33, 5]]);
    });
    timed("attention", || {
        let batches: [&[(usize, usize)]; 2] = [&[(0, 1), (250, 2), (256, 1)], &[(30, 40), (0, 3)]];
        let alone = checked.with(|options| options.packed_heads = false);
        let strided = checked.with(|options| options.coalesced_kv = false);
        for dims in [awkward().attention, heads(4, 2, 64), heads(2, 2, 128), heads(4, 1, 256)] {
            attention::check(checked, dims, CAPACITY, &batches);
        }
        let one_simdgroup = checked.native().with(|options| options.wgmma_prefill = false);
        for dims in [heads(6, 2, 64), heads(2, 2, 128), heads(8, 1, 256)] {
            attention::check(&checked.native(), dims, CAPACITY, &batches);
            attention::check(&one_simdgroup, dims, CAPACITY, &batches);
        }
        // More steps than there is room for at once.
        attention::check(&checked.native(), heads(8, 1, 256), CAPACITY, &[&[(450, 20)]]);
        attention::check(&checked.native(), heads(12, 1, 64), CAPACITY, &batches[..1]);
        attention::check(&alone, heads(4, 1, 32), CAPACITY, &batches[..1]);
        attention::check(&strided, heads(4, 1, 256), CAPACITY, &batches[..1]);
        attention::check(&strided.with(|options| options.packed_heads = false), heads(4, 1, 256), CAPACITY, &batches[..1]);
    });
    timed("select", || select::check(checked, 2049, 4));
}

fn whole_passes(checked: &Watched) {
    for (name, seed, fused_chains) in [("base", 2, true), ("bits8", 3, true), ("raw", 4, true), ("bits8", 5, false), ("raw", 6, false)] {
        timed(name, || {
            let mut seeded = checked.with(|options| options.fused_chains = fused_chains);
            seeded.sim.sim.shuffle_seed = Some(seed);
            let directory = goldens_directory().join(name);
            let (found, vocab) = pass(&seeded, &directory, &STEPS);
            let (expected, _) = pass(&Sim::fast(), &directory, &STEPS);
            // Compilers contract products and sums as they like, and tiles round what comes of it to half.
            worst_row(&format!("{name} {} against the fast build", checked.label()), &found, &expected, vocab).assert_within(5e-3);
        });
    }
}

/// Products on tensor cores, their experts found early, against those without.
fn whole_passes_of_spans(checked: &Watched) {
    let directory = spans_checkpoint();
    for (seed, fused_chains) in [(7, true), (8, false)] {
        timed("spans", || {
            let mut seeded = checked.native().with(|options| options.fused_chains = fused_chains);
            seeded.sim.sim.shuffle_seed = Some(seed);
            let (found, vocab) = pass(&seeded, directory.path(), &FEW_STEPS);
            let (expected, _) = pass(&Sim::fast(), directory.path(), &FEW_STEPS);
            worst_row(&format!("spans {}", checked.label()), &found, &expected, vocab).assert_within(5e-3);
        });
    }
}

fn timed(what: &str, part: impl FnOnce()) {
    let started = Instant::now();
    part();
    println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
}

/// Entries without the shapes at the end of their names: each is a path of its own through a kernel's source.
fn families<'a>(entries: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let is_shape = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    entries.into_iter().map(|entry| entry.split('_').filter(|part| !is_shape(part)).collect::<Vec<_>>().join("_")).collect()
}

fn everything(reverse_lanes: bool) {
    let checked = Watched { sim: Sim::checked(reverse_lanes), launched: Launched::default() };
    single_steps(&checked);
    whole_passes(&checked);
    whole_passes_of_spans(&checked);
    let mut all = BTreeSet::new();
    for file in sources::files().filter(|file| !file.starts_with("dialect/")) {
        let kernels = lily_gpu::translate::translate(file, &sources::read, lily_gpu::translate::Target::Sim).unwrap().kernels;
        all.extend(families(kernels.iter().map(|kernel| kernel.name.as_str())));
    }
    let launched = families(checked.launched.lock().unwrap().iter().copied());
    let missing: Vec<&String> = all.difference(&launched).collect();
    assert!(missing.is_empty(), "kernels that no case launched: {missing:?}");
}

#[test]
fn every_kernel_is_clean_with_lanes_in_order() {
    everything(false);
}

#[test]
fn every_kernel_is_clean_with_lanes_reversed() {
    everything(true);
}
