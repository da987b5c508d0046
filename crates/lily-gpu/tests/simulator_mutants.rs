//! Every barrier of the kernels is deleted in turn: the checked build must notice each, which also shows that the rings
//! bring every barrier's kernel to the point where it matters. Slow, since each deletion compiles kernels anew:
//!
//! `cargo test -p lily-gpu --test simulator_mutants -- --ignored --nocapture`

#![cfg(all(feature = "sim", unix))]

mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator, checked};
use lily_gpu::{DeltaScan, GpuDevice, GpuOptions, sources};
use lily_model::{Capacity, ModelConfig, ModelError, Weights};
use lily_testkit::generate::{Float, tiny_dims};
use lily_testkit::reference::ModelDims;
use lily_testkit::ring::kernel::{CAPACITY, attention, delta, experts, products, rows};
use lily_testkit::ring::{Numerics, Subject, Tolerances};
use rig::{NUMERICS, ROUNDED_WEIGHTS, TOLERANCES, awkward};

/// Barriers that no order of lanes makes matter, with the reason.
const REDUNDANT: [(&str, &str); 0] = [];

/// The engine on kernels of which one barrier may be missing.
struct Mutant {
    simulator: Simulator,
    options: GpuOptions,
}

impl Subject for Mutant {
    type Device = GpuDevice<SimBackend>;

    fn label(&self) -> String {
        "mutant".into()
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

    fn open(&self, config: &ModelConfig, weights: &Weights, capacity: Capacity) -> Result<GpuDevice<SimBackend>, ModelError> {
        let backend = SimBackend::new(self.simulator, SimOptions { poison_buffers: true, ..SimOptions::default() })?;
        GpuDevice::new(backend, config, weights, capacity, self.options)
    }
}

/// What exercises the kernels of a file, with few and with many rows.
fn rings(file: &str, simulator: Simulator) {
    let with = |change: fn(&mut GpuOptions)| {
        let mut options = GpuOptions::default();
        change(&mut options);
        Mutant { simulator, options }
    };
    let usual = with(|_| ());
    let dims = awkward();
    match file {
        _ if file.contains("attention") => {
            let batches: [&[(usize, usize)]; 2] = [&[(0, 1), (250, 1), (256, 1)], &[(30, 40)]];
            for subject in [usual, with(|options| options.coalesced_kv = false), with(|options| options.packed_heads = false)] {
                attention::check(&subject, dims.attention, CAPACITY, &batches);
            }
        }
        _ if file.contains("delta") => {
            for subject in [usual, with(|options| options.delta_scan = DeltaScan::Register)] {
                delta::check(&subject, dims.delta, &[&[1], &[33, 1, 5]]);
            }
        }
        _ if file.contains("experts") || file.contains("route") => {
            for subject in [usual, with(|options| options.fused_chains = false), with(|options| options.fused_dequantise = false)] {
                experts::check(&subject, &dims, &[1, 3, 33]);
            }
        }
        _ if file.contains("select") => panic!("no ring for {file}"),
        _ => {
            for subject in [usual, with(|options| options.fused_chains = false), with(|options| options.fused_dequantise = false)] {
                rows::check(&subject, &ModelDims { hidden: 192, ..tiny_dims() }, &[1, 14]);
                products::check(&subject, &dims, &[1, 3, 33]);
            }
        }
    }
}

/// A file, a line, and the file's text without the barrier on it.
struct Deletion {
    file: &'static str,
    line: usize,
    text: String,
}

fn deletions() -> Vec<Deletion> {
    let mut all = Vec::new();
    for &(file, text) in sources::FILES.iter().filter(|(file, _)| !file.starts_with("dialect/")) {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(start) = line.find("threadgroup_barrier(").or_else(|| line.find("simdgroup_barrier(")) else { continue };
            let end = start + line[start..].find(';').expect("a barrier is a statement");
            let without = format!("{}{}", &line[..start], &line[end..]);
            let mut mutated = lines.clone();
            mutated[at] = &without;
            all.push(Deletion { file, line: at + 1, text: mutated.join("\n") + "\n" });
        }
    }
    all
}

fn load(deletion: Option<&Deletion>) -> Simulator {
    let read = |name: &str| match deletion {
        Some(deletion) if deletion.file == name => Some(deletion.text.clone()),
        _ => sources::read(name),
    };
    let files: Vec<String> = sources::files().filter(|file| !file.contains('/')).map(str::to_owned).collect();
    checked::load_files(&files, &read, true, Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
#[ignore = "compiles the kernels once for each of their barriers"]
fn the_checked_build_notices_every_deleted_barrier() {
    let whole = load(None);
    for file in sources::files().filter(|file| !file.contains('/') && !file.contains("select")) {
        rings(file, whole);
    }
    let mut missed = Vec::new();
    for deletion in deletions() {
        let place = format!("{}:{}", deletion.file, deletion.line);
        if deletion.file.contains("select") || REDUNDANT.iter().any(|(known, _)| *known == place) {
            continue;
        }
        let simulator = load(Some(&deletion));
        let fault = catch_unwind(AssertUnwindSafe(|| rings(deletion.file, simulator))).err();
        let said = fault.map(|fault| match fault.downcast::<String>() {
            Ok(said) => *said,
            Err(other) => other.downcast_ref::<&str>().copied().unwrap_or("?").to_owned(),
        });
        eprintln!("{place}: {}", said.as_deref().unwrap_or("MISSED"));
        if said.is_none() {
            missed.push(place);
        }
    }
    assert!(missed.is_empty(), "without these barriers nothing was noticed: {missed:?}");
}
