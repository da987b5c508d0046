//! Memory of Apple's chips: for the table of what fits and how fast it can be at most.

/// An Apple chip with the memory it is sold with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    pub name: &'static str,
    /// GB/s (10⁹ bytes); chips sold with two speeds have an entry each.
    pub bandwidth: f64,
    /// GiB.
    pub memory: &'static [u32],
}

const fn chip(name: &'static str, bandwidth: f64, memory: &'static [u32]) -> Chip {
    Chip { name, bandwidth, memory }
}

/// M1 to M5.
pub const CHIPS: [Chip; 21] = [
    chip("M1", 68.0, &[8, 16]),
    chip("M1 Pro", 200.0, &[16, 32]),
    chip("M1 Max", 400.0, &[32, 64]),
    chip("M1 Ultra", 800.0, &[64, 128]),
    chip("M2", 100.0, &[8, 16, 24]),
    chip("M2 Pro", 200.0, &[16, 32]),
    chip("M2 Max", 400.0, &[32, 64, 96]),
    chip("M2 Ultra", 800.0, &[64, 128, 192]),
    chip("M3", 100.0, &[8, 16, 24]),
    chip("M3 Pro", 150.0, &[18, 36]),
    chip("M3 Max (30 GPU cores)", 300.0, &[36, 96]),
    chip("M3 Max (40 GPU cores)", 400.0, &[48, 64, 128]),
    chip("M3 Ultra", 819.0, &[96, 256, 512]),
    chip("M4", 120.0, &[16, 24, 32]),
    chip("M4 Pro", 273.0, &[24, 48, 64]),
    chip("M4 Max (32 GPU cores)", 410.0, &[36]),
    chip("M4 Max (40 GPU cores)", 546.0, &[48, 64, 128]),
    chip("M5", 153.0, &[16, 24, 32]),
    chip("M5 Pro", 307.0, &[24, 48, 64]),
    chip("M5 Max (32 GPU cores)", 460.0, &[36]),
    chip("M5 Max (40 GPU cores)", 614.0, &[48, 64, 128]),
];

impl Chip {
    /// Memory that the GPU may use by default, in bytes, for one of the sizes in GiB: two thirds of up to
    /// 36 GiB, three quarters of more. `sudo sysctl iogpu.wired_limit_mb` raises it.
    pub fn gpu_bytes(memory: u32) -> u64 {
        let bytes = u64::from(memory) << 30;
        if memory <= 36 { bytes / 3 * 2 } else { bytes / 4 * 3 }
    }
}
