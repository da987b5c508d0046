//! Instruction sets: what the hot loops may use, found at run time.
//!
//! Every hot loop exists once per [`Isa`]. The best one is taken unless an option forces another; tests
//! run all that the machine has.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

use std::fmt;
use std::str::FromStr;

/// An instruction set that has its own hot loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, any processor: codes become f32, so activations are never rounded.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The same with AMX: one instruction multiplies two tiles of bytes. For many rows; a few go as with [`Isa::Avx512`].
    Amx,
    /// AArch64 without the dot-product instructions.
    Neon,
    /// AArch64 with `sdot`.
    NeonDot,
    /// The same with `smmla`: one instruction multiplies two rows with two. For many rows; a few go as with [`Isa::NeonDot`].
    NeonI8mm,
}

impl Isa {
    /// Best first.
    pub const ALL: [Isa; 7] = [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::NeonI8mm, Isa::NeonDot, Isa::Neon, Isa::Portable];

    /// The best that this machine has.
    pub fn best() -> Isa {
        *Self::available().first().expect("Portable is always there")
    }

    /// All that this machine has, best first.
    pub fn available() -> Vec<Isa> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        match self {
            Isa::Portable => true,
            Isa::Avx2 => avx2,
            Isa::Avx512 => {
                avx2 && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_os = "linux")]
            Isa::Amx => Isa::Avx512.is_available() && tiles::available(),
            #[cfg(not(target_os = "linux"))]
            Isa::Amx => false, // elsewhere the system gives tiles to nobody who asks as we do
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => false,
        }
    }

    /// Whether this machine has it.
    #[cfg(target_arch = "aarch64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Isa::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            Isa::NeonI8mm => Isa::NeonDot.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        }
    }

    /// Whether this machine has it.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn is_available(self) -> bool {
        self == Isa::Portable
    }

    /// The name that options take.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonDot => "neon-dot",
            Isa::NeonI8mm => "neon-i8mm",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = String;

    /// Reads a name; an instruction set that this machine lacks is an error too.
    fn from_str(text: &str) -> Result<Isa, String> {
        let names = || Self::available().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
        match Self::ALL.into_iter().find(|isa| isa.name() == text) {
            Some(isa) if isa.is_available() => Ok(isa),
            Some(isa) => Err(format!("instruction set {isa}: this machine has only {}", names())),
            None => Err(format!("instruction set: expected one of {}, found {text:?}", names())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::available() {
            assert_eq!(isa.name().parse::<Isa>(), Ok(isa));
        }
        assert!("sse9".parse::<Isa>().unwrap_err().contains("portable"));
    }
}
