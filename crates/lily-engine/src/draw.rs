//! Random draws that depend on a seed and on which token they are for, and on nothing else.
//!
//! The generator is a counter through a mixing function, so draw `i` needs no draw before it: a sequence
//! that is interrupted and computed again draws the same. The constants are part of Lily's promise that a
//! seed repeats an answer; a test holds their values.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Draws of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draws {
    key: u64,
}

impl Draws {
    pub fn new(seed: u64) -> Self {
        Draws { key: mix(seed ^ 0x6c69_6c79_2d73_6565) }
    }

    /// For a request that names no seed: from the operating system's randomness.
    pub fn unseeded() -> Self {
        Draws::new(RandomState::new().build_hasher().finish())
    }

    /// Uniform in [0, 1), for the `index`th generated token: 24 bits, so that the `f32` is exact.
    pub fn uniform(&self, index: usize) -> f32 {
        let bits = mix(self.key.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        (bits >> 40) as f32 / (1 << 24) as f32
    }
}

/// A bijection of 64-bit words whose every output bit depends on every input bit (the finaliser of SplitMix64).
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_draws_in_every_version() {
        let draws = Draws::new(7);
        let units: Vec<u32> = (0..4).map(|index| (draws.uniform(index) * (1 << 24) as f32) as u32).collect();
        assert_eq!(units, [8456843, 9779000, 12427983, 6400772]);
    }

    #[test]
    fn draws_are_uniform_and_seeds_are_unrelated() {
        let mut tenths = [0usize; 10];
        for seed in 0..100 {
            for index in 0..100 {
                tenths[(Draws::new(seed).uniform(index) * 10.0) as usize] += 1;
            }
        }
        // 1000 expected in each; six standard deviations are 180.
        assert!(tenths.iter().all(|&count| count.abs_diff(1000) < 180), "{tenths:?}");
        assert_ne!(Draws::unseeded(), Draws::unseeded());
    }
}
