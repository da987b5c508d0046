//! Matrix loops at the shapes of the full model, beside the machine's bounds measured in the same run:
//! `cargo bench -p lily-cpu --bench matrix -- [gemv|gemm|experts] [--isa NAME] [--threads N]`.
//!
//! Decode is bound by the weights' bytes: GB/s beside the read bandwidth. Prefill is bound by the
//! multiply rate: GFLOP/s (2 * rows * outputs * inputs) beside that of the bare instructions in registers. Each line gives the rate by processor time, which
//! other jobs on the cores disturb little, the best sample by the clock, and the share of the clock that the
//! threads got; on idle cores the share is about 100 % and the two rates agree.

use std::hint::black_box;
use std::time::{Duration, Instant};

use lily_cpu::isa::Isa;
use lily_cpu::matrix::{DownExperts, GateUpExperts, Job, Options, PackedExperts, PackedMatrix, Projection, Routes, Workspace, project};
use lily_cpu::quantise::Activations;
use lily_cpu::team::{Chunks, Team};
use lily_model::checkpoint::{Bytes, Dtype};
use lily_model::weights::{Experts, Matrix, MatrixData};

/// Weights swept before any is read again: far more than the caches hold.
const SWEEP_BYTES: usize = 400 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let value = |name: &str| arguments.iter().position(|argument| argument == name).map(|at| arguments[at + 1].clone());
    let isa = value("--isa").map_or(Isa::best(), |name| name.parse().expect("an instruction set of this machine"));
    let mut team = value("--threads").map_or(Team::for_machine(), |count| Team::new(count.parse().expect("a number of threads")));
    let chosen: Vec<&str> = arguments.iter().map(String::as_str).filter(|name| ["gemv", "gemm", "experts"].contains(name)).collect();
    let wants = |name: &str| chosen.is_empty() || chosen.contains(&name);
    println!("{isa}, {} threads", team.count());
    regions(&mut team);
    if wants("gemv") {
        let bandwidth = read_bandwidth(&mut team);
        gemv(&mut team, isa, bandwidth);
        router(&mut team, isa, bandwidth);
        decode_experts(&mut team, isa, bandwidth);
    }
    if wants("gemm") || wants("experts") {
        let ceiling = multiply_ceiling(&mut team, isa);
        if wants("gemm") {
            gemm(&mut team, isa, ceiling);
        }
        if wants("experts") {
            prefill_experts(&mut team, isa, ceiling);
        }
    }
}

/// Seconds of a step.
struct Timing {
    best: f64,
    /// Processor time of a member: what the clock would show on idle cores.
    busy: f64,
    share: f64,
}

impl Timing {
    fn line(&self, name: &str, amount: f64, unit: &str, bound: Option<f64>) {
        let (busy, best) = (amount / self.busy * 1e-9, amount / self.best * 1e-9);
        let part = bound.map_or(String::new(), |bound| format!("  {:3.0} % of {bound:.1}", 100.0 * busy / bound));
        println!("{name:<50} {busy:7.1} {unit} by processor time{part}, best by clock {best:7.1}, cores {:3.0} %", 100.0 * self.share);
    }
}

fn measure(threads: usize, mut step: impl FnMut()) -> Timing {
    step();
    let (mut best, mut samples, begin, busy) = (f64::INFINITY, 0, Instant::now(), processor_time());
    while samples < 3 || begin.elapsed() < Duration::from_secs(2) {
        let start = Instant::now();
        step();
        best = best.min(start.elapsed().as_secs_f64());
        samples += 1;
    }
    let busy = (processor_time() - busy) / threads as f64;
    Timing { best, busy: busy / samples as f64, share: busy / begin.elapsed().as_secs_f64() }
}

/// Seconds that the threads of this process have run; NaN where the system does not tell.
fn processor_time() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return f64::NAN };
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() * 1e-9
}

/// What a parallel region costs in which there is nothing to do, and one of two phases.
fn regions(team: &mut Team) {
    const COUNT: usize = 2000;
    let empty = measure(team.count(), || (0..COUNT).for_each(|_| team.run(|_| ())));
    let phases = measure(team.count(), || {
        for _ in 0..COUNT {
            let chunks = Chunks::new(team.count(), 1);
            team.run(|worker| {
                while let Some(taken) = chunks.take(worker) {
                    black_box(&taken);
                }
                worker.finish(&chunks);
            });
        }
    });
    let each = |timing: &Timing| timing.best / COUNT as f64 * 1e6;
    println!("a parallel region {:.2} us, of two phases {:.2} us, best by the clock", each(&empty), each(&phases));
}

/// The team sums a large buffer: GB/s by processor time.
fn read_bandwidth(team: &mut Team) -> f64 {
    let buffer: Vec<u64> = (0..SWEEP_BYTES / 8).map(|i| i as u64).collect();
    let timing = measure(team.count(), || {
        team.for_each_chunk(buffer.len(), 1 << 17, |range| {
            let (lines, _) = buffer[range].as_chunks::<16>();
            // Four distant streams, as the matrix-vector loops have.
            let quarter = lines.len() / 4;
            let mut sums = [0u64; 16];
            for i in 0..quarter {
                for stream in 0..4 {
                    for (sum, value) in sums.iter_mut().zip(&lines[stream * quarter + i]) {
                        *sum = sum.wrapping_add(*value);
                    }
                }
            }
            black_box(sums);
        });
    });
    timing.line("read bandwidth", SWEEP_BYTES as f64, "GB/s", None);
    SWEEP_BYTES as f64 / timing.busy * 1e-9
}

/// The multiply instructions alone, operands in registers: GFLOP/s by processor time with one plane of
/// activations; two planes can reach half. `None` where no such loop is written.
fn multiply_ceiling(team: &mut Team, isa: Isa) -> Option<f64> {
    const STEPS: usize = 400_000;
    let (bare, products): (fn(usize), usize) = match isa {
        // Products of a step: instructions times vector bytes.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => (bare_avx2, 6 * 32),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => (bare_avx512, 8 * 64),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => (bare_amx, 4 * 16 * 16 * 64),
        _ => return None,
    };
    let work = (2 * products * STEPS * 8) as f64;
    let timing = measure(team.count(), || team.for_each_chunk(8, 1, |range| range.for_each(|_| bare(STEPS))));
    timing.line("multiply instructions alone, I8", work, "GFLOP/s", None);
    Some(work / timing.busy * 1e-9)
}

/// Six products of bytes and six 16-bit additions a step.
#[cfg(target_arch = "x86_64")]
fn bare_avx2(steps: usize) {
    // SAFETY: registers only; called where AVX2 was found.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpmaddubsw ymm0, ymm14, ymm15", "vpaddw ymm6, ymm6, ymm0", "vpmaddubsw ymm1, ymm14, ymm15", "vpaddw ymm7, ymm7, ymm1",
            "vpmaddubsw ymm2, ymm14, ymm15", "vpaddw ymm8, ymm8, ymm2", "vpmaddubsw ymm3, ymm14, ymm15", "vpaddw ymm9, ymm9, ymm3",
            "vpmaddubsw ymm4, ymm14, ymm15", "vpaddw ymm10, ymm10, ymm4", "vpmaddubsw ymm5, ymm14, ymm15", "vpaddw ymm11, ymm11, ymm5",
            "dec {steps}",
            "jnz 2b",
            steps = inout(reg) steps => _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _, out("ymm14") _, out("ymm15") _,
            options(nomem, nostack)
        );
    }
}

/// Eight multiply-and-adds a step.
#[cfg(target_arch = "x86_64")]
fn bare_avx512(steps: usize) {
    // SAFETY: registers only; called where AVX-512 VNNI was found.
    unsafe {
        std::arch::asm!(
            "2:",
            "vpdpbusd zmm0, zmm14, zmm15", "vpdpbusd zmm1, zmm14, zmm15", "vpdpbusd zmm2, zmm14, zmm15", "vpdpbusd zmm3, zmm14, zmm15",
            "vpdpbusd zmm4, zmm14, zmm15", "vpdpbusd zmm5, zmm14, zmm15", "vpdpbusd zmm6, zmm14, zmm15", "vpdpbusd zmm7, zmm14, zmm15",
            "dec {steps}",
            "jnz 2b",
            steps = inout(reg) steps => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm14") _, out("xmm15") _,
            options(nomem, nostack)
        );
    }
}

/// Four products of tiles a step.
#[cfg(target_arch = "x86_64")]
fn bare_amx(steps: usize) {
    #[repr(C, align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1; // palette; then bytes of a row at 16, rows at 48
    for tile in 0..8 {
        (config.0[16 + 2 * tile], config.0[48 + tile]) = (64, 16);
    }
    // SAFETY: registers only, a valid configuration; called where AMX was found and permitted.
    unsafe {
        std::arch::asm!(
            "ldtilecfg [{config}]",
            "2:",
            "tdpbusd tmm0, tmm4, tmm5", "tdpbusd tmm1, tmm4, tmm6", "tdpbusd tmm2, tmm5, tmm6", "tdpbusd tmm3, tmm5, tmm7",
            "dec {steps}",
            "jnz 2b",
            "tilerelease",
            config = in(reg) &config, steps = inout(reg) steps => _, options(readonly, nostack)
        );
    }
}

/// The ceiling for a precision.
fn bound(ceiling: Option<f64>, activations: Activations) -> Option<f64> {
    ceiling.map(|ceiling| ceiling / activations.planes().max(1) as f64)
}

fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((state >> 16).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// A random 4-bit matrix with scales of a plausible size.
fn matrix(rows: usize, cols: usize, seed: u64) -> Matrix {
    let floats = |value: f32| (0..rows * cols / 64).flat_map(|_| half::bf16::from_f32(value).to_le_bytes()).collect::<Vec<u8>>();
    let data = MatrixData::Affine {
        bits: 4,
        group: 64,
        codes: Bytes::owned(random_bytes(rows * cols / 2, seed)),
        scales: Bytes::owned(floats(0.005)),
        biases: Bytes::owned(floats(-0.0375)),
        scale_dtype: Dtype::Bf16,
    };
    Matrix { rows, cols, data }
}

fn packed(rows: usize, cols: usize, seed: u64) -> PackedMatrix {
    PackedMatrix::new(&matrix(rows, cols, seed)).expect("a matrix of the hot layout")
}

fn experts(count: usize, rows: usize, cols: usize, seed: u64) -> PackedExperts {
    let data = matrix(count * rows, cols, seed);
    PackedExperts::new(&Experts { experts: count, rows, stride: rows, first_row: 0, data }).expect("experts of the hot layout")
}

fn inputs(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 2001) as f32 - 1000.0) * 1e-3).collect()
}

fn weight_bytes(rows: usize, cols: usize) -> usize {
    rows * cols / 2 + rows * cols / 16
}

fn options(isa: Isa, activations: Activations) -> Options {
    Options { isa, decode: activations, prefill: activations, prefill_experts: activations }
}

/// The dense projections of one row.
fn gemv(team: &mut Team, isa: Isa, bandwidth: f64) {
    let shapes: [(&str, &[usize], usize); 6] = [
        ("DeltaNet in: qkv|z|b|a 12352 x 2048", &[8192, 4096, 32, 32], 2048),
        ("attention in: q|k|v 9216 x 2048", &[8192, 512, 512], 2048),
        ("mixer out 2048 x 4096", &[2048], 4096),
        ("head, a part: 62080 x 2048", &[62080], 2048),
        ("shared gate 512 x 2048", &[512], 2048),
        ("shared down 2048 x 512", &[2048], 512),
    ];
    for (name, widths, cols) in shapes {
        let width: usize = widths.iter().sum();
        let bytes = weight_bytes(width, cols);
        let copies = SWEEP_BYTES.div_ceil(bytes);
        let sets: Vec<Vec<PackedMatrix>> =
            (0..copies).map(|copy| widths.iter().map(|&rows| packed(rows, cols, (copy * 7 + rows) as u64)).collect()).collect();
        for (activations, rows) in [(Activations::I16, 1), (Activations::I8, 1), (Activations::I16, 2), (Activations::I16, 4)] {
            if rows > 1 && widths.len() == 1 {
                continue;
            }
            let mut workspace = Workspace::new(options(isa, activations), team.count());
            let (x, mut y) = (inputs(rows * cols), vec![0.0; rows * width]);
            let threads = team.count();
            let timing = measure(threads, || {
                for set in &sets {
                    let mut column = 0;
                    let jobs: Vec<Job<'_>> = set
                        .iter()
                        .map(|matrix| {
                            column += matrix.rows();
                            Job { matrix, column: column - matrix.rows() }
                        })
                        .collect();
                    let projection = Projection { x: &x, x_stride: cols, rows, jobs: &jobs, y: &mut y, y_stride: width, accumulate: false };
                    project(team, &mut workspace, projection);
                }
            });
            timing.line(&format!("{name}, {activations:?}, rows {rows}"), (bytes * copies) as f64, "GB/s", Some(bandwidth));
        }
    }
}

/// The router and the shared expert's gate: 8 bits, through the float path.
fn router(team: &mut Team, isa: Isa, bandwidth: f64) {
    let (rows, cols) = (257, 2048);
    let bytes = rows * cols + rows * cols / 16;
    let routers: Vec<PackedMatrix> = (0..SWEEP_BYTES / 4 / bytes)
        .map(|copy| {
            let four = matrix(rows, cols, copy as u64);
            let MatrixData::Affine { scales, biases, .. } = four.data else { unreachable!("an affine matrix was made") };
            let codes = Bytes::owned(random_bytes(rows * cols, copy as u64));
            let data = MatrixData::Affine { bits: 8, group: 64, codes, scales, biases, scale_dtype: Dtype::Bf16 };
            PackedMatrix::new(&Matrix { rows, cols, data }).expect("a matrix of the router's layout")
        })
        .collect();
    let mut workspace = Workspace::new(options(isa, Activations::I16), team.count());
    let (x, mut y) = (inputs(cols), vec![0.0; rows]);
    let timing = measure(team.count(), || {
        for matrix in &routers {
            let jobs = [Job { matrix, column: 0 }];
            let projection = Projection { x: &x, x_stride: cols, rows: 1, jobs: &jobs, y: &mut y, y_stride: rows, accumulate: false };
            project(team, &mut workspace, projection);
        }
    });
    timing.line("router 257 x 2048, 8 bits, rows 1", (bytes * routers.len()) as f64, "GB/s", Some(bandwidth));
}

/// Buffers and matrices of one mixture of experts of the full model.
struct Mixture {
    gate: PackedExperts,
    up: PackedExperts,
    down: PackedExperts,
    shared: [PackedMatrix; 3],
}

impl Mixture {
    fn new() -> Mixture {
        Mixture {
            gate: experts(256, 512, 2048, 1),
            up: experts(256, 512, 2048, 2),
            down: experts(256, 2048, 512, 3),
            shared: [packed(512, 2048, 4), packed(512, 2048, 5), packed(2048, 512, 6)],
        }
    }

    fn gate_up(&self, team: &mut Team, workspace: &mut Workspace, rows: usize, x: &[f32], routes: Routes<'_>, hidden: &mut [f32]) {
        let [shared_gate, shared_up, _] = &self.shared;
        let (gate, up) = (&self.gate, &self.up);
        GateUpExperts { x, x_stride: 2048, rows, routes, gate, up, shared_gate, shared_up, hidden, hidden_stride: 9 * 512 }
            .run(team, workspace);
    }

    fn down(&self, team: &mut Team, workspace: &mut Workspace, rows: usize, hidden: &[f32], routes: Routes<'_>, residual: &mut [f32]) {
        let (down, shared_down) = (&self.down, &self.shared[2]);
        DownExperts { hidden, hidden_stride: 9 * 512, rows, routes, down, shared_down, residual, residual_stride: 2048 }
            .run(team, workspace);
    }
}

/// One row, eight experts and the shared one; successive calls take other experts.
fn decode_experts(team: &mut Team, isa: Isa, bandwidth: f64) {
    let mixture = Mixture::new();
    let (x, mut hidden, mut residual) = (inputs(2048), vec![0.0; 9 * 512], vec![0.0; 2048]);
    let routed: Vec<Vec<u32>> = (0..32).map(|call| (0..8).map(|j| ((call * 8 + j) * 37 % 256) as u32).collect()).collect();
    let (weights, shared) = ([0.125; 8], [0.5]);
    for activations in [Activations::I16, Activations::I8] {
        let mut workspace = Workspace::new(options(isa, activations), team.count());
        let routes = |ids| Routes { per_row: 8, ids, weights: &weights, shared: &shared };
        let threads = team.count();
        let up = measure(threads, || {
            routed.iter().for_each(|ids| mixture.gate_up(team, &mut workspace, 1, &x, routes(ids), &mut hidden));
        });
        up.line(&format!("experts gate|up, {activations:?}, rows 1"), (32 * 18 * weight_bytes(512, 2048)) as f64, "GB/s", Some(bandwidth));
        let down = measure(threads, || {
            routed.iter().for_each(|ids| mixture.down(team, &mut workspace, 1, &hidden, routes(ids), &mut residual));
        });
        down.line(&format!("experts down, {activations:?}, rows 1"), (32 * 9 * weight_bytes(2048, 512)) as f64, "GB/s", Some(bandwidth));
    }
}

/// Dense projections of a prompt's chunk.
fn gemm(team: &mut Team, isa: Isa, ceiling: Option<f64>) {
    for (name, width, cols) in [("DeltaNet in 12352 x 2048", 12352, 2048), ("mixer out 2048 x 4096", 2048, 4096)] {
        let matrix = packed(width, cols, 9);
        for (activations, rows) in [(Activations::I16, 512), (Activations::I8, 512), (Activations::I16, 8), (Activations::I16, 64)] {
            let mut workspace = Workspace::new(options(isa, activations), team.count());
            let (x, mut y) = (inputs(rows * cols), vec![0.0; rows * width]);
            let jobs = [Job { matrix: &matrix, column: 0 }];
            let threads = team.count();
            let timing = measure(threads, || {
                let projection = Projection { x: &x, x_stride: cols, rows, jobs: &jobs, y: &mut y, y_stride: width, accumulate: false };
                project(team, &mut workspace, projection);
            });
            timing.line(
                &format!("{name}, {activations:?}, rows {rows}"),
                (2 * rows * width * cols) as f64,
                "GFLOP/s",
                bound(ceiling, activations),
            );
        }
    }
}

/// The experts of a prompt's chunk: 16 and 64 rows an expert.
fn prefill_experts(team: &mut Team, isa: Isa, ceiling: Option<f64>) {
    let mixture = Mixture::new();
    for rows in [64, 512, 2048] {
        let x = inputs(rows * 2048);
        let ids: Vec<u32> = (0..rows).flat_map(|row| (0..8).map(move |j| ((row * 8 + j) * 37 % 256) as u32)).collect();
        let (weights, shared) = (vec![0.125; rows * 8], vec![0.5; rows]);
        let routes = Routes { per_row: 8, ids: &ids, weights: &weights, shared: &shared };
        let (mut hidden, mut residual) = (vec![0.0; rows * 9 * 512], vec![0.0; rows * 2048]);
        for activations in [Activations::I16, Activations::I8] {
            let mut workspace = Workspace::new(options(isa, activations), team.count());
            let threads = team.count();
            let up = measure(threads, || mixture.gate_up(team, &mut workspace, rows, &x, routes, &mut hidden));
            up.line(
                &format!("experts gate|up, {activations:?}, rows {rows}"),
                (2 * rows * 9 * 1024 * 2048) as f64,
                "GFLOP/s",
                bound(ceiling, activations),
            );
            let down = measure(threads, || mixture.down(team, &mut workspace, rows, &hidden, routes, &mut residual));
            down.line(
                &format!("experts down, {activations:?}, rows {rows}"),
                (2 * rows * 9 * 512 * 2048) as f64,
                "GFLOP/s",
                bound(ceiling, activations),
            );
        }
    }
}
