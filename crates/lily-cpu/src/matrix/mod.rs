//! Weight matrices as the hot loops read them, straight from the mapped file.
//!
//! [`PackedMatrix`] and [`PackedExperts`] are made once at load and copy no weights. A [`View`] is what
//! the loops get: some rows' codes, scales and biases. [`project()`] multiplies several matrices with the
//! same input in one parallel region, [`experts`] does the mixture of experts.
//!
//! Which loop serves what:
//! - 4-bit codes in groups of 64 with bf16 scales are multiplied as integers ([`integer`]): activations
//!   are quantised to 8 or 16 bits per group. Up to [`integer::GEMV_ROWS`] rows of activations the weights
//!   stream through a matrix-vector loop, above that through panels repacked in cache.
//!   With AVX-512 codes of 8 bits, the router's, go the same way; they ask for 16-bit activations.
//! - Everything else (8 bits elsewhere, other groups and scales, raw floats,
//!   [`Activations::F32`](crate::quantise::Activations)) goes through [`float`]: rows become f32, activations stay as they are.

pub mod experts;
pub mod float;
pub mod integer;
pub mod project;
mod workspace;

pub use experts::{DownExperts, GateUpExperts, Routes};
pub use project::{Job, Projection, project};
pub use workspace::{Options, Workspace};

use lily_model::ModelError;
use lily_model::checkpoint::{Bytes, Dtype};
use lily_model::weights::{Experts, Matrix, MatrixData};

use crate::convert;

/// A weight matrix `[rows, cols]` in the file's own layout; keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    rows: usize,
    cols: usize,
    data: MatrixData,
}

/// One projection of every expert, `[experts, rows, cols]`.
#[derive(Clone, Debug)]
pub struct PackedExperts {
    experts: usize,
    rows: usize,
    stride: usize,
    first_row: usize,
    all: PackedMatrix,
}

/// Rows of a matrix, borrowed for one step.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub rows: usize,
    pub cols: usize,
    pub values: Values<'a>,
}

/// The stored values of a [`View`]; nothing is assumed about alignment.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// `w = scale * code + bias`; `codes` low bits first, `scales` and `biases` one per `group` inputs.
    Affine {
        bits: usize,
        group: usize,
        codes: &'a [u8],
        scales: &'a [u8],
        biases: &'a [u8],
        dtype: Dtype,
    },
    Plain {
        dtype: Dtype,
        values: &'a [u8],
    },
}

impl PackedMatrix {
    /// Checks that the matrix is one that the loops can read.
    ///
    /// # Errors
    /// [`ModelError::Device`] if bits, group or lengths are not as the layout asks.
    pub fn new(matrix: &Matrix) -> Result<PackedMatrix, ModelError> {
        let Matrix { rows, cols, .. } = *matrix;
        let shape = format!("matrix [{rows}, {cols}]");
        let expect = |what: &str, expected: usize, bytes: &Bytes| {
            let found = bytes.len();
            let message = format!("{shape}: expected {expected} bytes of {what}, found {found}");
            if found == expected { Ok(()) } else { Err(ModelError::Device(message)) }
        };
        match &matrix.data {
            MatrixData::Affine { bits, group, codes, scales, biases, scale_dtype } => {
                let (bits, group) = (*bits, *group);
                if !matches!(bits, 4 | 8) || !matches!(group, 32 | 64 | 128) || cols % group != 0 || *scale_dtype == Dtype::U32 {
                    return Err(ModelError::Device(format!(
                        "{shape}: expected 4 or 8 bits in groups of 32, 64 or 128 that divide the inputs, \
                         with float scales; found {bits} bits in groups of {group}, {scale_dtype:?} scales"
                    )));
                }
                expect("codes", rows * cols * bits / 8, codes)?;
                expect("scales", rows * cols / group * convert::width(*scale_dtype), scales)?;
                expect("biases", rows * cols / group * convert::width(*scale_dtype), biases)?;
            }
            MatrixData::Plain { dtype: Dtype::U32, .. } => {
                return Err(ModelError::Device(format!("{shape}: expected floats, found U32")));
            }
            MatrixData::Plain { dtype, values } => expect("values", rows * cols * convert::width(*dtype), values)?,
        }
        Ok(PackedMatrix { rows, cols, data: matrix.data.clone() })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All rows.
    pub fn view(&self) -> View<'_> {
        self.view_of(0, self.rows)
    }

    fn view_of(&self, first: usize, rows: usize) -> View<'_> {
        let part = |row_bytes: usize| first * row_bytes..(first + rows) * row_bytes;
        let values = match &self.data {
            MatrixData::Affine { bits, group, codes, scales, biases, scale_dtype } => {
                let (code_bytes, scale_bytes) = (self.cols * bits / 8, self.cols / group * convert::width(*scale_dtype));
                Values::Affine {
                    bits: *bits,
                    group: *group,
                    codes: &codes[part(code_bytes)],
                    scales: &scales[part(scale_bytes)],
                    biases: &biases[part(scale_bytes)],
                    dtype: *scale_dtype,
                }
            }
            MatrixData::Plain { dtype, values } => {
                Values::Plain { dtype: *dtype, values: &values[part(self.cols * convert::width(*dtype))] }
            }
        };
        View { rows, cols: self.cols, values }
    }
}

impl PackedExperts {
    /// Checks the matrix and that every expert's rows lie in it.
    ///
    /// # Errors
    /// As [`PackedMatrix::new`], or if the last expert ends past the rows.
    pub fn new(experts: &Experts) -> Result<PackedExperts, ModelError> {
        let all = PackedMatrix::new(&experts.data)?;
        let Experts { experts, rows, stride, first_row, .. } = *experts;
        let end = experts.checked_sub(1).map_or(0, |last| first_row + last * stride + rows);
        if end > all.rows {
            let found = all.rows;
            return Err(ModelError::Device(format!("{experts} experts of {rows} rows: expected {end} rows, found {found}")));
        }
        Ok(PackedExperts { experts, rows, stride, first_row, all })
    }

    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Outputs of one expert.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of one expert.
    pub fn cols(&self) -> usize {
        self.all.cols
    }

    /// The rows of one expert.
    pub fn expert(&self, index: usize) -> View<'_> {
        self.all.view_of(self.first_row + index * self.stride, self.rows)
    }
}

impl<'a> View<'a> {
    /// Bits of a code that integer loops could take: groups of 64 with bf16 scales.
    pub fn integer_bits(&self) -> Option<usize> {
        match self.values {
            Values::Affine { bits, group: 64, dtype: Dtype::Bf16, .. } => Some(bits),
            _ => None,
        }
    }
}
