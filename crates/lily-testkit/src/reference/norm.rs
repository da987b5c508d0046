//! The three normalisations of the model.

use super::silu;

/// `x * gain / sqrt(mean(x^2) + eps)` for each row of `x [rows, gain.len()]`.
///
/// `gain` is the whole factor. Checkpoints in the Hugging Face layout store `w` with gain `1 + w`; the loader adds the one.
pub fn rms_norm(x: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(x.len() % gain.len(), 0, "rms_norm: {} values are not rows of {}", x.len(), gain.len());
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(gain.len()) {
        let mean_square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean_square + eps).sqrt();
        out.extend(row.iter().zip(gain).map(|(v, g)| v * scale * g));
    }
    out
}

/// The output norm of Gated DeltaNet: `rms_norm(x) * silu(z)`, norm before gate, `x` and `z [rows, gain.len()]`.
///
/// `gain` is stored plain in every layout (never `1 + w`).
pub fn gated_rms_norm(x: &[f64], z: &[f64], gain: &[f64], eps: f64) -> Vec<f64> {
    assert_eq!(x.len(), z.len(), "gated_rms_norm: x and z differ in length");
    rms_norm(x, gain, eps).iter().zip(z).map(|(v, &z)| v * silu(z)).collect()
}

/// `x / sqrt(sum(x^2) + 1e-6)` for each row of `x [rows, dim]`: the sum, not the mean, and this fixed epsilon.
pub fn l2_norm(x: &[f64], dim: usize) -> Vec<f64> {
    assert_eq!(x.len() % dim, 0, "l2_norm: {} values are not rows of {dim}", x.len());
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(dim) {
        let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
        out.extend(row.iter().map(|v| v * scale));
    }
    out
}
