//! What is compared: one device with one set of switches and so many sequences, or another engine's server.

use anyhow::bail;
use lily_gpu::{DeltaScan, GpuOptions, TileRows};

use super::measure::{Report, Sample};
use crate::cli::BenchArgs;

/// One thing to measure.
#[derive(Clone, Debug)]
pub struct Arm {
    pub name: String,
    pub gpu: GpuOptions,
    /// Sequences that are decoded in one step.
    pub rows: usize,
}

impl Arm {
    /// The default switches under some name.
    pub fn new(name: String, rows: usize) -> Self {
        Arm { name, gpu: GpuOptions::default(), rows }
    }
}

/// What the flags ask of this engine: the default, then everything without one technique; or several sequences.
pub fn arms(args: &BenchArgs) -> Vec<Arm> {
    if !args.rows.is_empty() {
        return args.rows.iter().map(|&rows| Arm::new(format!("sequences: {rows}"), rows)).collect();
    }
    let all = GpuOptions::default();
    let mut arms = vec![Arm::new("all techniques".into(), 1)];
    if args.ablate {
        let without = [
            ("separate dequantise", GpuOptions { fused_dequantise: false, ..all }),
            ("routing through the host", GpuOptions { device_routing: false, ..all }),
            ("16-row tiles", GpuOptions { tile_rows: TileRows::Fixed(16), ..all }),
            ("experts in tiles of fixed rows", GpuOptions { fitted_experts: false, ..all }),
            ("experts of few rows as those of many", GpuOptions { thin_experts: false, ..all }),
            ("scan token by token", GpuOptions { delta_scan: DeltaScan::Register, ..all }),
            ("scan four tokens at a time", GpuOptions { delta_scan: DeltaScan::Blocked, ..all }),
            ("uncoalesced KV reads", GpuOptions { coalesced_kv: false, ..all }),
            ("unpacked query heads", GpuOptions { packed_heads: false, ..all }),
            ("general attention path only", GpuOptions { fixed_blocks: false, ..all }),
            ("serial pass", GpuOptions { concurrent: false, ..all }),
            ("unfused chains", GpuOptions { fused_chains: false, ..all }),
            ("decode without tensor cores", GpuOptions { mma_decode: false, ..all }),
            ("prefill without warpgroups", GpuOptions { wgmma_prefill: false, ..all }),
            ("portable attention", GpuOptions { attention_mma: false, ..all }),
            ("token hand-off through the host", GpuOptions { device_tokens: false, ..all }),
        ];
        arms.extend(without.map(|(name, gpu)| Arm { name: name.into(), gpu, rows: 1 }));
    }
    arms
}

/// What one arm found in all rounds.
pub struct Found {
    pub arm: Arm,
    /// Where it computed; for a server its address and what it calls its model.
    pub device: String,
    pub samples: Vec<Sample>,
    /// What a reader of the figures must know.
    pub notes: Vec<String>,
}

impl Found {
    pub fn new(arm: Arm) -> Self {
        Found { arm, device: String::new(), samples: Vec::new(), notes: Vec::new() }
    }

    /// Takes in what a measurement says.
    ///
    /// # Errors
    /// A digest that differs from an earlier round's.
    pub fn take(&mut self, report: Report) -> anyhow::Result<()> {
        match report {
            Report::Device(device) => self.device = device,
            Report::Sample(sample) => {
                let (length, found) = (sample.length, &sample.digest);
                if let Some(before) = self.of(length).find(|before| before.digest != *found) {
                    bail!("{}, {length} tokens: the answers of two rounds differ ({} and {found})", self.arm.name, before.digest);
                }
                self.samples.push(sample);
            }
        }
        Ok(())
    }

    /// The samples of one length.
    pub fn of(&self, length: usize) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.length == length)
    }

    /// The lengths in the order in which they were measured.
    pub fn lengths(&self) -> Vec<usize> {
        let mut lengths = Vec::new();
        for sample in &self.samples {
            if !lengths.contains(&sample.length) {
                lengths.push(sample.length);
            }
        }
        lengths
    }

    /// Medians over the rounds, in tokens a second of all sequences together.
    pub fn prefill_tok_s(&self, length: usize) -> f64 {
        median(self.of(length).map(|sample| sample.prompt_tokens as f64 / sample.prefill_s).collect())
    }

    pub fn decode_tok_s(&self, length: usize) -> f64 {
        median(self.of(length).map(|sample| sample.decoded as f64 / sample.decode_s).collect())
    }

    pub fn digest(&self, length: usize) -> &str {
        self.of(length).next().map_or("", |sample| &sample.digest)
    }
}

/// The middle one; of an even number, the mean of the middle two.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => all[odd / 2],
        even => (all[even / 2 - 1] + all[even / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(length: usize, seconds: f64, digest: &str) -> Report {
        Report::Sample(Sample { length, prompt_tokens: length, prefill_s: seconds, decoded: 10, decode_s: seconds, digest: digest.into() })
    }

    #[test]
    fn the_middle_round_counts() {
        let mut found = Found::new(Arm::new("a".into(), 1));
        for seconds in [4.0, 1.0, 2.0] {
            found.take(sample(8, seconds, "x")).unwrap();
        }
        assert_eq!((found.prefill_tok_s(8), found.decode_tok_s(8)), (4.0, 5.0));
        assert_eq!(median(vec![1.0, 4.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn answers_that_differ_are_an_error() {
        let mut found = Found::new(Arm::new("serial pass".into(), 1));
        found.take(sample(8, 1.0, "x")).unwrap();
        found.take(sample(16, 1.0, "y")).unwrap();
        let error = found.take(sample(8, 1.0, "z")).unwrap_err().to_string();
        assert!(error.contains("serial pass, 8 tokens") && error.contains("(x and z)"), "{error}");
    }
}
