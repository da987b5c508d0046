//! Activation buffers: what the handles of the forward pass hold on this device.

use half::bf16;

use crate::commands::View;

/// What a buffer's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    Bf16,
    /// Per row the ids as u32, then the weights and the shared gate as f32: `2 * per_token + 1` words.
    Routes,
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
    pub(crate) fn row_bytes(&self) -> usize {
        self.width * if self.kind == Kind::Bf16 { 2 } else { 4 }
    }

    /// The first `rows` rows.
    pub(crate) fn first(&self, rows: usize) -> View {
        self.view.part(0, rows * self.row_bytes())
    }

    /// Stored bytes as f32; ids of routes become numbers.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        match self.kind {
            Kind::F32 => floats(bytes),
            Kind::Bf16 => bytes.chunks_exact(2).map(|two| bf16::from_le_bytes([two[0], two[1]]).to_f32()).collect(),
            Kind::Routes => {
                let number = |(at, word): (usize, f32)| if self.is_id(at) { word.to_bits() as f32 } else { word };
                floats(bytes).into_iter().enumerate().map(number).collect()
            }
        }
    }

    /// f32 as stored bytes.
    pub(crate) fn encode(&self, values: &[f32]) -> Vec<u8> {
        match self.kind {
            Kind::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Kind::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
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
