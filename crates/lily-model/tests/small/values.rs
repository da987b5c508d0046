//! All weights as plain floats, in one order, for comparing what two checkpoints or two readers say.

use half::{bf16, f16};
use lily_model::{Dtype, Experts, Matrix, MatrixData, Mixer, Weights};

/// Row `row` of a matrix as floats, dequantised: w = scale * code + bias.
pub fn row(matrix: &Matrix, row: usize) -> Vec<f32> {
    let float = |dtype: Dtype, bytes: &[u8], at: usize| match dtype {
        Dtype::Bf16 => bf16::from_le_bytes(bytes[2 * at..][..2].try_into().unwrap()).to_f32(),
        Dtype::F16 => f16::from_le_bytes(bytes[2 * at..][..2].try_into().unwrap()).to_f32(),
        _ => f32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap()),
    };
    let value = |col: usize| match &matrix.data {
        MatrixData::Plain { dtype, values } => float(*dtype, values, row * matrix.cols + col),
        MatrixData::Affine { bits, group, codes, scales, biases, scale_dtype } => {
            let at = row * matrix.cols + col;
            let word = u32::from_le_bytes(codes[at * bits / 32 * 4..][..4].try_into().unwrap());
            let code = word >> (at * bits % 32) & ((1 << bits) - 1);
            float(*scale_dtype, scales, at / group) * code as f32 + float(*scale_dtype, biases, at / group)
        }
    };
    (0..matrix.cols).map(value).collect()
}

pub fn expert(experts: &Experts, expert: usize) -> Vec<f32> {
    let first = experts.first_row + expert * experts.stride;
    (first..first + experts.rows).flat_map(|at| row(&experts.data, at)).collect()
}

/// Embedding, head and final norm; then per layer the norms and the router, the mixer, the experts, the
/// shared expert.
pub fn values(weights: &Weights) -> Vec<Vec<f32>> {
    let rows = |matrix: &Matrix| (0..matrix.rows).flat_map(|at| row(matrix, at)).collect::<Vec<_>>();
    let mut all = vec![rows(&weights.embedding), rows(&weights.head), weights.norm.clone()];
    for layer in &weights.layers {
        all.extend([layer.mixer_norm.clone(), layer.experts_norm.clone(), rows(&layer.router)]);
        match &layer.mixer {
            Mixer::Delta(delta) => {
                all.extend([&delta.qkv, &delta.z, &delta.b, &delta.a, &delta.out].map(rows));
                all.extend([&delta.conv, &delta.decay_rate, &delta.dt_bias, &delta.norm].map(Vec::clone));
            }
            Mixer::Attention(attention) => {
                all.extend([&attention.q, &attention.k, &attention.v, &attention.out].map(rows));
                all.extend([attention.q_norm.clone(), attention.k_norm.clone()]);
            }
        }
        for experts in [&layer.gate, &layer.up, &layer.down] {
            all.extend((0..experts.experts).map(|at| expert(experts, at)));
        }
        let shared = &layer.shared;
        all.extend([&shared.gate, &shared.up, &shared.down, &shared.route].map(rows));
    }
    all
}
