//! Rotary position embedding over the first part of each head.

/// Rotates the first `rotary_dim` values of every head, rotate-half style: value `d` pairs with `d + rotary_dim / 2`.
///
/// `x [tokens, heads, head_dim]` with `positions [tokens]`; the angle of pair `d` is `position * theta^(-2d / rotary_dim)`.
/// The angle is exact to f64 here. An engine that forms it in f32, as transformers does, errs by about 6e-8 of the angle:
/// nothing at a few thousand tokens, up to 1e-2 radians at position 262144.
///
/// For text, the interleaved multi-axis rotation of the architecture is exactly this, as all its axes carry the same position.
pub fn rope(x: &[f64], positions: &[usize], head_dim: usize, rotary_dim: usize, theta: f64) -> Vec<f64> {
    assert!(rotary_dim <= head_dim && rotary_dim.is_multiple_of(2), "rope: rotary_dim {rotary_dim} of {head_dim}");
    assert_eq!(x.len() % (positions.len().max(1) * head_dim), 0, "rope: x is not [tokens, heads, {head_dim}]");
    let half = rotary_dim / 2;
    let mut out = x.to_vec();
    if positions.is_empty() {
        return out;
    }
    for (row, &position) in out.chunks_exact_mut(x.len() / positions.len()).zip(positions) {
        for head in row.chunks_exact_mut(head_dim) {
            for d in 0..half {
                let angle = position as f64 * theta.powf(-2.0 * d as f64 / rotary_dim as f64);
                let (sin, cos) = angle.sin_cos();
                let (low, high) = (head[d], head[d + half]);
                head[d] = low * cos - high * sin;
                head[d + half] = high * cos + low * sin;
            }
        }
    }
    out
}
