//! Arithmetic of memory and traffic: what a model needs, and how fast decoding can be at most.
//!
//! Decoding one token reads the weights that the token uses, reads and writes the recurrent state, and
//! reads the keys and values of the whole context, each once; nothing else comes near. Divided into the
//! memory's bandwidth this gives a ceiling that no engine passes at batch 1. Start with [`Footprint`].

use crate::batch::PAGE_TOKENS;
use crate::config::{LayerKind, ModelConfig};
use crate::error::ModelError;
use crate::storage::Storage;
use crate::synth::plan;
use crate::weights::{Experts, Matrix, MatrixData, Mixer, Weights};

/// Bytes of the weights by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    pub embedding: u64,
    /// Projections of all DeltaNet mixers.
    pub delta: u64,
    /// Projections of all attention mixers.
    pub attention: u64,
    /// Routers, and the gates of the shared experts.
    pub routers: u64,
    /// All routed experts.
    pub experts: u64,
    pub shared: u64,
    /// 0 where the head shares the embedding's matrix.
    pub head: u64,
    /// Gains, convolutions, decay rates.
    pub vectors: u64,
}

impl WeightBytes {
    pub fn total(&self) -> u64 {
        self.embedding + self.delta + self.attention + self.routers + self.experts + self.shared + self.head + self.vectors
    }
}

/// Bytes that decoding one token moves, by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBytes {
    /// Mixers, routers, chosen experts, shared experts, head and vectors.
    pub weights: u64,
    /// Of these, the chosen experts.
    pub experts: u64,
    /// Recurrent state, read and written.
    pub state: u64,
    /// Keys and values of the context.
    pub kv: u64,
}

impl TokenBytes {
    pub fn total(&self) -> u64 {
        self.weights + self.state + self.kv
    }
}

/// A model's needs.
#[derive(Clone, Debug)]
pub struct Footprint {
    pub weights: WeightBytes,
    head_read: u64,
    config: ModelConfig,
}

impl Footprint {
    /// Of loaded weights, as the checkpoint stores them.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Self {
        let tied = same_bytes(&weights.head, &weights.embedding);
        let mut bytes = WeightBytes {
            embedding: matrix(&weights.embedding),
            head: if tied { 0 } else { matrix(&weights.head) },
            vectors: vector(&weights.norm),
            ..WeightBytes::default()
        };
        for layer in &weights.layers {
            match &layer.mixer {
                Mixer::Delta(delta) => {
                    bytes.delta += [&delta.qkv, &delta.z, &delta.b, &delta.a, &delta.out].map(matrix).iter().sum::<u64>();
                    bytes.vectors += [&delta.conv, &delta.decay_rate, &delta.dt_bias, &delta.norm].map(|v| vector(v)).iter().sum::<u64>();
                }
                Mixer::Attention(attention) => {
                    bytes.attention += [&attention.q, &attention.k, &attention.v, &attention.out].map(matrix).iter().sum::<u64>();
                    bytes.vectors += vector(&attention.q_norm) + vector(&attention.k_norm);
                }
            }
            let shared = &layer.shared;
            bytes.routers += matrix(&layer.router) + matrix(&shared.route);
            bytes.shared += [&shared.gate, &shared.up, &shared.down].map(matrix).iter().sum::<u64>();
            bytes.experts += [&layer.gate, &layer.up, &layer.down].map(experts).iter().sum::<u64>();
            bytes.vectors += vector(&layer.mixer_norm) + vector(&layer.experts_norm);
        }
        Footprint { weights: bytes, head_read: matrix(&weights.head), config: config.clone() }
    }

    /// Of a checkpoint that is not at hand: this shape, stored in this way.
    pub fn planned(config: &ModelConfig, storage: &Storage) -> Result<Self, ModelError> {
        let mut bytes = WeightBytes::default();
        for tensor in plan(config, storage)? {
            let stem = tensor.name.rsplit_once('.').map_or("", |(stem, _)| stem);
            let has = |part: &str| stem.contains(part);
            let part = match () {
                _ if has("embed_tokens") => &mut bytes.embedding,
                _ if has("lm_head") => &mut bytes.head,
                _ if has("proj") && has("linear_attn") => &mut bytes.delta,
                _ if has("proj") && has("self_attn") => &mut bytes.attention,
                _ if has("switch_mlp") => &mut bytes.experts,
                _ if has("shared_expert.") => &mut bytes.shared,
                _ if has("mlp.") => &mut bytes.routers,
                _ => {
                    // Held as f32, whatever the file has.
                    bytes.vectors += 4 * tensor.shape.iter().product::<usize>() as u64;
                    continue;
                }
            };
            *part += tensor.bytes();
        }
        let head_read = if storage.tied_head { bytes.embedding } else { bytes.head };
        Ok(Footprint { weights: bytes, head_read, config: config.clone() })
    }

    /// Bytes of all weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.total()
    }

    /// Recurrent state of one sequence, whatever its length: DeltaNet state and the convolution's raw rows, f32.
    pub fn state_bytes(&self) -> u64 {
        let config = &self.config;
        let delta = config.heads_v * config.dim_k * config.dim_v;
        let conv = (config.conv_width - 1) * config.conv_dim();
        (4 * (delta + conv) * config.layers_of(LayerKind::Delta)) as u64
    }

    /// Keys and values of one position in all attention layers.
    pub fn kv_bytes(&self) -> u64 {
        self.config.kv_bytes() as u64
    }

    /// One KV page.
    pub fn page_bytes(&self) -> usize {
        self.config.page_bytes()
    }

    /// State and whole pages of one sequence of `context` tokens.
    pub fn sequence_bytes(&self, context: usize) -> u64 {
        self.state_bytes() + context.div_ceil(PAGE_TOKENS) as u64 * self.page_bytes() as u64
    }

    /// Weights and `sequences` sequences of `context` tokens; activations and the program come on top.
    pub fn memory_bytes(&self, context: usize, sequences: usize) -> u64 {
        self.weight_bytes() + sequences as u64 * self.sequence_bytes(context)
    }

    /// What decoding one token moves when the context holds `context` tokens.
    pub fn token_bytes(&self, context: usize) -> TokenBytes {
        let WeightBytes { delta, attention, routers, shared, vectors, .. } = self.weights;
        let experts = self.weights.experts * self.config.experts_per_token as u64 / self.config.experts as u64;
        TokenBytes {
            weights: delta + attention + routers + experts + shared + vectors + self.head_read,
            experts,
            state: 2 * self.state_bytes(),
            kv: context as u64 * self.kv_bytes(),
        }
    }

    /// What one step moves that decodes a token of each of `rows` sequences with `context` tokens: what they share once, the
    /// experts that any of them chooses, on average if choices are independent and all experts alike.
    pub fn step_bytes(&self, context: usize, rows: usize) -> u64 {
        let token = self.token_bytes(context);
        let unchosen = 1.0 - self.config.experts_per_token as f64 / self.config.experts as f64;
        let experts = self.weights.experts as f64 * (1.0 - unchosen.powi(rows as i32));
        token.weights - token.experts + experts.round() as u64 + rows as u64 * (token.state + token.kv)
    }

    /// Tokens per second that memory of `bandwidth` GB/s (10⁹ bytes) allows for one sequence.
    pub fn decode_ceiling(&self, context: usize, bandwidth: f64) -> f64 {
        bandwidth * 1e9 / self.token_bytes(context).total() as f64
    }
}

fn matrix(matrix: &Matrix) -> u64 {
    match &matrix.data {
        MatrixData::Affine { codes, scales, biases, .. } => (codes.len() + scales.len() + biases.len()) as u64,
        MatrixData::Plain { values, .. } => values.len() as u64,
    }
}

/// This projection's share of its matrix: all of it, or half where gate and up are fused.
fn experts(experts: &Experts) -> u64 {
    matrix(&experts.data) * experts.rows as u64 / experts.stride as u64
}

fn vector(values: &[f32]) -> u64 {
    size_of_val(values) as u64
}

fn same_bytes(a: &Matrix, b: &Matrix) -> bool {
    match (&a.data, &b.data) {
        (MatrixData::Affine { codes: a, .. }, MatrixData::Affine { codes: b, .. })
        | (MatrixData::Plain { values: a, .. }, MatrixData::Plain { values: b, .. }) => a.as_ptr() == b.as_ptr(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Footprint {
        let config = ModelConfig::qwen3_6_35b_a3b();
        Footprint::planned(&config, &Storage::mlx_4bit(&config)).unwrap()
    }

    /// Asserts bytes against a published figure in units of 10⁹ bytes, to its last digit.
    #[track_caller]
    fn gigabytes(bytes: u64, figure: f64) {
        assert!((bytes as f64 / 1e9 - figure).abs() < 0.0006, "{} GB, not {figure}", bytes as f64 / 1e9);
    }

    #[test]
    fn full_size_weights() {
        let footprint = full();
        let weights = footprint.weights;
        gigabytes(weights.delta, 0.568);
        gigabytes(weights.attention, 0.153);
        gigabytes(weights.shared, 0.071);
        gigabytes(weights.routers, 0.022);
        gigabytes(weights.head, 0.286);
        assert_eq!(weights.experts, 40 * 256 * 1_769_472);
        let total = footprint.weight_bytes() as f64 / 1e9;
        assert!((total - 19.51).abs() < 0.01, "{total} GB");
    }

    #[test]
    fn full_size_token() {
        let token = full().token_bytes(0);
        gigabytes(token.experts, 0.566);
        // The published 1.670 GB leaves out the vectors.
        gigabytes(token.weights - full().weights.vectors, 1.667);
        assert!(full().weights.vectors < 6_000_000);
        assert_eq!(full().kv_bytes(), 20480);
        assert_eq!(full().token_bytes(1000).kv, 20_480_000);
        let state = full().state_bytes() as f64 / (1 << 20) as f64;
        assert!((state - 63.0).abs() < 0.5, "{state} MiB");
        gigabytes(token.state, 0.132);
    }

    #[test]
    fn a_step_of_several_sequences_reads_shared_weights_once() {
        let (one, many) = (full().step_bytes(1000, 1), full().step_bytes(1000, 4));
        assert_eq!(one, full().token_bytes(1000).total());
        let own = full().token_bytes(1000).state + full().token_bytes(1000).kv;
        let experts = full().token_bytes(0).experts;
        assert!(many > one + 3 * own + 2 * experts && many < one + 3 * own + 3 * experts, "four times eight of 256 overlap a little");
        assert!(full().step_bytes(0, 4096) < full().weight_bytes() + 4096 * full().token_bytes(0).state, "there are no more experts");
    }

    #[test]
    fn full_size_memory_and_ceiling() {
        let footprint = full();
        assert_eq!(footprint.page_bytes(), 256 * 20480);
        assert_eq!(footprint.sequence_bytes(257), footprint.state_bytes() + 2 * 256 * 20480);
        assert_eq!(footprint.memory_bytes(256, 3) - footprint.weight_bytes(), 3 * footprint.sequence_bytes(256));
        let short = footprint.decode_ceiling(0, 400.0);
        assert!((short - 400.0 / 1.80).abs() < 2.0, "{short} tok/s");
        assert!(footprint.decode_ceiling(262144, 400.0) < short / 3.0, "5.4 GB of keys and values");
    }
}
