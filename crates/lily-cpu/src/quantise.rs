//! Activations as small integers: rounded once per step, per group of 64 inputs.
//!
//! A group's largest magnitude becomes 127 (8 bits, one plane) or 32512 (16 bits, two planes). A 16-bit
//! value is `256 * hi + lo` with both halves signed bytes, so that the same multiply of unsigned codes by
//! signed bytes serves both precisions. Start with
//! [`Quantised::reshape`], then [`Quantised::fill`].
//!
//! Layout of a row: blocks of 128 inputs; per block and plane (hi, then lo) 64 bytes of inputs with even
//! index, then 64 with odd index, as a 4-bit word's low and high halves meet them. Beside them per group
//! of 64: `scale`, and `scale * sum of the integers`, which multiplies the weights' bias. (The sum of the
//! integers and not of the activations: the errors of the two terms then cancel.)

#[cfg(target_arch = "x86_64")]
mod avx2;

use std::ops::Range;

use crate::isa::Isa;
use crate::team::Cells;

/// Inputs that share a scale.
pub const GROUP: usize = 64;
/// Inputs of a layout block.
pub const BLOCK: usize = 128;

/// How exactly a step sees its activations. Relative error of a product with 4-bit weights, measured on
/// Gaussian to outlier-ridden inputs: `I16` 2e-5 to 6e-5, `I8` 6e-3 to 1.6e-2, `F32` 2e-7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    F32,
    I16,
    I8,
}

impl Activations {
    /// Signed bytes per input; none if activations stay f32.
    pub fn planes(self) -> usize {
        match self {
            Activations::F32 => 0,
            Activations::I16 => 2,
            Activations::I8 => 1,
        }
    }
}

impl std::str::FromStr for Activations {
    type Err = String;

    fn from_str(text: &str) -> Result<Activations, String> {
        match text {
            "f32" => Ok(Activations::F32),
            "i16" => Ok(Activations::I16),
            "i8" => Ok(Activations::I8),
            _ => Err(format!("activations: expected f32, i16 or i8, found {text:?}")),
        }
    }
}

/// Bytes on cache-line boundaries.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([i8; 64]);

/// Rows of quantised activations. The buffers grow to the largest shape seen and stay.
#[derive(Default)]
pub struct Quantised {
    rows: usize,
    cols: usize,
    planes: usize,
    codes: Cells<Line>,
    scales: Cells<f32>,
    sums: Cells<f32>,
}

impl Quantised {
    /// Makes room for `rows` rows of `cols` inputs, a multiple of 64. Contents are unspecified after.
    pub fn reshape(&mut self, rows: usize, cols: usize, activations: Activations) {
        assert!(cols.is_multiple_of(GROUP), "inputs: expected a multiple of {GROUP}, found {cols}");
        (self.rows, self.cols, self.planes) = (rows, cols, activations.planes());
        self.codes.grow(rows * self.row_lines(), Line([0; 64]));
        self.scales.grow(rows * self.row_groups(), 0.0);
        self.sums.grow(rows * self.row_groups(), 0.0);
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Cache lines from row to row: odd, so that the rows of a tile do not share cache sets.
    fn row_lines(&self) -> usize {
        self.cols.div_ceil(BLOCK) * 2 * self.planes + 1
    }

    /// Scales from row to row: whole vectors can be read past the last.
    fn row_groups(&self) -> usize {
        (self.cols / GROUP).next_multiple_of(16)
    }

    /// Codes of a row, on a cache-line boundary.
    pub fn codes(&self, row: usize) -> &[i8] {
        let lines = self.row_lines();
        // SAFETY: whoever fills blocks keeps readers out until all are filled.
        let lines = unsafe { self.codes.slice(row * lines..(row + 1) * lines) };
        // SAFETY: a line is 64 bytes without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 64) }
    }

    /// Scales of a row's groups, padded to whole vectors of 16.
    pub fn scales(&self, row: usize) -> &[f32] {
        // SAFETY: as for `codes`.
        unsafe { self.scales.slice(row * self.row_groups()..(row + 1) * self.row_groups()) }
    }

    /// Per group, scale times the sum of the integers, padded as the scales.
    pub fn sums(&self, row: usize) -> &[f32] {
        // SAFETY: as for `codes`.
        unsafe { self.sums.slice(row * self.row_groups()..(row + 1) * self.row_groups()) }
    }

    /// Blocks of all rows together: row `i` is blocks `i * blocks / rows ..`.
    pub fn blocks(&self) -> usize {
        self.rows * self.cols.div_ceil(BLOCK)
    }

    /// Quantises blocks `range`; `row(i)` gives the inputs of row `i`.
    ///
    /// # Safety
    /// The machine has `isa`, and no other thread fills or reads a block of `range` meanwhile.
    pub unsafe fn fill<'x>(&self, isa: Isa, range: Range<usize>, row: impl Fn(usize) -> &'x [f32]) {
        let per_row = self.cols.div_ceil(BLOCK);
        for block in range {
            let (index, block) = (block / per_row, block % per_row);
            let inputs = &row(index)[block * BLOCK..self.cols.min((block + 1) * BLOCK)];
            let line = index * self.row_lines() + block * 2 * self.planes;
            let group = index * self.row_groups() + block * (BLOCK / GROUP);
            let groups = group..group + inputs.len() / GROUP;
            // SAFETY: the caller owns the block, and blocks do not overlap.
            let (codes, scales, sums) = unsafe {
                (self.codes.slice_mut(line..line + 2 * self.planes), self.scales.slice_mut(groups.clone()), self.sums.slice_mut(groups))
            };
            // SAFETY: the machine has `isa`.
            unsafe { quantise_block(isa, inputs, codes, scales, sums) };
        }
    }
}

/// # Safety
/// The machine has `isa`.
unsafe fn quantise_block(isa: Isa, inputs: &[f32], codes: &mut [Line], scales: &mut [f32], sums: &mut [f32]) {
    let (groups, _) = inputs.as_chunks::<GROUP>();
    if groups.len() == 1 {
        codes.fill(Line([0; 64]));
    }
    for (index, inputs) in groups.iter().enumerate() {
        let at = index * GROUP / 2;
        (scales[index], sums[index]) = match isa {
            // SAFETY: the machine has it; AVX-512 includes AVX2.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => unsafe { avx2::group(inputs, at, codes) },
            _ => group(inputs, at, codes),
        };
    }
}

/// Scale and `scale * sum` of one group, whose bytes enter `codes` from byte `at` of every line on.
fn group(inputs: &[f32; GROUP], at: usize, codes: &mut [Line]) -> (f32, f32) {
    // Magnitudes compare as integers, which vectorises; NaN counts as largest and spreads.
    let largest = inputs.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let planes = codes.len() / 2;
    let (scale, inverse) = scale(f32::from_bits(largest), planes);
    let integers = inputs.map(|x| nearest(x * inverse));
    for (plane, lines) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let high = planes == 2 && plane == 0;
        for (i, &integer) in integers.iter().enumerate() {
            let byte = if high { (integer + 128) >> 8 } else { integer };
            lines[i % 2].0[at + i / 2] = byte as i8;
        }
    }
    (scale, scale * integers.iter().sum::<i32>() as f32)
}

/// The step of a group and its inverse, from the largest magnitude.
fn scale(largest: f32, planes: usize) -> (f32, f32) {
    let limit = if planes == 1 { 127.0 } else { 32512.0 };
    let inverse = limit / largest;
    // Zero, or so small that the inverse is infinite: zero at this precision.
    if inverse.is_infinite() { (0.0, 0.0) } else { (largest / limit, inverse) }
}

/// To the nearest integer, ties to even; `|x|` below 2^22.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
}

/// Makes a buffer at least `length` long, keeping what it has.
pub(crate) fn grow<T: Clone>(buffer: &mut Vec<T>, length: usize, value: T) {
    if buffer.len() < length {
        buffer.resize(length, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The integer of input `col`, put together from its planes.
    fn integer(quantised: &Quantised, row: usize, col: usize) -> i32 {
        let at = col / BLOCK * BLOCK * quantised.planes() + col % 2 * 64 + col % BLOCK / 2;
        let codes = quantised.codes(row);
        match quantised.planes() {
            1 => i32::from(codes[at]),
            _ => 256 * i32::from(codes[at]) + i32::from(codes[at + BLOCK]),
        }
    }

    #[test]
    fn every_input_is_within_half_a_step() {
        for isa in Isa::available() {
            for (rows, cols) in [(1, 64), (3, 192), (2, 512), (5, 2048)] {
                for activations in [Activations::I16, Activations::I8] {
                    let x: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919 % 1000) as f32 - 500.0) * 0.01 * (1 + i % 13) as f32).collect();
                    let mut quantised = Quantised::default();
                    quantised.reshape(rows, cols, activations);
                    // SAFETY: one thread, and the machine has the instruction set.
                    unsafe { quantised.fill(isa, 0..quantised.blocks(), |row| &x[row * cols..(row + 1) * cols]) };
                    for row in 0..rows {
                        for group in 0..cols / GROUP {
                            let scale = quantised.scales(row)[group];
                            let sum: i32 = (0..GROUP).map(|i| integer(&quantised, row, group * GROUP + i)).sum();
                            assert_eq!(quantised.sums(row)[group], scale * sum as f32);
                            for col in group * GROUP..(group + 1) * GROUP {
                                let error = x[row * cols + col] - scale * integer(&quantised, row, col) as f32;
                                // The product with the inverse scale is rounded too: 32512 times 1e-7.
                                assert!(error.abs() <= scale * 0.51, "{isa} {activations:?} row {row} col {col}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn instruction_sets_agree_bit_for_bit() {
        for inputs in [192, 256] {
            for activations in [Activations::I16, Activations::I8] {
                let x: Vec<f32> = (0..inputs).map(|i| ((i * 7919 % 1009) as f32 - 500.0).powi(3) * 1e-6).collect();
                let of = |isa| {
                    let mut quantised = Quantised::default();
                    quantised.reshape(1, inputs, activations);
                    // SAFETY: one thread, and the machine has the instruction set.
                    unsafe { quantised.fill(isa, 0..quantised.blocks(), |_| &x) };
                    (quantised.codes(0).to_vec(), quantised.scales(0).to_vec(), quantised.sums(0).to_vec())
                };
                for isa in Isa::available() {
                    assert!(of(isa) == of(Isa::Portable), "{isa} {activations:?}");
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        let mut quantised = Quantised::default();
        quantised.reshape(1, 64, Activations::I16);
        // SAFETY: one thread; every machine has Portable.
        unsafe { quantised.fill(Isa::Portable, 0..1, |_| &[0.0; 64]) };
        assert!(quantised.scales(0)[0] == 0.0 && quantised.sums(0)[0] == 0.0);
        assert!(quantised.codes(0).iter().all(|&code| code == 0));
    }
}
