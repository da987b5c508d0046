//! From a request's sampling parameters and history to the [`Selection`] of its next token, and from a
//! row of logits to the log-probabilities that it reports.

use std::collections::BTreeMap;

use lily_model::Selection;

use crate::draw::Draws;
use crate::{EngineError, Logprobs, Sampling};

/// Positions that the repetition penalty looks back.
const REPETITION_WINDOW: usize = 64;

/// A logit is moved by no more than this: enough to ban or force a token, and still finite.
const BIAS_MAX: f32 = 1e6;

/// Reported for a token whose probability is zero or not a number: JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// The sampling state of one request.
pub(crate) struct Sampler {
    sampling: Sampling,
    draws: Draws,
    /// Occurrences of each generated token.
    counts: BTreeMap<u32, u32>,
    generated: usize,
}

impl Sampler {
    pub fn new(sampling: Sampling) -> Self {
        let draws = sampling.seed.map_or_else(Draws::unseeded, Draws::new);
        Sampler { sampling, draws, counts: BTreeMap::new(), generated: 0 }
    }

    /// How to choose the token that follows `tokens` (prompt and answer so far).
    pub fn selection(&self, tokens: &[u32], allowed: Option<Vec<u32>>) -> Selection {
        let sampling = &self.sampling;
        Selection {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            draw: self.draws.uniform(self.generated),
            repetition_penalty: sampling.repetition_penalty,
            repeated: self.repeated(tokens),
            bias: self.bias(),
            allowed,
        }
    }

    /// Whether selections depend on what was generated.
    pub fn looks_back(&self) -> bool {
        let Sampling { presence_penalty, frequency_penalty, repetition_penalty, .. } = &self.sampling;
        *presence_penalty != 0.0 || *frequency_penalty != 0.0 || *repetition_penalty != 1.0
    }

    /// How to choose the token after the next, which is not known yet: for one that does not look back.
    pub fn selection_unseen(&self) -> Selection {
        Selection { draw: self.draws.uniform(self.generated + 1), ..self.selection(&[], None) }
    }

    pub fn accept(&mut self, token: u32) {
        *self.counts.entry(token).or_default() += 1;
        self.generated += 1;
    }

    fn repeated(&self, tokens: &[u32]) -> Vec<u32> {
        if self.sampling.repetition_penalty == 1.0 {
            return Vec::new();
        }
        let mut window = tokens[tokens.len().saturating_sub(REPETITION_WINDOW)..].to_vec();
        window.sort_unstable();
        window.dedup();
        window
    }

    /// Logit bias and the penalties on generated tokens, one entry a token, ascending.
    fn bias(&self) -> Vec<(u32, f32)> {
        let Sampling { presence_penalty, frequency_penalty, logit_bias, .. } = &self.sampling;
        let mut bias: BTreeMap<u32, f32> = BTreeMap::new();
        for &(token, value) in logit_bias {
            *bias.entry(token).or_default() += value;
        }
        if *presence_penalty != 0.0 || *frequency_penalty != 0.0 {
            for (&token, &count) in &self.counts {
                *bias.entry(token).or_default() -= presence_penalty + frequency_penalty * count as f32;
            }
        }
        bias.into_iter().map(|(token, value)| (token, value.clamp(-BIAS_MAX, BIAS_MAX))).collect()
    }
}

/// Refuses parameters without a meaning, naming the field.
pub(crate) fn check(sampling: &Sampling, vocab: usize) -> Result<(), EngineError> {
    let refuse = |field, expected: &str, found: String| Err(EngineError::Sampling { field, expected: expected.into(), found });
    let in_range = |field, value: f32, low: f32, high: f32, expected: &str| {
        if value.is_finite() && (low..=high).contains(&value) { Ok(()) } else { refuse(field, expected, value.to_string()) }
    };
    in_range("temperature", sampling.temperature, 0.0, f32::MAX, "a number of at least 0")?;
    in_range("top_p", sampling.top_p, 0.0, 1.0, "a number from 0 to 1")?;
    in_range("min_p", sampling.min_p, 0.0, 1.0, "a number from 0 to 1")?;
    in_range("presence_penalty", sampling.presence_penalty, f32::MIN, f32::MAX, "a finite number")?;
    in_range("frequency_penalty", sampling.frequency_penalty, f32::MIN, f32::MAX, "a finite number")?;
    in_range("repetition_penalty", sampling.repetition_penalty, f32::MIN_POSITIVE, f32::MAX, "a number above 0")?;
    for &(token, value) in &sampling.logit_bias {
        if token as usize >= vocab {
            return refuse("logit_bias", &format!("tokens below {vocab}"), format!("token {token}"));
        }
        if value.is_nan() {
            return refuse("logit_bias", "numbers", format!("NaN for token {token}"));
        }
    }
    Ok(())
}

/// Log-softmax of a row of logits, at the chosen token and at the `top` most probable ones.
pub(crate) fn logprobs(logits: &[f32], chosen: u32, top: usize) -> Logprobs {
    let value = |token: u32| {
        let logit = logits[token as usize];
        if logit.is_nan() { f64::NEG_INFINITY } else { logit as f64 }
    };
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let largest = order.iter().map(|&token| value(token)).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = order.iter().map(|&token| (value(token) - largest).exp()).sum();
    let logprob = |token: u32| {
        let logprob = value(token) - largest - total.ln();
        if logprob >= LOGPROB_MIN as f64 { logprob as f32 } else { LOGPROB_MIN }
    };

    let top = top.min(order.len());
    let descending = |a: &u32, b: &u32| value(*b).total_cmp(&value(*a)).then(a.cmp(b));
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, descending);
    }
    order.truncate(top);
    order.sort_unstable_by(descending);
    Logprobs { chosen: logprob(chosen), top: order.into_iter().map(|token| (token, logprob(token))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_and_bias_become_one_entry_a_token() {
        let mut sampler = Sampler::new(Sampling {
            presence_penalty: 1.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(3, 2.0), (9, f32::NEG_INFINITY), (3, 1.0)],
            ..Sampling::default()
        });
        for token in [3, 5, 3] {
            sampler.accept(token);
        }
        assert_eq!(sampler.selection(&[1, 3, 5, 3], None).bias, [(3, 3.0 - 1.5 - 0.5), (5, -1.75), (9, -BIAS_MAX)]);
    }

    #[test]
    fn repetition_looks_at_the_last_64_positions_once_each() {
        let sampler = Sampler::new(Sampling { repetition_penalty: 1.1, ..Sampling::default() });
        let tokens: Vec<u32> = [7].into_iter().chain((0..64).map(|at| 10 + at % 3)).collect();
        assert_eq!(sampler.selection(&tokens, None).repeated, [10, 11, 12]);
        assert!(Sampler::new(Sampling::default()).selection(&tokens, None).repeated.is_empty());
    }

    #[test]
    fn draws_follow_the_number_of_generated_tokens() {
        let seeded = || Sampler::new(Sampling { seed: Some(11), temperature: 1.0, ..Sampling::default() });
        let (mut one, two) = (seeded(), seeded());
        assert_eq!(one.selection(&[1], None).draw, two.selection(&[1, 2, 3], None).draw);
        one.accept(4);
        assert_ne!(one.selection(&[1], None).draw, two.selection(&[1], None).draw);
    }

    #[test]
    fn the_token_after_the_next_can_be_chosen_unseen_without_penalties() {
        let seeded = || Sampling { seed: Some(5), temperature: 0.7, top_k: 9, logit_bias: vec![(3, 1.5)], ..Sampling::default() };
        let mut sampler = Sampler::new(seeded());
        let unseen = sampler.selection_unseen();
        assert!(!sampler.looks_back() && unseen != sampler.selection(&[1], None));
        sampler.accept(8);
        assert_eq!(unseen, sampler.selection(&[1, 8], None));
        for penalised in [
            Sampling { presence_penalty: 0.1, ..seeded() },
            Sampling { frequency_penalty: -0.1, ..seeded() },
            Sampling { repetition_penalty: 1.1, ..seeded() },
        ] {
            assert!(Sampler::new(penalised).looks_back());
        }
    }

    #[test]
    fn logprobs_sum_to_one_and_survive_nan() {
        let logits = [1.0, f32::NAN, 3.0, f32::NEG_INFINITY, 3.0, -2.0];
        let found = logprobs(&logits, 0, 6);
        assert_eq!(found.top.iter().map(|entry| entry.0).collect::<Vec<_>>(), [2, 4, 0, 5, 1, 3]);
        let total: f64 = found.top.iter().map(|entry| (entry.1 as f64).exp()).sum();
        assert!((total - 1.0).abs() < 1e-6, "{total}");
        assert_eq!(found.chosen, found.top[2].1);
        assert_eq!(found.top[4], (1, LOGPROB_MIN));
        assert_eq!(logprobs(&[f32::NAN; 3], 1, 1), Logprobs { chosen: LOGPROB_MIN, top: vec![(0, LOGPROB_MIN)] });
        assert!(logprobs(&logits, 5, 0).top.is_empty());
    }

    #[test]
    fn meaningless_parameters_are_named() {
        let cases = [
            (Sampling { temperature: -0.5, ..Sampling::default() }, "temperature: expected a number of at least 0, found -0.5"),
            (Sampling { temperature: f32::NAN, ..Sampling::default() }, "temperature: expected a number of at least 0, found NaN"),
            (Sampling { top_p: 1.5, ..Sampling::default() }, "top_p: expected a number from 0 to 1, found 1.5"),
            (Sampling { repetition_penalty: 0.0, ..Sampling::default() }, "repetition_penalty: expected a number above 0, found 0"),
            (Sampling { logit_bias: vec![(50, 1.0)], ..Sampling::default() }, "logit_bias: expected tokens below 50, found token 50"),
        ];
        for (sampling, message) in cases {
            assert_eq!(check(&sampling, 50).unwrap_err().to_string(), message);
        }
        check(&Sampling::default(), 50).unwrap();
    }
}
