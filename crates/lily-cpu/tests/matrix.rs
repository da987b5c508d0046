//! Projections and experts on every instruction set of this machine against sums in f64.
//!
//! Tolerances are relative to the product of the norms of weights and inputs (projections) or to the
//! largest output of the case (experts). Float paths: f32 sums over up to 4096
//! inputs, 2e-6. 16-bit activations: half a step of 1/32512 of a group's largest input, random over the
//! inputs; 2e-4 covers outliers of 30 times the rest. 8-bit: 256 times that, 4e-2.

use lily_cpu::isa::Isa;
use lily_cpu::matrix::{DownExperts, GateUpExperts, Job, Options, PackedExperts, PackedMatrix, Projection, Routes, Workspace, project};
use lily_cpu::quantise::Activations;
use lily_cpu::team::Team;
use lily_model::checkpoint::{Bytes, Dtype};
use lily_model::weights::{Experts, Matrix, MatrixData};

const POISON: f32 = f32::NAN;
/// What the residual holds before the experts; small, so that adding to it rounds little.
const START: f32 = 1.0 / 1024.0;

/// A small generator (splitmix64): the same numbers everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Activations: mostly small, one channel in 100 up to 30 times larger.
    fn inputs(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit() * if self.next().is_multiple_of(100) { 30.0 } else { 1.0 }).collect()
    }
}

/// How a test matrix is stored.
#[derive(Clone, Copy, Debug)]
enum Storage {
    Affine { bits: usize, group: usize, dtype: Dtype },
    Plain(Dtype),
}

const HOT: Storage = Storage::Affine { bits: 4, group: 64, dtype: Dtype::Bf16 };

fn encode(dtype: Dtype, value: f32, bytes: &mut Vec<u8>) -> f64 {
    match dtype {
        Dtype::Bf16 => {
            let value = half::bf16::from_f32(value);
            bytes.extend(value.to_le_bytes());
            value.to_f64()
        }
        Dtype::F16 => {
            let value = half::f16::from_f32(value);
            bytes.extend(value.to_le_bytes());
            value.to_f64()
        }
        _ => {
            bytes.extend(value.to_le_bytes());
            f64::from(value)
        }
    }
}

/// A random matrix and its values.
fn matrix(rng: &mut Rng, rows: usize, cols: usize, storage: Storage) -> (Matrix, Vec<f64>) {
    let mut values = Vec::with_capacity(rows * cols);
    let data = match storage {
        Storage::Plain(dtype) => {
            let mut bytes = Vec::new();
            for _ in 0..rows * cols {
                values.push(encode(dtype, rng.unit() * 0.05, &mut bytes));
            }
            MatrixData::Plain { dtype, values: Bytes::owned(bytes) }
        }
        Storage::Affine { bits, group, dtype } => {
            let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rows * cols / group {
                let step = rng.unit() * 0.1 / (1 << bits) as f32; // of either sign
                let scale = encode(dtype, step, &mut scales);
                let bias = encode(dtype, -step * (1 << bits) as f32 * (0.5 + 0.1 * rng.unit()), &mut biases);
                for _ in 0..group * bits / 8 {
                    let byte = rng.next() as u8;
                    codes.push(byte);
                    for part in 0..8 / bits {
                        let code = (byte >> (part * bits)) & ((1u16 << bits) - 1) as u8;
                        values.push(scale * f64::from(code) + bias);
                    }
                }
            }
            let [codes, scales, biases] = [codes, scales, biases].map(Bytes::owned);
            MatrixData::Affine { bits, group, codes, scales, biases, scale_dtype: dtype }
        }
    };
    (Matrix { rows, cols, data }, values)
}

fn product(weights: &[f64], row: usize, x: &[f32]) -> f64 {
    weights[row * x.len()..(row + 1) * x.len()].iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum()
}

fn options(isa: Isa, activations: Activations) -> Options {
    Options { isa, decode: activations, prefill: activations, prefill_experts: activations }
}

fn tolerance(activations: Activations) -> f64 {
    match activations {
        Activations::F32 => 2e-6,
        Activations::I16 => 2e-4,
        Activations::I8 => 4e-2,
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn largest(expected: &[f64]) -> Vec<f64> {
    vec![expected.iter().fold(1e-9, |largest: f64, y| largest.max(y.abs())); expected.len()]
}

fn check(what: &str, found: &[f32], expected: &[f64], norms: &[f64], tolerance: f64) {
    assert!(found.len() == expected.len() && found.len() == norms.len());
    for (i, ((found, expected), norm)) in found.iter().zip(expected).zip(norms).enumerate() {
        let error = (f64::from(*found) - expected).abs() / norm;
        assert!(error <= tolerance, "{what}: output {i} is {found}, expected {expected} (error {error:.1e} of {tolerance:.0e})");
    }
}

/// One projection of several matrices, on every instruction set; the gap columns must stay poisoned.
fn check_projection(rows: usize, cols: usize, widths: &[usize], storage: Storage, activations: Activations) {
    let mut rng = Rng((rows * 1_000_003 + cols * 101 + widths[0]) as u64);
    let made: Vec<_> = widths.iter().map(|&width| matrix(&mut rng, width, cols, storage)).collect();
    let packed: Vec<_> = made.iter().map(|(matrix, _)| PackedMatrix::new(matrix).unwrap()).collect();
    let x_stride = cols + 5;
    let x = rng.inputs(rows * x_stride);
    let mut jobs = Vec::new();
    let mut column = 3;
    for matrix in &packed {
        jobs.push(Job { matrix, column });
        column += matrix.rows();
    }
    let y_stride = column + 2;
    for isa in Isa::available() {
        let mut team = Team::new(2);
        let mut workspace = Workspace::new(options(isa, activations), team.count());
        for accumulate in [false, true] {
            let mut y = vec![POISON; rows * y_stride];
            if accumulate {
                y.fill(0.25);
            }
            let projection = Projection { x: &x, x_stride, rows, jobs: &jobs, y: &mut y, y_stride, accumulate };
            project(&mut team, &mut workspace, projection);
            let (mut found, mut expected, mut norms) = (Vec::new(), Vec::new(), Vec::new());
            for row in 0..rows {
                let x = &x[row * x_stride..row * x_stride + cols];
                for (job, (matrix, values)) in jobs.iter().zip(&made) {
                    for r in 0..matrix.rows {
                        found.push(y[row * y_stride + job.column + r]);
                        let weights = values[r * cols..(r + 1) * cols].iter().copied();
                        norms.push(norm(weights) * norm(x.iter().map(|x| f64::from(*x))) + if accumulate { 0.25 } else { 0.0 });
                        expected.push(product(values, r, x) + if accumulate { 0.25 } else { 0.0 });
                    }
                }
                let gaps = [&y[row * y_stride..row * y_stride + 3], &y[row * y_stride + column..(row + 1) * y_stride]].concat();
                assert!(gaps.iter().all(|gap| if accumulate { *gap == 0.25 } else { gap.is_nan() }), "a gap was written");
            }
            let what = format!("{isa} {activations:?} {storage:?} rows {rows} cols {cols} widths {widths:?}");
            check(&what, &found, &expected, &norms, tolerance(activations));
        }
    }
}

#[test]
fn hot_projections_at_awkward_shapes() {
    for activations in [Activations::I16, Activations::I8, Activations::F32] {
        for rows in [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 130] {
            check_projection(rows, 192, &[37, 64, 1, 32], HOT, activations);
        }
        for cols in [64, 128, 320, 1024, 1088, 2048, 4096] {
            for rows in [1, 3, 9] {
                check_projection(rows, cols, &[33], HOT, activations);
            }
        }
        for width in [1, 2, 3, 5, 31, 127, 4500] {
            check_projection(1, 128, &[width], HOT, activations);
            check_projection(12, 128, &[width], HOT, activations);
        }
    }
}

/// Tiles and panels add in one order.
#[test]
fn amx_gives_the_bits_of_avx512() {
    if !Isa::Amx.is_available() {
        return;
    }
    for (bits, activations) in [(4, Activations::I16), (4, Activations::I8), (8, Activations::I16)] {
        for (rows, cols, width) in [(5, 64, 1), (16, 192, 33), (33, 1088, 130), (70, 2048, 64)] {
            let mut rng = Rng(rows as u64);
            let (matrix, _) = matrix(&mut rng, width, cols, Storage::Affine { bits, group: 64, dtype: Dtype::Bf16 });
            let (matrix, x) = (PackedMatrix::new(&matrix).unwrap(), rng.inputs(rows * cols));
            let [amx, avx512] = [Isa::Amx, Isa::Avx512].map(|isa| {
                let (mut team, mut y) = (Team::new(2), vec![POISON; rows * width]);
                let mut workspace = Workspace::new(options(isa, activations), team.count());
                let jobs = [Job { matrix: &matrix, column: 0 }];
                let projection = Projection { x: &x, x_stride: cols, rows, jobs: &jobs, y: &mut y, y_stride: width, accumulate: false };
                project(&mut team, &mut workspace, projection);
                y
            });
            assert!(amx == avx512, "{bits} bits {activations:?}: {rows} rows, {cols} inputs, {width} outputs");
        }
    }
}

#[test]
fn every_storage() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for rows in [1, 2, 9, 33] {
            for bits in [4, 8] {
                for group in [32, 64, 128] {
                    check_projection(rows, 384, &[35, 7], Storage::Affine { bits, group, dtype }, Activations::I16);
                    check_projection(rows, 384, &[35, 7], Storage::Affine { bits, group, dtype }, Activations::F32);
                }
            }
            for cols in [64, 100, 257] {
                check_projection(rows, cols, &[35, 7], Storage::Plain(dtype), Activations::F32);
            }
        }
    }
}

/// A mixture of experts of random matrices with its reference.
struct Mixture {
    routes: (Vec<u32>, Vec<f32>, Vec<f32>),
    packed: [PackedExperts; 3],
    shared: [PackedMatrix; 3],
    x: Vec<f32>,
    hidden: Vec<f64>,
    output: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    inputs: usize,
    width: usize,
    shared_width: usize,
    experts: usize,
    per_row: usize,
}

impl Mixture {
    /// Gate and up lie fused in one tensor, as in raw checkpoints.
    fn new(shape: Shape, storage: Storage) -> Mixture {
        let Shape { rows, inputs, width, shared_width, experts, per_row } = shape;
        let mut rng = Rng((rows * 7919 + width) as u64);
        let fused = matrix(&mut rng, experts * 2 * width, inputs, storage);
        let down = matrix(&mut rng, experts * inputs, width, storage);
        let shared = [(shared_width, inputs), (shared_width, inputs), (inputs, shared_width)].map(|(r, c)| matrix(&mut rng, r, c, storage));
        let of = |data: &Matrix, rows, stride, first_row| {
            PackedExperts::new(&Experts { experts, rows, stride, first_row, data: data.clone() }).unwrap()
        };
        let packed = [of(&fused.0, width, 2 * width, 0), of(&fused.0, width, 2 * width, width), of(&down.0, inputs, inputs, 0)];
        let x = rng.inputs(rows * inputs);
        let mut ids = Vec::new();
        for _ in 0..rows {
            let first = rng.next() as usize % experts;
            ids.extend((0..per_row).map(|j| ((first + j * j) % experts) as u32)); // often uneven, sometimes twice the same
        }
        let weights: Vec<f32> = (0..rows * per_row).map(|_| rng.unit().abs()).collect();
        let gates: Vec<f32> = (0..rows).map(|_| rng.unit().abs()).collect();
        let swiglu = |gate: f64, up: f64| gate / (1.0 + (-gate).exp()) * up;
        let (mut hidden, mut output) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let x = &x[row * inputs..(row + 1) * inputs];
            let start = hidden.len();
            for &id in &ids[row * per_row..(row + 1) * per_row] {
                let first = id as usize * 2 * width;
                hidden.extend((0..width).map(|r| swiglu(product(&fused.1, first + r, x), product(&fused.1, first + width + r, x))));
            }
            hidden.extend((0..shared_width).map(|r| swiglu(product(&shared[0].1, r, x), product(&shared[1].1, r, x))));
            let rounded: Vec<f32> = hidden[start..].iter().map(|h| *h as f32).collect();
            for r in 0..inputs {
                let routed = (0..per_row).map(|j| {
                    let id = ids[row * per_row + j] as usize;
                    f64::from(weights[row * per_row + j]) * product(&down.1, id * inputs + r, &rounded[j * width..(j + 1) * width])
                });
                output.push(routed.sum::<f64>() + f64::from(gates[row]) * product(&shared[2].1, r, &rounded[per_row * width..]));
            }
        }
        let shared = shared.map(|(matrix, _)| PackedMatrix::new(&matrix).unwrap());
        Mixture { routes: (ids, weights, gates), packed, shared, x, hidden, output }
    }

    /// Both steps; the hidden buffer and the residual.
    fn run(&self, shape: Shape, team: &mut Team, options: Options) -> (Vec<f32>, Vec<f32>) {
        let Shape { rows, inputs, width, shared_width, per_row, .. } = shape;
        let mut workspace = Workspace::new(options, team.count());
        let routes = Routes { per_row, ids: &self.routes.0, weights: &self.routes.1, shared: &self.routes.2 };
        let stride = per_row * width + shared_width;
        let mut hidden = vec![POISON; rows * stride];
        let [gate, up, down] = &self.packed;
        let [shared_gate, shared_up, shared_down] = &self.shared;
        GateUpExperts {
            x: &self.x,
            x_stride: inputs,
            rows,
            routes,
            gate,
            up,
            shared_gate,
            shared_up,
            hidden: &mut hidden,
            hidden_stride: stride,
        }
        .run(team, &mut workspace);
        let mut residual = vec![START; rows * inputs];
        DownExperts {
            hidden: &hidden,
            hidden_stride: stride,
            rows,
            routes,
            down,
            shared_down,
            residual: &mut residual,
            residual_stride: inputs,
        }
        .run(team, &mut workspace);
        (hidden, residual)
    }
}

#[test]
fn experts_at_awkward_shapes() {
    let base = Shape { rows: 1, inputs: 128, width: 64, shared_width: 192, experts: 16, per_row: 4 };
    for storage in [HOT, Storage::Plain(Dtype::Bf16), Storage::Affine { bits: 4, group: 32, dtype: Dtype::F16 }] {
        for shape in [
            base,
            Shape { rows: 2, ..base },
            Shape { rows: 5, width: 128, ..base },
            Shape { rows: 33, ..base },
            Shape { rows: 130, inputs: 192, shared_width: 64, ..base },
        ] {
            let mixture = Mixture::new(shape, storage);
            for isa in Isa::available() {
                for activations in [Activations::F32, Activations::I16, Activations::I8] {
                    let what = format!("{isa} {activations:?} {storage:?} {shape:?}");
                    let (hidden, residual) = mixture.run(shape, &mut Team::new(2), options(isa, activations));
                    // Products of two: twice the tolerance of one; the output adds its own.
                    check(&format!("{what} hidden"), &hidden, &mixture.hidden, &largest(&mixture.hidden), 2.0 * tolerance(activations));
                    let output: Vec<f32> = residual.iter().map(|y| y - START).collect();
                    check(&format!("{what} output"), &output, &mixture.output, &largest(&mixture.output), 4.0 * tolerance(activations));
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let shape = Shape { rows: 9, inputs: 256, width: 128, shared_width: 128, experts: 8, per_row: 3 };
    for isa in Isa::available() {
        for rows in [1, 3, 9, 40] {
            let shape = Shape { rows, ..shape };
            let mixture = Mixture::new(shape, HOT);
            let of = |count| mixture.run(shape, &mut Team::new(count), options(isa, Activations::I16));
            let one = of(1);
            for count in [2, 3, 8] {
                assert!(of(count) == one, "{isa}: {count} threads differ from one at {rows} rows");
            }
        }
    }
}

#[test]
fn wrong_matrices_are_refused() {
    let mut rng = Rng(1);
    let (mut matrix, _) = matrix(&mut rng, 4, 128, HOT);
    matrix.rows = 5;
    let error = PackedMatrix::new(&matrix).unwrap_err().to_string();
    assert!(error.contains("expected 320 bytes of codes, found 256"), "{error}");
    matrix.rows = 4;
    let experts = Experts { experts: 2, rows: 3, stride: 3, first_row: 0, data: matrix };
    assert!(PackedExperts::new(&experts).unwrap_err().to_string().contains("expected 6 rows, found 4"));
}
