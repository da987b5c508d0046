//! Whether a device's tiles compute what they should: `kernels/dialect/tile_check.metal` against plain loops.
//!
//! All inputs are small whole numbers, so that every sum is exact and any difference is a fault: of a layout that was
//! assumed, or of the device.

use half::f16;
use lily_model::ModelError;

use super::Backend;
use crate::commands::{Access, BufferId, CommandList, Launch, View};

const ROWS: usize = 32;
const COLUMNS: usize = 24;
const INNER: usize = 32;
const KERNEL: &str = "tile_check";

/// Runs the check. Takes a few KB of the device for good.
///
/// # Errors
/// What the device says, or the first value that is wrong.
pub fn run(device: &mut dyn Backend) -> Result<(), ModelError> {
    let inputs = Inputs::new();
    device.prepare_kernels(&[KERNEL])?;
    let mut bindings = Vec::new();
    for (bytes, what) in [(halfs(&inputs.a), "a"), (halfs(&inputs.b), "b"), (halfs(&inputs.c), "c"), (floats(&inputs.scale), "scale")] {
        let view = allocate(device, bytes.len(), what)?;
        device.write(view, &bytes);
        bindings.push((view, Access::Read));
    }
    let out = allocate(device, ROWS * COLUMNS * size_of::<f32>(), "out")?;
    let packed = allocate(device, ROWS * COLUMNS * size_of::<f16>(), "packed")?;
    bindings.extend([(out, Access::Write), (packed, Access::Write)]);
    let mut list = CommandList::new(false);
    let args = (ROWS as u32).to_le_bytes().to_vec();
    list.push(Launch { kernel: KERNEL, stage: KERNEL, bindings, args, grid: [1, 1, 1], threads: 32 });
    device.run(&list)?;
    let (mut sums, mut pairs) = (vec![0; out.bytes], vec![0; packed.bytes]);
    device.read(out, &mut sums)?;
    device.read(packed, &mut pairs)?;
    let sums = sums.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let pairs = pairs.chunks_exact(2).map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32());
    for (at, (found, rounded)) in sums.zip(pairs).enumerate() {
        let (row, column) = (at / COLUMNS, at % COLUMNS);
        let expected = inputs.expected(row, column);
        for (found, expected) in [(found, expected), (rounded, f16::from_f32(expected).to_f32())] {
            if found != expected {
                let what = format!("its tiles are wrong: expected {expected} in row {row}, column {column}, found {found}");
                return Err(ModelError::Device(format!("{}: {what}", device.name())));
            }
        }
    }
    Ok(())
}

struct Inputs {
    /// [rows, inner]
    a: Vec<f32>,
    /// [columns, inner]
    b: Vec<f32>,
    /// [inner, columns]
    c: Vec<f32>,
    /// [rows]
    scale: Vec<f32>,
}

impl Inputs {
    /// Numbers from -4 to 4 in an order that repeats in no row, column or block of a tile.
    fn new() -> Self {
        let mut state = 1u32;
        let mut numbers = |count: usize| -> Vec<f32> {
            let mut number = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) as f32 % 9.0 - 4.0
            };
            (0..count).map(|_| number()).collect()
        };
        Inputs { a: numbers(ROWS * INNER), b: numbers(COLUMNS * INNER), c: numbers(INNER * COLUMNS), scale: numbers(ROWS) }
    }

    fn expected(&self, row: usize, column: usize) -> f32 {
        let a = &self.a[row * INNER..][..INNER];
        let first: f32 = a.iter().zip(&self.b[column * INNER..]).map(|(a, b)| a * b).sum();
        let second: f32 = a.iter().enumerate().map(|(k, a)| a * self.c[k * COLUMNS + column]).sum();
        self.scale[row] * first + second
    }
}

fn allocate(device: &mut dyn Backend, bytes: usize, what: &str) -> Result<View, ModelError> {
    let buffer: BufferId = device.allocate(bytes, &format!("the tile check's {what}"))?;
    Ok(View { buffer, offset: 0, bytes })
}

fn halfs(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
