//! The kernels on the checked build: no races, no stray or unset memory, whichever way lanes run. And the other way
//! round: every barrier is deleted in turn, and the checked build must notice each, which also shows that the rings
//! bring every barrier's kernel to the point where it matters. That is slow, since each deletion compiles kernels anew:
//!
//! `cargo test -p lily-gpu --test simulator_kernels -- --ignored --nocapture`

#![cfg(all(feature = "sim", unix))]

mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lily_gpu::backend::sim::{SimBackend, SimOptions, Simulator, checked};
use lily_gpu::{DeltaScan, GpuDevice, GpuOptions, sources};
use lily_model::{Capacity, Device, Logits, ModelConfig, ModelError, Selection, Weights, select_token};
use lily_testkit::generate::{Float, tiny_dims};
use lily_testkit::reference::ModelDims;
use lily_testkit::ring::kernel::{ATTENTION_DIMS, CAPACITY, attention, delta, experts, products, rows};
use lily_testkit::ring::rig::{Sequence, open, run};
use lily_testkit::ring::{Numerics, Subject, Tolerances};
use rig::{NUMERICS, ROUNDED_WEIGHTS, TOLERANCES, awkward};

/// Barriers that no order of lanes makes matter, with the reason.
const REDUNDANT: [(&str, &str); 0] = [];

/// The engine on kernels of which one barrier may be missing.
struct Mutant {
    simulator: Simulator,
    reverse_lanes: bool,
    options: GpuOptions,
}

impl Subject for Mutant {
    type Device = GpuDevice<SimBackend>;

    fn label(&self) -> String {
        format!("checked, reverse {}, {:?}", self.reverse_lanes, self.options)
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
        let backend = SimBackend::new(
            self.simulator,
            SimOptions { reverse_lanes: self.reverse_lanes, poison_buffers: true, ..SimOptions::default() },
        )?;
        GpuDevice::new(backend, config, weights, capacity, self.options)
    }
}

/// What exercises the kernels of a file, with few and with many rows.
fn rings(file: &str, simulator: Simulator, reverse_lanes: bool) {
    let with = |change: fn(&mut GpuOptions)| {
        let mut options = GpuOptions::default();
        change(&mut options);
        Mutant { simulator, reverse_lanes, options }
    };
    let usual = with(|_| ());
    let dims = awkward();
    match file {
        _ if file.contains("attention") => {
            let batches: [&[(usize, usize)]; 2] = [&[(0, 1), (250, 1), (256, 1)], &[(30, 40)]];
            for subject in [usual, with(|options| options.packed_heads = false)] {
                attention::check(&subject, dims.attention, CAPACITY, &batches);
            }
            // Reads that do not coalesce exist for heads of 256 alone.
            attention::check(&with(|options| options.coalesced_kv = false), ATTENTION_DIMS[1], CAPACITY, &batches[..1]);
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
        _ if file.contains("select") => choose(&usual),
        _ => {
            // Expanded matrices are half, which heavy tails do not bear in the head: products alone.
            products::check(&with(|options| options.fused_dequantise = false), &dims, &[1, 33]);
            for subject in [usual, with(|options| options.fused_chains = false)] {
                rows::check(&subject, &ModelDims { hidden: 192, ..tiny_dims() }, &[1, 14]);
                products::check(&subject, &dims, &[1, 3, 33]);
            }
        }
    }
}

/// Tokens chosen on the device are those that the host chooses from its logits.
fn choose(subject: &Mutant) {
    let mut runner = open(subject, "base");
    let mut sequence = Sequence::start(&mut runner, 0, &[0]);
    for token in [5, 9, 2] {
        run(&mut runner, &[sequence.span(&[token], Logits::All)]);
        sequence.position += 1;
        let drawn = Selection { temperature: 0.8, top_k: 20, top_p: 0.9, draw: 0.37, ..Selection::greedy() };
        for selection in [Selection::greedy(), drawn] {
            // First: reading logits would take the report of a fault and show NaNs.
            let chosen = runner.device.select(std::slice::from_ref(&selection)).unwrap_or_else(|fault| panic!("{fault}"));
            assert_eq!(chosen, [select_token(runner.device.logits(0), &selection)], "{selection:?}");
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

/// Whether `work` panicked, and how.
fn fault_of(work: impl FnOnce()) -> Option<String> {
    let fault = catch_unwind(AssertUnwindSafe(work)).err()?;
    Some(match fault.downcast::<String>() {
        Ok(said) => *said,
        Err(other) => other.downcast_ref::<&str>().copied().unwrap_or("?").to_owned(),
    })
}

#[test]
#[ignore = "what the deletions are measured against"]
fn the_kernels_have_no_faults() {
    let whole = load(None);
    let mut faults = Vec::new();
    for (index, file) in sources::files().filter(|file| !file.contains('/')).enumerate() {
        let said = fault_of(|| rings(file, whole, index.is_multiple_of(2)));
        faults.extend(said.map(|said| format!("{file}: {said}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
#[ignore = "compiles the kernels once for each of their barriers"]
fn the_checked_build_notices_every_deleted_barrier() {
    let mut missed = Vec::new();
    for deletion in deletions() {
        let place = format!("{}:{}", deletion.file, deletion.line);
        if REDUNDANT.iter().any(|(known, _)| *known == place) {
            continue;
        }
        let simulator = load(Some(&deletion));
        let said = fault_of(|| rings(deletion.file, simulator, false)).or_else(|| fault_of(|| rings(deletion.file, simulator, true)));
        eprintln!("{place}: {}", said.as_deref().unwrap_or("MISSED"));
        if said.is_none() {
            missed.push(place);
        }
    }
    assert!(missed.is_empty(), "without these barriers nothing was noticed: {missed:?}");
}
