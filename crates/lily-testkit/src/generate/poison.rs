//! Outputs filled with a NaN that no computation produces, so that an element nobody wrote shows.

/// Bits of the f32 poison: a quiet NaN with a payload of its own.
pub const POISON_F32: u32 = 0x7fc5_ca1e;
/// Bits of the bf16 poison.
pub const POISON_BF16: u16 = 0x7fe5;

/// `length` poisoned f32 values.
pub fn poisoned_f32(length: usize) -> Vec<f32> {
    vec![f32::from_bits(POISON_F32); length]
}

/// `length` poisoned bf16 values.
pub fn poisoned_bf16(length: usize) -> Vec<half::bf16> {
    vec![half::bf16::from_bits(POISON_BF16); length]
}

/// A value that may be poisoned.
pub trait Poisonable: Copy {
    /// Whether these are exactly the bits of the poison.
    fn is_poison(self) -> bool;
}

impl Poisonable for f32 {
    fn is_poison(self) -> bool {
        self.to_bits() == POISON_F32
    }
}

impl Poisonable for half::bf16 {
    fn is_poison(self) -> bool {
        self.to_bits() == POISON_BF16
    }
}

/// Panics with the name and the first index if any element still carries the poison.
pub fn assert_written<T: Poisonable>(name: &str, values: &[T]) {
    let left = values.iter().filter(|v| v.is_poison()).count();
    if let Some(first) = values.iter().position(|v| v.is_poison()) {
        panic!("{name}: {left} of {} elements were never written, the first at {first}", values.len());
    }
}
