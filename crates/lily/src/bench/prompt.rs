//! The prompts of the contract: the same for every engine, and none of a tokenizer.

/// The prompt of one sequence; the first one's is the contract's, the others go on where it ends.
pub fn prompt(length: usize, sequence: usize, vocab: usize) -> Vec<u32> {
    let start = (sequence * length) as u64;
    (start..start + length as u64).map(|i| ((i * 2_654_435_761) % (1 << 32) % vocab as u64) as u32).collect()
}

/// FNV-1a over tokens, or over the bytes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    pub fn new() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn token(&mut self, token: u32) {
        self.bytes(&token.to_le_bytes());
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_those_of_the_contract() {
        assert_eq!(
            prompt(4, 0, 248_320),
            [0, 2_654_435_761u64 % 248_320, (2 * 2_654_435_761u64 % (1 << 32)) % 248_320, (3 * 2_654_435_761u64 % (1 << 32)) % 248_320]
                .map(|id| id as u32)
        );
        assert_eq!(prompt(8, 0, 500)[4..], prompt(4, 1, 500));
    }

    #[test]
    fn the_digest_is_that_of_fnv() {
        let mut digest = Digest::new();
        digest.bytes(b"foobar");
        assert_eq!(digest.to_string(), "85944171f73967e8");
    }
}
