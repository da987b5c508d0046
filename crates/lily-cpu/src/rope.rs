//! Rotary embedding: angles once per pass, rotation of a head's leading dimensions.

/// Cosines and sines of the staged rows, one pair of rows `[rotary_dim / 2]` per position.
pub(crate) struct RopeTable {
    /// `theta^(-2d / rotary_dim)`, rounded to f32 as the model was trained with.
    frequencies: Vec<f32>,
    /// `[rows, cos | sin]`
    values: Vec<f32>,
}

impl RopeTable {
    pub fn new(rotary_dim: usize, theta: f64, rows_max: usize) -> Self {
        let half = rotary_dim / 2;
        let frequency = |d: usize| theta.powf(-2.0 * d as f64 / rotary_dim as f64) as f32;
        RopeTable { frequencies: (0..half).map(frequency).collect(), values: vec![0.0; rows_max * 2 * half] }
    }

    /// Computes the angles of `row`, which stands at `position`. The product is rounded to f32, as in the reference
    /// implementations; sine and cosine of it are computed in f64, since angles reach 262144.
    pub fn set(&mut self, row: usize, position: usize) {
        let half = self.frequencies.len();
        let (cos, sin) = self.values[row * 2 * half..(row + 1) * 2 * half].split_at_mut(half);
        for (d, frequency) in self.frequencies.iter().enumerate() {
            let angle = f64::from(position as f32 * frequency);
            cos[d] = angle.cos() as f32;
            sin[d] = angle.sin() as f32;
        }
    }

    /// Cosines and sines of a row.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        self.values[row * 2 * half..(row + 1) * 2 * half].split_at(half)
    }
}

/// Rotates the pairs `(d, d + rotary_dim / 2)` of one head.
#[inline(always)]
pub(crate) fn rotate(head: &mut [f32], (cos, sin): (&[f32], &[f32])) {
    let half = cos.len();
    let (low, rest) = head.split_at_mut(half);
    for (((low, high), cos), sin) in low.iter_mut().zip(&mut rest[..half]).zip(cos).zip(sin) {
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_are_accurate_to_the_longest_context() {
        let (rotary_dim, theta) = (64, 1e7);
        let mut table = RopeTable::new(rotary_dim, theta, 1);
        for position in [0, 1, 255, 256, 4097, 131_071, 262_143] {
            table.set(0, position);
            let (cos, sin) = table.row(0);
            for d in 0..rotary_dim / 2 {
                // The exact angle, and what rounding the frequency and the product to f32 may do to it.
                let angle = position as f64 * theta.powf(-2.0 * d as f64 / rotary_dim as f64);
                let tolerance = 6e-8 + 1.2e-7 * angle;
                assert!((f64::from(cos[d]) - angle.cos()).abs() <= tolerance, "cos of pair {d} at {position}");
                assert!((f64::from(sin[d]) - angle.sin()).abs() <= tolerance, "sin of pair {d} at {position}");
                assert!((cos[d] * cos[d] + sin[d] * sin[d] - 1.0).abs() < 2e-7);
            }
        }
    }
}
