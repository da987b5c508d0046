//! Weight matrices on the device, in the checkpoint's own layout.

use half::{bf16, f16};
use lily_model::{Bytes, Dtype, Experts, Matrix, MatrixData, ModelError};

use crate::backend::Backend;
use crate::commands::View;
use crate::entry::Bits;
use crate::policy::{MMA_GROUP, lane_inputs, mma_spans};

/// A weight matrix `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct GpuMatrix {
    pub rows: usize,
    pub cols: usize,
    pub bits: Bits,
    /// Groups are `2^group_shift` units of eight inputs.
    pub group_shift: u32,
    pub codes: View,
    /// As `codes` where there are no scales: kernels do not look at them then.
    pub scales: View,
    pub biases: View,
}

/// One projection of every expert: expert `e` is rows `first + e * stride .. + rows` of `all`.
#[derive(Clone, Copy, Debug)]
pub struct GpuExperts {
    pub rows: usize,
    pub stride: usize,
    pub first: usize,
    pub all: GpuMatrix,
}

impl GpuMatrix {
    /// # Errors
    /// [`ModelError::Device`] for a row length that is no multiple of 8, and where the device has no room.
    pub fn new(backend: &mut impl Backend, matrix: &Matrix, what: &str) -> Result<Self, ModelError> {
        let Matrix { rows, cols, ref data } = *matrix;
        if !cols.is_multiple_of(8) {
            return Err(ModelError::Device(format!(
                "{what}: expected rows of a multiple of 8 inputs, found {cols} (the CPU device takes any)"
            )));
        }
        match data {
            MatrixData::Affine { bits, group, codes, scales, biases, scale_dtype } => Ok(GpuMatrix {
                rows,
                cols,
                bits: if *bits == 4 { Bits::Q4 } else { Bits::Q8 },
                group_shift: (group / 8).ilog2(),
                codes: backend.import(codes, what)?,
                scales: backend.import(&to_bf16(scales, *scale_dtype), what)?,
                biases: backend.import(&to_bf16(biases, *scale_dtype), what)?,
            }),
            MatrixData::Plain { dtype, values } => {
                let codes = backend.import(&to_bf16(values, *dtype), what)?;
                Ok(GpuMatrix { rows, cols, bits: Bits::B16, group_shift: 0, codes, scales: codes, biases: codes })
            }
        }
    }

    /// Inputs of one group.
    pub fn group(&self) -> usize {
        if self.bits == Bits::B16 { self.cols } else { 8 << self.group_shift }
    }

    /// Inputs of a lane of a vector kernel that multiplies by `vector_rows` rows.
    pub fn lane_inputs(&self, vector_rows: usize) -> usize {
        lane_inputs(self.cols, self.group(), vector_rows)
    }

    /// Spans of a row for the mma kernels, if they cover this matrix.
    pub fn mma_spans(&self) -> Option<usize> {
        mma_spans(self.bits, self.group(), self.cols)
    }

    /// Whether the wgmma kernels cover this matrix.
    pub fn has_wgmma(&self) -> bool {
        self.bits == Bits::Q4 && self.group() == MMA_GROUP
    }

    /// Whether `project_bytes` covers this matrix.
    pub fn has_bytes(&self) -> bool {
        self.bits == Bits::Q8 && self.cols.is_multiple_of(64)
    }

    /// Whether one launch can multiply by both.
    pub fn same_format(&self, other: &GpuMatrix) -> bool {
        (self.cols, self.bits, self.group_shift) == (other.cols, other.bits, other.group_shift)
    }
}

impl GpuExperts {
    pub fn new(backend: &mut impl Backend, experts: &Experts, what: &str) -> Result<Self, ModelError> {
        let Experts { rows, stride, first_row, ref data, .. } = *experts;
        Ok(GpuExperts { rows, stride, first: first_row, all: GpuMatrix::new(backend, data, what)? })
    }
}

/// Floats of any type as bf16; without a copy where they are.
fn to_bf16(bytes: &Bytes, dtype: Dtype) -> Bytes {
    let narrow = |values: Vec<f32>| values.into_iter().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
    match dtype {
        Dtype::Bf16 | Dtype::U32 => bytes.clone(),
        Dtype::F16 => Bytes::owned(narrow(bytes.chunks_exact(2).map(|two| f16::from_le_bytes([two[0], two[1]]).to_f32()).collect())),
        Dtype::F32 => {
            Bytes::owned(narrow(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()))
        }
    }
}
