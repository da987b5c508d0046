//! The values: a fast seeded generator that writes straight into the output buffer.

use half::bf16;

use super::plan::{Content, Planned};
use crate::shard::Dtype;

/// Fills one tensor, buffer after buffer.
pub(super) struct Fill {
    random: Random,
    content: Content,
    dtype: Dtype,
    /// bf16 bits of the scales or biases to choose from.
    table: [u16; 16],
}

impl Fill {
    /// The stream depends on the seed and on the matrix's name alone, so a layer is the same whatever
    /// the number of layers. Scales and biases share theirs, since they belong together.
    pub fn new(seed: u64, tensor: &Planned) -> Self {
        let stem = tensor.name.strip_suffix(".biases").map(|stem| format!("{stem}.scales"));
        let random = Random::new(seed, stem.as_deref().unwrap_or(&tensor.name));
        Fill { random, content: tensor.content, dtype: tensor.dtype, table: table(tensor.content) }
    }

    /// The next bytes. Buffers hold whole elements, and all but a tensor's last a multiple of 8 bytes.
    pub fn next(&mut self, buffer: &mut [u8]) {
        match self.content {
            Content::Codes => self.codes(buffer),
            Content::Scales { .. } | Content::Biases { .. } => self.scales(buffer),
            _ => self.floats(buffer),
        }
    }

    fn codes(&mut self, buffer: &mut [u8]) {
        let (words, rest) = buffer.as_chunks_mut::<8>();
        for word in words {
            *word = self.random.next().to_le_bytes();
        }
        rest.copy_from_slice(&self.random.next().to_le_bytes()[..rest.len()]);
    }

    /// Sixteen choices from each random word.
    fn scales(&mut self, buffer: &mut [u8]) {
        for values in buffer.as_chunks_mut::<2>().0.chunks_mut(16) {
            let mut word = self.random.next();
            for value in values {
                *value = self.table[(word & 15) as usize].to_le_bytes();
                word >>= 4;
            }
        }
    }

    fn floats(&mut self, buffer: &mut [u8]) {
        match self.dtype {
            Dtype::F32 => buffer.as_chunks_mut().0.iter_mut().for_each(|value| *value = self.value().to_le_bytes()),
            _ => buffer.as_chunks_mut().0.iter_mut().for_each(|value| *value = bf16::from_f32(self.value()).to_le_bytes()),
        }
    }

    fn value(&mut self) -> f32 {
        match self.content {
            Content::Normal { mean, deviation } => mean + deviation * self.random.normal(),
            Content::Uniform { from, to } => from + (to - from) * self.random.uniform(),
            Content::LogUniform { from, to } => (from + (to - from) * self.random.uniform()).ln(),
            Content::Codes | Content::Scales { .. } | Content::Biases { .. } => unreachable!("not made value by value"),
        }
    }
}

/// Scales around the one that gives the wanted deviation, half of them negative; or the biases that centre
/// them. Scales have few significant bits, so that 4-bit biases are exact in bf16.
fn table(content: Content) -> [u16; 16] {
    let (Content::Scales { bits, deviation } | Content::Biases { bits, deviation }) = content else { return [0; 16] };
    let codes = (1u32 << bits) as f32;
    // Uniform codes 0..n have the variance (n² - 1) / 12.
    let scale = deviation / ((codes * codes - 1.0) / 12.0).sqrt();
    let unit = 2f32.powi(scale.log2().floor() as i32 - 3);
    let mantissa = (scale / unit).round(); // 8..=16
    std::array::from_fn(|at| {
        let sign = if at < 8 { 1.0 } else { -1.0 };
        let scale = sign * unit * (mantissa + [-2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0][at % 8]);
        let bias = matches!(content, Content::Biases { .. });
        bf16::from_f32(if bias { -scale * (codes - 1.0) / 2.0 } else { scale }).to_bits()
    })
}

/// SplitMix64: one multiply-xor chain per word, several gigabytes a second.
struct Random(u64);

impl Random {
    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3));
        let mut random = Random(seed);
        Random(random.next() ^ hash)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// In [0, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Mean 0, deviation 1, at most 3.5 from the mean: a sum of four uniforms, the same on every machine.
    fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| self.uniform()).sum();
        (sum - 2.0) * 3f32.sqrt()
    }
}
