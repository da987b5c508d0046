//! Random affine-quantised matrices in the MLX layout.

use super::rng::Rng;
use crate::reference::Affine;

/// A stored floating-point type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Float {
    /// The nearest value this type can hold.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Self::Bf16 => half::bf16::from_f32(to_odd(value)).to_f64(),
            Self::F16 => half::f16::from_f32(to_odd(value)).to_f64(),
            Self::F32 => f64::from(value as f32),
        }
    }

    /// The little-endian bytes of each value, as a file holds them.
    pub fn bytes(self, values: &[f64]) -> Vec<u8> {
        match self {
            Self::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(to_odd(v)).to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&v| half::f16::from_f32(to_odd(v)).to_le_bytes()).collect(),
            Self::F32 => values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
        }
    }

    pub(super) fn dtype(self) -> safetensors::Dtype {
        match self {
            Self::Bf16 => safetensors::Dtype::BF16,
            Self::F16 => safetensors::Dtype::F16,
            Self::F32 => safetensors::Dtype::F32,
        }
    }
}

/// The f32 next to `value` whose last bit says that something was cut off: rounding it once more, to fewer bits, gives
/// what rounding `value` itself would. (The conversions of `half` from f64 look at the upper 32 bits only, and so mistake
/// what lies just above the middle for the middle.)
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) == value || !near.is_finite() {
        return near;
    }
    let beyond = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(beyond)) | 1)
}

/// A random quantised `[outputs, inputs]` matrix with weights of about `1 / sqrt(inputs)`.
///
/// Codes are uniform, a third of the scales is negative (the biases follow, so that the weights stay centred), and
/// scales and biases are rounded to `float`, so that f64 holds exactly what a file of that type would.
pub fn random_affine(rng: &mut Rng, [outputs, inputs]: [usize; 2], [bits, group]: [usize; 2], float: Float) -> Affine {
    assert!(inputs.is_multiple_of(group), "random_affine: {inputs} inputs are not groups of {group}");
    let codes = f64::from((1u32 << bits) - 1);
    // A uniform code over 0..=codes has deviation codes / sqrt(12).
    let typical = 12f64.sqrt() / codes / (inputs as f64).sqrt();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..outputs * inputs / group {
        let sign = if rng.below(3) == 0 { -1.0 } else { 1.0 };
        let scale = float.round(sign * typical * rng.between(0.5, 1.5));
        scales.push(scale);
        biases.push(float.round(-scale * codes * rng.between(0.4, 0.6)));
    }
    let words = (0..outputs * inputs * bits / 32).map(|_| rng.word()).collect();
    Affine { bits, group, inputs, words, scales, biases }
}

#[cfg(test)]
mod tests {
    use super::Float;

    #[test]
    fn rounding_is_to_the_nearest_even_once() {
        let just = f64::from(f32::EPSILON);
        for (value, bf16) in [
            (1.0 + 1.0 / 256.0, 1.0),                       // the middle: to even
            (1.0 + 1.0 / 256.0 + just, 1.0 + 1.0 / 128.0),  // just above it
            (1.0 + 3.0 / 256.0 - just, 1.0 + 1.0 / 128.0),  // just below the next
            (1.0 + 1.0 / 256.0 + 1e-12, 1.0 + 1.0 / 128.0), // above it by less than f32 can say
        ] {
            assert_eq!(Float::Bf16.round(value), bf16, "{value}");
            assert_eq!(Float::Bf16.round(-value), -bf16, "-{value}");
        }
        assert_eq!(Float::F16.round(1.0 + 1.0 / 2048.0 + 1e-12), 1.0 + 1.0 / 1024.0);
        assert!(Float::F16.round(f64::NAN).is_nan() && Float::Bf16.round(1e300).is_infinite());
        assert_eq!(Float::Bf16.round(0.0), 0.0);
    }
}
