//! Activations with the shapes of trouble that real ones have.

use super::rng::Rng;

/// How the values of an input are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Standard normal.
    Gaussian,
    /// Mostly small, a few in the hundreds: what a sum in low precision loses.
    HeavyTails,
    /// Three channels a hundred times larger than the rest in every row: what one scale per row of int8 loses.
    OutlierChannels,
    /// Nine of ten exactly zero and the first row all zero: divisions by a norm or a scale of zero.
    Zeros,
    /// A large common offset: cancellation against the biases of quantised weights.
    Offset,
    /// About 1e-4: where the epsilon of a norm matters.
    Tiny,
}

impl Distribution {
    /// All of them, for tests that loop.
    pub const ALL: [Self; 6] = [Self::Gaussian, Self::HeavyTails, Self::OutlierChannels, Self::Zeros, Self::Offset, Self::Tiny];

    /// Draws `[rows, width]` values, representable in f32.
    pub fn draw(self, rng: &mut Rng, rows: usize, width: usize) -> Vec<f32> {
        let channels: Vec<usize> = (0..3).map(|_| rng.below(width)).collect();
        let value = |row: usize, channel: usize, rng: &mut Rng| match self {
            Self::Gaussian => rng.gaussian(),
            Self::HeavyTails => 0.3 * rng.gaussian() / rng.between(1e-3, 1.0),
            Self::OutlierChannels if channels.contains(&channel) => 100.0 * rng.gaussian(),
            Self::OutlierChannels => rng.gaussian(),
            Self::Zeros if row == 0 || rng.uniform() < 0.9 => 0.0,
            Self::Zeros => rng.gaussian(),
            Self::Offset => 20.0 + rng.gaussian(),
            Self::Tiny => 1e-4 * rng.gaussian(),
        };
        (0..rows * width).map(|i| value(i / width, i % width, rng) as f32).collect()
    }

    /// Like [`Self::draw`], with every value rounded to bf16, for engines that take their activations so.
    pub fn draw_bf16(self, rng: &mut Rng, rows: usize, width: usize) -> Vec<f32> {
        self.draw(rng, rows, width).into_iter().map(|v| half::bf16::from_f32(v).to_f32()).collect()
    }
}
