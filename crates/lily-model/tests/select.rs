//! Choosing a token, against a plain reference that sorts everything.

use lily_model::{Selection, select_token};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}

/// The definition, step by step, each on a whole sorted distribution.
fn reference(logits: &[f32], selection: &Selection) -> u32 {
    let mut logits = logits.to_vec();
    for &token in &selection.repeated {
        let logit = &mut logits[token as usize];
        *logit = if *logit > 0.0 { *logit / selection.repetition_penalty } else { *logit * selection.repetition_penalty };
    }
    for &(token, bias) in &selection.bias {
        logits[token as usize] += bias;
    }
    let allowed = |token: usize| selection.allowed.as_ref().is_none_or(|bits| bits[token / 32] >> (token % 32) & 1 == 1);
    let mut order: Vec<usize> = (0..logits.len()).filter(|&token| allowed(token)).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    if selection.temperature == 0.0 {
        return order[0] as u32;
    }
    let normalise = |kept: &[(usize, f64)]| -> Vec<(usize, f64)> {
        let sum: f64 = kept.iter().map(|(_, weight)| weight).sum();
        kept.iter().map(|&(token, weight)| (token, weight / sum)).collect()
    };
    let top = logits[order[0]];
    let weight = |token: usize| (((logits[token] - top) / selection.temperature) as f64).exp();
    let mut kept = normalise(&order.iter().map(|&token| (token, weight(token))).collect::<Vec<_>>());
    if selection.top_k > 0 {
        kept.truncate(selection.top_k);
    }
    kept = normalise(&kept);
    let mut sum = 0.0;
    let reached = kept.iter().position(|(_, probability)| {
        sum += probability;
        sum >= selection.top_p as f64
    });
    kept.truncate(reached.map_or(kept.len(), |last| last + 1));
    let most = kept[0].1;
    kept.retain(|(_, probability)| *probability >= selection.min_p as f64 * most);
    let mut passed = 0.0;
    let chosen = normalise(&kept).into_iter().find(|(_, probability)| {
        passed += probability;
        (selection.draw as f64) < passed
    });
    chosen.unwrap_or(*kept.last().unwrap()).0 as u32
}

fn sampled(temperature: f32, draw: f32) -> Selection {
    Selection { temperature, draw, ..Selection::greedy() }
}

#[test]
fn agrees_with_the_reference_on_random_inputs() {
    let mut random = Random(5);
    for case in 0..3000 {
        let vocab = 1 + random.below(400);
        // Coarse values in a third of the cases: many ties.
        let coarse = case % 3 == 0;
        let logits: Vec<f32> =
            (0..vocab).map(|_| (random.uniform() - 0.5) * 20.0).map(|logit| if coarse { logit.round() / 4.0 } else { logit }).collect();
        let some = |random: &mut Random, share: usize| random.below(share) == 0;
        let mut selection = sampled([0.0, 0.3, 1.0, 2.0][random.below(4)], random.uniform());
        selection.top_k = [0, 1, 5, 20, 1000][random.below(5)];
        selection.top_p = [1.0, 0.95, 0.5, 0.01][random.below(4)];
        selection.min_p = [0.0, 0.0, 0.05, 0.9][random.below(4)];
        if some(&mut random, 2) {
            selection.repetition_penalty = 1.3;
            selection.repeated = (0..vocab as u32).filter(|_| some(&mut random, 5)).collect();
        }
        if some(&mut random, 2) {
            selection.bias = (0..10).map(|_| (random.below(vocab) as u32, (random.uniform() - 0.5) * 6.0)).collect();
        }
        if some(&mut random, 3) {
            let mut bits: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.next() as u32).collect();
            let always = random.below(vocab);
            bits[always / 32] |= 1 << (always % 32);
            selection.allowed = Some(bits);
        }
        assert_eq!(select_token(&logits, &selection), reference(&logits, &selection), "case {case}: {selection:?}");
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    assert_eq!(select_token(&[1.0, 3.0, 3.0, 2.0], &Selection::greedy()), 1);
    assert_eq!(select_token(&[0.0, -0.0], &Selection::greedy()), 0);
    assert_eq!(select_token(&[-0.0, 0.0], &Selection::greedy()), 0);
    assert_eq!(select_token(&[-0.0, 0.0], &Selection { top_k: 1, ..sampled(1.0, 0.9) }), 0);
    assert_eq!(select_token(&[7.0; 70], &Selection { top_k: 2, ..sampled(1.0, 0.9) }), 1);
}

#[test]
fn extreme_draws_stay_in_range() {
    let logits: Vec<f32> = (0..1000).map(|token| -(token as f32) / 100.0).collect();
    let below_one = 1.0f32.next_down();
    assert_eq!(select_token(&logits, &sampled(1.0, 0.0)), 0);
    // Token 999 alone has more probability than what the largest draw leaves out.
    assert_eq!(select_token(&logits, &sampled(1.0, below_one)), 999);
    assert_eq!(select_token(&logits, &Selection { top_k: 20, ..sampled(1.0, below_one) }), 19);
    assert_eq!(select_token(&logits, &Selection { top_p: 0.0, ..sampled(1.0, below_one) }), 0);
    assert_eq!(select_token(&logits, &Selection { min_p: 1.0, ..sampled(1.0, below_one) }), 0);
    // Nearly all the mass on one token, and a temperature that makes all others underflow.
    assert_eq!(select_token(&logits, &sampled(1e-30, below_one)), 0);
}

#[test]
fn values_that_are_no_numbers() {
    let nan = f32::NAN;
    let infinite = f32::INFINITY;
    for temperature in [0.0, 1.0, nan, -1.0] {
        for draw in [0.0, 0.5, 1.0, nan] {
            let selection = sampled(temperature, draw);
            assert_eq!(select_token(&[nan, 1.0, nan, -infinite], &selection), 1);
            assert_eq!(select_token(&[nan, -infinite, nan], &selection), 0, "nothing to choose from: the lowest");
            assert_eq!(select_token(&[0.0, infinite, 5.0], &selection), 1);
            let masked = Selection { allowed: Some(vec![0b100]), ..selection };
            assert_eq!(select_token(&[3.0, 2.0, nan], &masked), 2, "the only allowed one");
        }
    }
    let banned = Selection { bias: vec![(1, -infinite)], ..sampled(1.0, 0.99) };
    assert_eq!(select_token(&[0.0, 90.0], &banned), 0);
}

#[test]
fn out_of_range_tokens_are_passed_over() {
    let mut selection = sampled(1.0, 0.5);
    selection.bias = vec![(9, 5.0)];
    selection.repeated = vec![8];
    selection.repetition_penalty = 2.0;
    assert_eq!(select_token(&[0.0, 20.0], &selection), 1);
    // Bits for the first 32 tokens only: the others are not allowed.
    let mut logits = vec![0.0; 40];
    logits[39] = 9.0;
    assert_eq!(select_token(&logits, &Selection { allowed: Some(vec![1 << 5]), ..Selection::greedy() }), 5);
}

#[test]
fn draws_follow_the_distribution() {
    let logits: [f32; 4] = [0.0, 1.0, 2.0, -1.0];
    let draws = 20_000;
    let mut counts = [0; 4];
    let mut random = Random(3);
    for _ in 0..draws {
        counts[select_token(&logits, &sampled(0.8, random.uniform())) as usize] += 1;
    }
    let weights: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) / 0.8).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (count, weight) in counts.iter().zip(&weights) {
        let expected = weight / total;
        // Four standard deviations of a fixed sequence: passes or fails for good.
        let deviation = (expected * (1.0 - expected) / draws as f64).sqrt();
        let found = f64::from(*count) / draws as f64;
        assert!((found - expected).abs() < 4.0 * deviation, "{found}, expected {expected}");
    }
}
