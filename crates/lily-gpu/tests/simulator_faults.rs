//! Planted faults: the checked build must find each one, with lanes in either order, and say what is wrong and where.

#![cfg(all(feature = "sim", unix))]

#[path = "simulator/rig.rs"]
mod rig;

use lily_gpu::backend::Backend;
use lily_gpu::backend::sim::{SimOptions, Simulator};
use lily_gpu::commands::Access::{Read, Write};
use lily_gpu::commands::{CommandList, Launch, View};
use rig::{Rig, launch, numbers, simulator};

/// A kernel of `faults.metal` with what must be said about it.
struct Planted {
    kernel: &'static str,
    /// Each a line, 0 for any, and a text.
    marks: Vec<(usize, String)>,
}

fn planted() -> Vec<Planted> {
    let mut found: Vec<Planted> = Vec::new();
    for (index, line) in rig::read("faults.metal").unwrap().lines().enumerate() {
        if let Some(rest) = line.strip_prefix("kernel void ") {
            let kernel: String = rest.chars().take_while(|&c| c != '(').collect();
            found.push(Planted { kernel: kernel.leak(), marks: Vec::new() });
        }
        let mark = |word: &str| line.split_once(word).map(|(_, text)| text.to_owned());
        if let (Some(text), Some(last)) = (mark("// fault: "), found.last_mut()) {
            last.marks.push((index + 1, text));
        } else if let (Some(text), Some(last)) = (mark("// fault somewhere: "), found.last_mut()) {
            last.marks.push((0, text));
        }
    }
    found
}

/// Views for every name that the kernels use, and a launch that binds them by name.
struct Bench {
    rig: Rig,
    simulator: Simulator,
    named: Vec<(&'static str, View)>,
}

impl Bench {
    fn new(simulator: Simulator, reverse_lanes: bool) -> Self {
        Self::with_limit(simulator, reverse_lanes, 0)
    }

    /// For a kernel: only one that never ends has a limit, since a busy machine may take any time for the others.
    fn of(simulator: Simulator, reverse_lanes: bool, kernel: &str) -> Self {
        Self::with_limit(simulator, reverse_lanes, u32::from(kernel == "endless"))
    }

    fn with_limit(simulator: Simulator, reverse_lanes: bool, timeout_s: u32) -> Self {
        let options = SimOptions { reverse_lanes, poison_buffers: true, timeout_s, shuffle_seed: None, ..SimOptions::default() };
        let mut rig = Rig::new(simulator, options);
        let x = rig.floats("x", &(0..128).map(|at| at as f32 + 1.0).collect::<Vec<_>>());
        let (y, z) = (rig.view("y", 512), rig.view("z", 512));
        let c = rig.filled("c", &[0; 8]);
        Bench { rig, simulator, named: vec![("x", x), ("y", y), ("z", z), ("c", c)] }
    }

    fn view(&self, name: &str) -> View {
        self.named.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no buffer {name}")).1
    }

    fn launch(&self, kernel: &'static str) -> Launch {
        let table = self.simulator.kernel(kernel).unwrap_or_else(|| panic!("no kernel {kernel}"));
        let bind = |buffer: &lily_gpu::backend::sim::BufferParameter| (self.view(&buffer.name), if buffer.writable { Write } else { Read });
        let args: &[u32] = if table.args_bytes.is_some() { &[3] } else { &[] };
        launch(kernel, table.buffers.iter().map(bind).collect(), args, [2, 1, 1], 64)
    }

    fn run(&mut self, kernel: &'static str) -> Result<(), String> {
        self.rig.run(vec![self.launch(kernel)])
    }

    /// Whether a value that nothing has set came out: the fill pattern of memory, of copies or of variables.
    fn wild(&mut self) -> bool {
        let y = self.view("y");
        self.rig.read_floats(y).unwrap().iter().any(|value| value.is_nan() || value.abs() > 1e37)
    }
}

#[test]
fn the_checked_build_names_every_fault() {
    let simulator = simulator("faults.metal", true);
    let mut missed = Vec::new();
    let mut count = 0;
    for Planted { kernel, marks } in planted().into_iter().filter(|planted| !planted.marks.is_empty()) {
        for reverse_lanes in [false, true] {
            let mut bench = Bench::of(simulator, reverse_lanes, kernel);
            let said = bench.run(kernel).err();
            let noticed = marks.iter().any(|(line, text)| match &said {
                Some(said) => said.contains(text) && (*line == 0 || said.contains(&format!("faults.metal:{line}"))),
                None => text == "values" && bench.wild(),
            });
            count += 1;
            if !noticed {
                missed.push(format!("{kernel}, reverse {reverse_lanes}: expected {marks:?}, found {said:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{} of {count} missed:\n{}", missed.len(), missed.join("\n"));
    assert_eq!(count, 2 * 34);
}

#[test]
fn the_fast_build_stops_at_divergence_guard_pages_and_signals() {
    let simulator = simulator("faults.metal", false);
    let expected = [
        ("barrier_of_some", "at the barrier faults.metal:"),
        ("sum_of_some", "at faults.metal:"),
        ("past_end", "access at byte 512 of buffer x (512 bytes)"),
        ("divide_by_zero", "signal 8"),
        ("endless", "still running after 1 s"),
        ("deep_stack", "stack overflow"),
    ];
    for (kernel, text) in expected {
        for reverse_lanes in [false, true] {
            let mut bench = Bench::of(simulator, reverse_lanes, kernel);
            let said = bench.run(kernel).expect_err(kernel);
            assert!(said.contains(kernel) && said.contains(text), "{kernel}: {said}");
            if kernel != "endless" {
                assert_eq!(bench.run("add_one"), Ok(()), "the backend goes on after a fault");
            }
        }
    }
}

#[test]
fn a_missing_dependency_is_named() {
    let simulator = simulator("faults.metal", true);
    let cases: [(&str, &[&str], &[&str], &str); 3] = [
        ("reads a result", &["x", "y"], &["y", "z"], "by kernel add_one in the same level"),
        ("overwrites an input", &["y", "z"], &["x", "y"], "by kernel add_one in the same level"),
        ("two writers", &["x", "y"], &["z", "y"], "by kernel add_one in the same level"),
    ];
    for (what, first, second, text) in cases {
        for turned in [false, true] {
            let mut bench = Bench::new(simulator, false);
            for name in ["y", "z"] {
                let view = bench.view(name);
                bench.rig.backend.clear(view);
            }
            let add =
                |names: &[&str]| launch("add_one", vec![(bench.view(names[0]), Read), (bench.view(names[1]), Write)], &[], [2, 1, 1], 64);
            let mut level = vec![add(first), add(second)];
            if turned {
                level.reverse();
            }
            let levels: Vec<Vec<Launch>> = level.iter().map(|launch| vec![launch.clone()]).collect();
            let said = bench.rig.backend.run_levels(&[level]).and_then(|()| bench.rig.backend.wait()).expect_err(what).to_string();
            assert!(said.contains("add_one") && said.contains(text), "{what}: {said}");
            bench.rig.backend.run_levels(&levels).and_then(|()| bench.rig.backend.wait()).expect("in two levels there is no fault");
        }
    }
}

#[test]
fn lists_that_no_device_may_run_are_refused() {
    let simulator = simulator("faults.metal", false);
    let bench = &mut Bench::new(simulator, false);
    let (x, y) = (bench.view("x"), bench.view("y"));
    let good = || launch("add_one", vec![(x, Read), (y, Write)], &[], [2, 1, 1], 64);
    let past = View { bytes: 600, ..y };
    let cases = [
        (Launch { kernel: "nothing", ..good() }, "there is no kernel of this name"),
        (Launch { threads: 48, ..good() }, "48 threads: expected a multiple of 32"),
        (Launch { threads: 2048, ..good() }, "2048 threads: expected a multiple of 32, at most 1024"),
        (Launch { args: vec![0; 8], ..good() }, "the argument struct has 0 bytes, the launch brings 8"),
        (Launch { bindings: vec![(x, Read)], ..good() }, "it has 2 buffers, the launch binds 1"),
        (Launch { bindings: vec![(x, Write), (y, Write)], ..good() }, "buffer x is declared as Read, the launch binds it as Write"),
        (Launch { bindings: vec![(x, Read), (y, Read)], ..good() }, "buffer y is declared as Write, the launch binds it as Read"),
        (Launch { bindings: vec![(y, Read), (y, Write)], ..good() }, "buffers y and x overlap"),
        (Launch { bindings: vec![(x, Read), (past, Write)], ..good() }, "y: bytes 0..600 of y, which has 512"),
    ];
    for (bad, text) in cases {
        let mut list = CommandList::new(false);
        list.push(bad);
        let said = bench.rig.backend.run(&list).expect_err(text).to_string();
        assert!(said.contains(text), "expected {text}, found {said}");
        let said = bench.rig.backend.prepare(&list).expect_err(text).to_string();
        assert!(said.contains(text), "expected {text}, found {said}");
    }
    assert_eq!(bench.rig.run(vec![good()]), Ok(()));
    let said = bench.rig.backend.prepare_kernels(&["add_one", "nothing"]).unwrap_err().to_string();
    assert!(said.contains("no kernel of this name: nothing"), "{said}");
}

#[test]
fn imported_bytes_are_bound_without_a_copy_and_never_written() {
    let simulator = simulator("faults.metal", true);
    let mut bench = Bench::new(simulator, false);
    let values = numbers(132, 9);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let aligned = bytes.as_ptr().addr().next_multiple_of(16) - bytes.as_ptr().addr();
    assert!(aligned.is_multiple_of(4));
    let weights = bench.rig.backend.import(&lily_model::Bytes::owned(bytes), "weights").unwrap();
    assert!(weights.offset.is_multiple_of(16));
    let y = bench.view("y");
    let part = |view: View| View { bytes: 512, ..view };
    bench.rig.run(vec![launch("add_one", vec![(part(weights), Read), (y, Write)], &[], [2, 1, 1], 64)]).unwrap();
    let found = bench.rig.read_floats(y).unwrap();
    assert_eq!(found, values[..128].iter().map(|value| value + 1.0).collect::<Vec<_>>());
    let said = bench.rig.run(vec![launch("past_end", vec![(part(weights), Read), (y, Write)], &[], [2, 1, 1], 64)]).unwrap_err();
    assert!(said.contains("read of byte 512 of x, which has 512 bytes"), "{said}");
}

#[test]
fn too_much_threadgroup_memory_is_refused_when_the_kernel_is_compiled() {
    let source = "kernel void large(device float *y [[buffer(0)]]) {\n  threadgroup float t[8200];\n  t[0] = 1.0f;\n  y[0] = t[0];\n}\n";
    let read = |name: &str| (name == "large.metal").then(|| source.to_owned());
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulator");
    let said = lily_gpu::backend::sim::checked::load_files(&["large.metal".into()], &read, false, &cache).err().unwrap_or_default();
    assert!(said.contains("large: more than 32 KiB of threadgroup arrays"), "{said}");
}
