//! The exponential, without branches or calls, so that loops over it become vector code.

/// `e^x`, relative error below 2e-7; 0 below about -87, infinity above 88.37.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // e^x = 2^n e^r with |r| <= ln(2)/2. The constant rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -87.3 { -87.3 } else { x };
    let clamped = if clamped > 88.37 { 88.37 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23);
    let value = p * power;
    let value = if x < -87.3 { 0.0 } else { value };
    if x > 88.37 { f32::INFINITY } else { value }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    #[test]
    fn exp_is_right_everywhere() {
        for step in -90_000..90_000 {
            let x = step as f32 * 1e-3;
            let (ours, exact) = (f64::from(super::exp(x)), f64::from(x).exp());
            if x < -87.29 {
                assert!(ours < 2e-38, "{x}");
            } else if x > 88.36 {
                // Around the limit the value or infinity.
                assert!(ours > 2e38, "{x}");
            } else {
                assert!((ours / exact - 1.0).abs() < 2e-7, "exp({x}) = {ours}, expected {exact}");
            }
        }
        assert!(super::exp(f32::NAN).is_nan());
        assert_eq!(super::silu(-200.0), 0.0);
        assert_eq!(super::silu(200.0), 200.0);
    }
}
