//! Each reference step against values worked out by hand or against an identity it must obey.

use lily_testkit::generate::{Distribution, Float, Rng, random_affine};
use lily_testkit::golden::{assert_close, compare};
use lily_testkit::reference::*;

fn draw(rng: &mut Rng, length: usize) -> Vec<f64> {
    (0..length).map(|_| rng.gaussian()).collect()
}

#[test]
fn rms_norm_of_a_three_four_row() {
    let out = rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0);
    let root = 12.5f64.sqrt();
    assert_close("rms", &out, &[3.0 / root, 8.0 / root], 1e-15);
    assert_eq!(rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-6), [0.0, 0.0]);
}

#[test]
fn l2_norm_divides_by_the_sum_not_the_mean() {
    assert_close("l2", &l2_norm(&[3.0, 4.0, 6.0, 8.0], 2), &[0.6, 0.8, 0.6, 0.8], 1e-6);
}

#[test]
fn gated_norm_gates_after_the_norm() {
    let out = gated_rms_norm(&[2.0, 2.0], &[0.0, 1.0], &[1.0, 3.0], 0.0);
    assert_close("gated", &out, &[0.0, 3.0 / (1.0 + (-1f64).exp())], 1e-15);
}

#[test]
fn dequantise_takes_the_low_bits_first() {
    let affine = |bits, words: Vec<u32>| {
        let group = 32;
        Affine { bits, group, inputs: 32, words, scales: vec![-0.5], biases: vec![2.0] }
    };
    let four = dequantise(&affine(4, vec![0x7654_3210, 0xfedc_ba98, 0, 0]));
    assert_eq!(four.values[..4], [2.0, 1.5, 1.0, 0.5]);
    assert_eq!(four.values[15], 2.0 - 7.5);
    let eight = dequantise(&affine(8, vec![0xff00_0201, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(eight.values[..4], [1.5, 1.0, 2.0, 2.0 - 127.5]);
}

#[test]
fn random_matrices_are_exact_in_their_float_type_and_have_both_signs() {
    for float in [Float::Bf16, Float::F16, Float::F32] {
        let drawn = random_affine(&mut Rng::new(3), [24, 128], [4, 32], float);
        assert!(drawn.scales.iter().chain(&drawn.biases).all(|&v| float.round(v) == v));
        assert!(drawn.scales.iter().any(|&s| s < 0.0) && drawn.scales.iter().any(|&s| s > 0.0));
        let values = dequantise(&drawn).values;
        let square = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        assert!((0.5..2.0).contains(&(square * 128.0)), "variance {square} is not about 1/128");
    }
}

#[test]
fn affine_product_equals_the_grouped_identity() {
    let mut rng = Rng::new(4);
    for (bits, group) in [(4, 32), (4, 64), (8, 128)] {
        let quantised = random_affine(&mut rng, [5, 256], [bits, group], Float::Bf16);
        let x: Vec<f64> = Distribution::Gaussian.draw(&mut rng, 1, 256).iter().map(|&v| f64::from(v)).collect();
        let unscaled = dequantise(&Affine { scales: vec![1.0; 5 * 256 / group], biases: vec![0.0; 5 * 256 / group], ..quantised.clone() });
        let mut expected = vec![0.0; 5];
        for (row, sum) in expected.iter_mut().enumerate() {
            for g in 0..256 / group {
                let part = g * group..(g + 1) * group;
                let codes: f64 = unscaled.row(row)[part.clone()].iter().zip(&x[part.clone()]).map(|(q, x)| q * x).sum();
                let at = row * 256 / group + g;
                *sum += quantised.scales[at] * codes + quantised.biases[at] * x[part].iter().sum::<f64>();
            }
        }
        assert_close("product", &dequantise(&quantised).apply(&x), &expected, 1e-13);
    }
}

#[test]
fn rope_is_a_rotation_that_depends_on_distance_only() {
    let mut rng = Rng::new(5);
    let (query, key) = (draw(&mut rng, 8), draw(&mut rng, 8));
    let score = |p: usize, q: usize| -> f64 {
        let rotate = |x: &[f64], at| rope(x, &[at], 8, 4, 100.0);
        rotate(&query, p).iter().zip(rotate(&key, q)).map(|(a, b)| a * b).sum()
    };
    assert!((score(7, 3) - score(104, 100)).abs() < 1e-12);
    assert!((score(7, 3) - score(8, 3)).abs() > 1e-3);
    // Pairs are (d, d + half): position 1 turns (1, 0) of pair 0 by one radian; dims past rotary_dim stay.
    let turned = rope(&[1.0, 0.0, 0.0, 0.0, 5.0], &[1], 5, 4, 100.0);
    assert_close("turned", &turned, &[1f64.cos(), 0.0, 1f64.sin(), 0.0, 5.0], 1e-15);
}

#[test]
fn attention_of_equal_keys_is_the_mean_of_what_it_may_see() {
    let dims = AttentionDims { heads_q: 4, heads_kv: 2, head_dim: 1, rotary_dim: 0, rope_theta: 1.0 };
    let cache = KvCache { keys: vec![1.0; 6], values: vec![1.0, 10.0, 2.0, 20.0, 6.0, 60.0] };
    let out = attention(&[0.3; 8], &cache, &dims); // two queries over three cached rows
    assert_close("means", &out, &[1.5, 1.5, 15.0, 15.0, 3.0, 3.0, 30.0, 30.0], 1e-15);
}

#[test]
fn query_and_gate_interleave_per_head() {
    let (query, gate) = split_query_gate(&[1.0, 2.0, -1.0, -2.0, 3.0, 4.0, -3.0, -4.0], 2);
    assert_eq!((query, gate), (vec![1.0, 2.0, 3.0, 4.0], vec![-1.0, -2.0, -3.0, -4.0]));
}

#[test]
fn convolution_keeps_raw_rows_and_applies_the_last_tap_to_the_current_row() {
    let mut state = vec![0.0; 3];
    let weights = [1000.0, 100.0, 10.0, 1.0];
    let first = causal_conv(&[1.0, 2.0], &weights, &mut state, 4);
    assert_close("first", &first, &[silu(1.0), silu(12.0)], 1e-15);
    assert_eq!(state, [0.0, 1.0, 2.0]);
    assert_close("next", &causal_conv(&[3.0], &weights, &mut state, 4), &[silu(123.0)], 1e-15);
}

#[test]
fn delta_update_recalls_what_it_stored() {
    let dims = DeltaDims { heads_k: 1, heads_v: 2, dim_k: 2, dim_v: 2, conv_width: 4 };
    let mut memory = vec![0.0; 8];
    let token = |key: [f64; 2], query: [f64; 2], value: [f64; 4], decay, beta| DeltaTokens {
        query: query.to_vec(),
        key: key.to_vec(),
        value: value.to_vec(),
        decay: vec![decay; 2],
        beta: vec![beta; 2],
    };
    let stored = [5.0, 6.0, 7.0, 8.0];
    assert_eq!(delta_update(&token([1.0, 0.0], [1.0, 0.0], stored, 1.0, 1.0), &mut memory, &dims), stored);
    // Another key, then the first again: nothing is lost, and decay halves what is recalled.
    let other = [1.0, 1.0, 1.0, 1.0];
    assert_eq!(delta_update(&token([0.0, 1.0], [1.0, 0.0], other, 1.0, 1.0), &mut memory, &dims), stored);
    let half = delta_update(&token([1.0, 0.0], [1.0, 0.0], [0.0; 4], 0.5, 0.0), &mut memory, &dims);
    assert_eq!(half, [2.5, 3.0, 3.5, 4.0]);
    // Writing the same key replaces: the delta rule, not a sum.
    assert_eq!(delta_update(&token([1.0, 0.0], [1.0, 0.0], other, 1.0, 1.0), &mut memory, &dims), other);
}

#[test]
fn decay_and_beta_stay_in_their_range_at_the_extremes() {
    let out = decay(&[0.0, -800.0, 800.0], &[0.0; 3], &[0.0; 3]);
    assert_close("decay", &out, &[0.5, 1.0, 0.0], 1e-12);
    assert_eq!(beta(&[0.0, 1000.0, -1000.0]), [0.5, 1.0, 0.0]);
}

#[test]
fn ties_in_the_router_go_to_the_lowest_id() {
    let dims = MoeDims { experts: 4, experts_per_token: 2, expert_width: 1, shared_width: 1, normalise_top: true };
    let routes = route(&[1.0, 3.0, 3.0, 3.0, 2.0, 1.0, 0.0, 3.0], &dims);
    assert_eq!((routes[0].experts.as_slice(), routes[0].margin), ([1, 2].as_slice(), 0.0));
    assert_eq!(routes[0].weights, [0.5, 0.5]);
    assert_eq!(routes[1].experts, [3, 0]);
    let e = 1f64.exp();
    assert_close("weights", &routes[1].weights, &[e / (e + 1.0), 1.0 / (e + 1.0)], 1e-15);
}

#[test]
fn unnormalised_routes_keep_their_probabilities() {
    let dims = MoeDims { experts: 2, experts_per_token: 1, expert_width: 1, shared_width: 1, normalise_top: false };
    assert_close("p", &route(&[0.0, 0.0], &dims)[0].weights, &[0.5], 1e-15);
}

#[test]
fn moe_is_chosen_experts_plus_gated_shared_expert() {
    let expert =
        |scale: f64| Expert { gate: Matrix::new(1, 1, vec![1.0]), up: Matrix::new(1, 1, vec![1.0]), down: Matrix::new(1, 1, vec![scale]) };
    let weights = MoeWeights {
        router: Matrix::new(3, 1, vec![0.0, 1.0, -1.0]),
        experts: vec![expert(1.0), expert(10.0), expert(100.0)],
        shared_gate: Matrix::new(1, 1, vec![0.0]),
        shared: expert(1000.0),
    };
    let dims = MoeDims { experts: 3, experts_per_token: 2, expert_width: 1, shared_width: 1, normalise_top: true };
    let x = 2.0;
    let unit = silu(x) * x;
    let share = sigmoid(x); // softmax over logits 0 and x
    let expected = unit * (10.0 * share + 1.0 * (1.0 - share) + 0.5 * 1000.0);
    assert_close("moe", &moe(&[x], &weights, &dims), &[expected], 1e-14);
}

#[test]
fn comparison_names_the_worst_element_and_never_passes_a_nan() {
    let off = compare("logits", &[1.0f32, 2.0, 4.5], &[1.0f64, 2.0, 4.0]);
    assert_eq!((off.worst, off.max_abs), (2, 0.5));
    assert!((off.relative - 0.5 / 21f64.sqrt()).abs() < 1e-12);
    assert_eq!(compare("nan", &[f32::NAN, 1.0], &[1.0f64, 1.0]).relative, f64::INFINITY);
    assert_eq!(compare("zeros", &[0.0f32; 2], &[0.0f64; 2]).relative, 0.0);
    assert_eq!(compare("not zeros", &[0.0f32, 1e-9], &[0.0f64; 2]).relative, f64::INFINITY);
}

#[test]
#[should_panic(expected = "2 of 4 elements were never written, the first at 1")]
fn poison_shows() {
    let mut out = lily_testkit::generate::poisoned_f32(4);
    (out[0], out[2]) = (1.0, f32::NAN);
    lily_testkit::generate::assert_written("out", &out);
}
