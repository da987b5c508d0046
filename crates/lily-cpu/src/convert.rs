//! Half-precision floats to f32 and back, in one place.

use lily_model::checkpoint::Dtype;

/// bf16 bits to f32: exact.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bf16 bits, to nearest even; NaN stays NaN.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// f16 bits to f32: exact. Without branches, so that loops over it vectorise.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // Shifted into place the exponent is 112 too small: a multiplication puts it right, subnormals too.
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits((magnitude << 13) | 0x7f80_0000);
    let value = if magnitude < 0x7c00 { finite } else { special };
    f32::from_bits(value.to_bits() | sign)
}

/// Bytes of one element.
pub fn width(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::U32 => 4,
        Dtype::F16 | Dtype::Bf16 => 2,
    }
}

/// Little-endian floats at any alignment, as f32.
#[inline(always)]
pub fn floats(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    let halves = |at: &[u8; 2]| u16::from_le_bytes(*at);
    match dtype {
        Dtype::Bf16 => fill(bytes, out, |at| bf16_to_f32(halves(at))),
        Dtype::F16 => fill(bytes, out, |at| f16_to_f32(halves(at))),
        Dtype::F32 => fill(bytes, out, |at: &[u8; 4]| f32::from_le_bytes(*at)),
        Dtype::U32 => unreachable!("codes are no floats"),
    }
}

#[inline(always)]
fn fill<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn(&[u8; N]) -> f32) {
    let (elements, rest) = bytes.as_chunks::<N>();
    assert!(rest.is_empty() && elements.len() == out.len());
    for (out, element) in out.iter_mut().zip(elements) {
        *out = value(element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
            let bf16 = bf16_to_f32(bits);
            assert!(bf16.is_nan() || f32_to_bf16(bf16) == bits);
        }
        for step in 0..100_000u32 {
            let value = f32::from_bits(step.wrapping_mul(0x9e37_79b9));
            let theirs = half::bf16::from_f32(value).to_bits();
            assert!(value.is_nan() || f32_to_bf16(value) == theirs, "{value}");
        }
    }
}
