//! The GPU engine on the simulator as the rings of `lily_testkit::ring` take it, and what they may expect of any GPU.

#![allow(dead_code)] // every ring is a program of its own and uses a part

#[cfg(all(feature = "sim", unix))]
mod sim;

use std::path::Path;

use lily_model::{Logits, Runner};
use lily_testkit::generate::{CheckpointSpec, Float, Rng, write_checkpoint};
use lily_testkit::reference::{AttentionDims, DeltaDims, MixerKind, ModelDims, MoeDims};
use lily_testkit::ring::kernel::model;
use lily_testkit::ring::rig::{CAPACITY, Sequence, open_device, rows, run};
use lily_testkit::ring::{Bound, Numerics, Subject, Tolerances};

#[cfg(all(feature = "sim", unix))]
#[allow(unused_imports)]
pub use sim::Sim;

/// With few rows everything is f32; with many, operands are stored as half, and the rings read them back as such. Keys
/// and values are half always; tiles round queries to it as well.
pub const NUMERICS: Numerics = Numerics::f32(Float::F16);

/// Passes of more than eight rows go through tiles, which round dequantised weights to half.
pub const ROUNDED_WEIGHTS: Option<(usize, Float)> = Some((9, Float::F16));

/// Products on tiles round weights to half, 2^-12 of a value at most, and what they multiply that no buffer holds:
/// experts' activations, queries, attention weights.
pub const TOLERANCES: Tolerances = Tolerances {
    norm: 5e-4,
    delta: 5e-4,
    attention: 1e-3,
    projection: 1e-3,
    routes: 1e-3,
    experts: 1e-3,
    head: 1e-3,
    // Margins move by as much as activations: see `lily_testkit::ring::ties`.
    near_tie: 2e-3,
    layer: Bound::Overall(5e-3),
    layer_attention: Bound::Overall(5e-3),
    ..Tolerances::F32
};

/// Logits of whole models whose prompts go through tiles.
pub const MODEL: Bound = Bound::Overall(5e-3);

/// Scales, biases and plain matrices that a checkpoint has finer than this are rounded when they are loaded.
pub const STORED: Float = Float::Bf16;

/// Heads that the kernels cover and that are no powers of two: 6 query heads, 2 key heads, 48 value columns, odd taps.
pub fn awkward() -> ModelDims {
    let attention = AttentionDims { heads_q: 6, heads_kv: 2, head_dim: 32, rotary_dim: 8, rope_theta: 1e7 };
    model(attention, DeltaDims { heads_k: 2, heads_v: 6, dim_k: 32, dim_v: 48, conv_width: 3 })
}

/// Widths that the mma kernels cover, in one, two and four spans; matrices of four rows, and of more than a tile.
pub fn spans() -> ModelDims {
    let attention = AttentionDims { heads_q: 8, heads_kv: 2, head_dim: 64, rotary_dim: 16, rope_theta: 1e7 };
    let delta = DeltaDims { heads_k: 2, heads_v: 4, dim_k: 64, dim_v: 128, conv_width: 4 };
    let moe = MoeDims { experts: 8, experts_per_token: 3, expert_width: 512, shared_width: 1024, normalise_top: true };
    ModelDims { hidden: 1024, mixers: vec![MixerKind::Delta, MixerKind::Attention], moe, ..model(attention, delta) }
}

/// Experts that the fitted kernels cover, many enough for loads of every kind.
pub fn fitted() -> ModelDims {
    let moe = MoeDims { experts: 16, experts_per_token: 6, expert_width: 128, shared_width: 256, normalise_top: true };
    ModelDims { hidden: 256, moe, ..spans() }
}

/// Rows of single experts at the edges of fitted tiles, and more than one tile holds.
pub const FITTED_COUNTS: [usize; 12] = [0, 1, 15, 16, 17, 130, 144, 160, 161, 256, 257, 600];

/// Experts that the thin kernels cover, in one span and in two.
pub fn thin() -> ModelDims {
    let moe = MoeDims { experts: 32, experts_per_token: 6, expert_width: 512, shared_width: 128, normalise_top: true };
    ModelDims { hidden: 1024, moe, ..spans() }
}

/// Rows of single experts at the edges of thin tiles, and more than one tile holds; of a pass that goes through them.
pub const THIN_COUNTS: [usize; 13] = [0, 1, 7, 8, 9, 15, 16, 17, 24, 25, 32, 33, 53];

/// The full model's widths where products of few rows read them: four spans in, eight and four out.
pub fn wide_spans() -> ModelDims {
    let attention = AttentionDims { heads_q: 8, heads_kv: 1, head_dim: 256, rotary_dim: 64, rope_theta: 1e7 };
    let delta = DeltaDims { heads_k: 1, heads_v: 32, dim_k: 128, dim_v: 128, conv_width: 4 };
    ModelDims { hidden: 2048, mixers: vec![MixerKind::Delta, MixerKind::Attention], ..model(attention, delta) }
}

/// A checkpoint of these widths, as the real one is quantised.
pub fn spans_checkpoint() -> tempfile::TempDir {
    checkpoint(spans())
}

/// The same with rows that take every expert, so that no rounding chooses another one.
pub fn all_experts_checkpoint() -> tempfile::TempDir {
    let dims = spans();
    let moe = MoeDims { experts_per_token: dims.moe.experts, ..dims.moe };
    checkpoint(ModelDims { moe, ..dims })
}

fn checkpoint(dims: ModelDims) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a folder");
    write_checkpoint(directory.path(), &CheckpointSpec { dims, ..CheckpointSpec::default() }).expect("it is written");
    directory
}

/// Tokens of four sequences in each step: prefill, then decode of one to four sequences at once, of which the second step
/// with one replays a recorded list.
pub const STEPS: [[usize; 4]; 6] = [[11, 1, 3, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [2, 1, 0, 0], [40, 0, 0, 0]];

/// The same with few rows always.
pub const FEW_STEPS: [[usize; 4]; 4] = [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]];

/// Logits of a checkpoint on a device, and its vocabulary.
pub fn pass<S: Subject>(subject: &S, checkpoint: &Path, steps: &[[usize; 4]]) -> (Vec<f32>, usize) {
    let (config, device) = open_device(subject, checkpoint, CAPACITY);
    let mut runner = Runner::new(config, device).expect("the device has room for activations");
    let vocab = runner.config.vocab;
    let mut rng = Rng::new(3);
    let mut draw = |count: usize| -> Vec<u32> { (0..count).map(|_| rng.below(vocab) as u32).collect() };
    let mut sequences: Vec<Sequence> = (0..4).map(|at| Sequence::start(&mut runner, at, &[3 * at, 3 * at + 1])).collect();
    let mut logits = Vec::new();
    for (step, &counts) in steps.iter().enumerate() {
        let tokens: Vec<Vec<u32>> = counts.iter().map(|&count| draw(count)).collect();
        let used = sequences.iter().zip(&tokens).filter(|(_, tokens)| !tokens.is_empty());
        let spans: Vec<_> = used.map(|(sequence, tokens)| sequence.span(tokens, Logits::All)).collect();
        run(&mut runner, &spans);
        logits.extend(rows(&runner, 0..counts.iter().sum()));
        sequences.iter_mut().zip(counts).for_each(|(sequence, count)| sequence.position += count);
        assert!(logits.iter().all(|logit| logit.is_finite()), "{} step {step}", checkpoint.display());
    }
    (logits, vocab)
}
