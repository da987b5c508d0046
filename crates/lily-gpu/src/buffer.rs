//! Activation buffers: what the handles of the forward pass hold on this device.

use half::f16;

use crate::commands::View;

/// What a buffer's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    /// Inputs of products: half in a pass of many rows (`narrow`), else f32. Room is for the latter.
    Operand,
    /// Per row the ids as u32, then the weights and the shared gate as f32: `2 * per_token + 1` words.
    Routes,
}

impl Kind {
    pub(crate) fn value_bytes(self, narrow: bool) -> usize {
        if self == Kind::Operand && narrow { 2 } else { 4 }
    }
}

/// One activation buffer, `[rows, width]`, allocated at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuBuffer {
    pub(crate) view: View,
    pub(crate) width: usize,
    pub(crate) kind: Kind,
}

impl GpuBuffer {
    /// Bytes of one row.
    pub(crate) fn row_bytes(&self, narrow: bool) -> usize {
        self.width * self.kind.value_bytes(narrow)
    }

    /// The first `rows` rows.
    pub(crate) fn first(&self, rows: usize, narrow: bool) -> View {
        self.view.part(0, rows * self.row_bytes(narrow))
    }

    /// Stored bytes as f32; ids of routes become numbers.
    pub(crate) fn decode(&self, bytes: &[u8], narrow: bool) -> Vec<f32> {
        match self.kind {
            Kind::Operand if narrow => bytes.chunks_exact(2).map(|two| f16::from_le_bytes([two[0], two[1]]).to_f32()).collect(),
            Kind::F32 | Kind::Operand => floats(bytes),
            Kind::Routes => {
                let number = |(at, word): (usize, f32)| if self.is_id(at) { word.to_bits() as f32 } else { word };
                floats(bytes).into_iter().enumerate().map(number).collect()
            }
        }
    }

    /// f32 as stored bytes.
    pub(crate) fn encode(&self, values: &[f32], narrow: bool) -> Vec<u8> {
        match self.kind {
            Kind::Operand if narrow => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
            Kind::F32 | Kind::Operand => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Kind::Routes => {
                let word = |(at, &value): (usize, &f32)| if self.is_id(at) { value as u32 } else { value.to_bits() };
                values.iter().enumerate().map(word).flat_map(u32::to_le_bytes).collect()
            }
        }
    }

    /// Whether a word of routes is an expert's id.
    fn is_id(&self, at: usize) -> bool {
        at % self.width < self.width / 2
    }
}

/// Little-endian f32.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}
