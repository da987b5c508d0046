//! What is counted while predictions come, position by position.

use lily_model::{Selection, select_token};
use serde_json::{Value, json};

/// Sums over positions.
#[derive(Debug, Default)]
pub struct Tally {
    /// Of our predictions.
    pub text: Surprise,
    /// Of ours and theirs, at positions where the reference says how probable the next token was.
    shared: [Surprise; 2],
    /// Squares of the differences of ours and theirs.
    square_sum: f64,
    /// Positions at which both name a most probable token, and at which it is the same.
    pub choices: (usize, usize),
    pub logits: LogitErrors,
}

/// Negative log-probabilities, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Surprise {
    pub sum: f64,
    pub tokens: usize,
}

impl Surprise {
    pub fn add(&mut self, logprob: f64) {
        self.sum -= logprob;
        self.tokens += 1;
    }

    pub fn perplexity(&self) -> f64 {
        (self.sum / self.tokens as f64).exp()
    }
}

/// How far two engines' logits are apart.
#[derive(Debug, Default)]
pub struct LogitErrors {
    pub positions: usize,
    /// Kullback-Leibler divergence of ours from theirs, in nats.
    pub divergence_sum: f64,
    pub divergence_max: f64,
    pub worst: Option<Worst>,
    square_sum: f64,
    values: usize,
}

/// The largest difference of two logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    pub position: usize,
    pub token: usize,
    pub ours: f32,
    pub theirs: f32,
}

impl Worst {
    pub fn error(&self) -> f32 {
        (self.ours - self.theirs).abs()
    }
}

impl LogitErrors {
    /// Takes in the rows after one position; both are as long as the vocabulary.
    pub fn add(&mut self, position: usize, ours: &[f32], theirs: &[f32]) {
        let (our_norm, their_norm) = (log_norm(ours), log_norm(theirs));
        let mut divergence = 0.0;
        for (token, (&ours, &theirs)) in ours.iter().zip(theirs).enumerate() {
            let their_logprob = f64::from(theirs) - their_norm;
            divergence += their_logprob.exp() * (their_logprob - (f64::from(ours) - our_norm));
            self.square_sum += f64::from(ours - theirs).powi(2);
            if self.worst.is_none_or(|worst| (ours - theirs).abs() > worst.error()) {
                self.worst = Some(Worst { position, token, ours, theirs });
            }
        }
        self.positions += 1;
        self.values += ours.len();
        self.divergence_sum += divergence;
        self.divergence_max = self.divergence_max.max(divergence);
    }

    pub fn divergence_mean(&self) -> f64 {
        self.divergence_sum / self.positions as f64
    }

    /// Root of the mean square.
    pub fn typical(&self) -> f64 {
        (self.square_sum / self.values as f64).sqrt()
    }
}

impl Tally {
    /// Log-probabilities of one token, by us and by the reference.
    pub fn share(&mut self, ours: f64, theirs: f64) {
        self.shared[0].add(ours);
        self.shared[1].add(theirs);
        self.square_sum += (ours - theirs).powi(2);
    }

    /// What the reference says of the tokens that both were asked for.
    pub fn theirs(&self) -> Surprise {
        self.shared[1]
    }

    /// Our perplexity over theirs, less one.
    pub fn difference(&self) -> f64 {
        let [ours, theirs] = self.shared;
        ours.perplexity() / theirs.perplexity() - 1.0
    }

    /// The standard error of that, if tokens are independent: a text of so many tokens tells no finer.
    pub fn difference_error(&self) -> f64 {
        let [ours, theirs] = self.shared;
        let count = ours.tokens as f64;
        let mean = (ours.sum - theirs.sum) / count;
        ((self.square_sum / count - mean * mean).max(0.0) / count).sqrt()
    }

    pub fn agreement(&self) -> f64 {
        self.choices.1 as f64 / self.choices.0 as f64
    }

    /// The figures; what was not compared is not there.
    pub fn json(&self) -> Value {
        let mut figures = json!({ "perplexity": self.text.perplexity(), "scored": self.text.tokens });
        let [ours, theirs] = self.shared;
        if theirs.tokens > 0 {
            figures["reference_perplexity"] = json!(theirs.perplexity());
            figures["perplexity_difference"] = json!(self.difference());
            figures["perplexity_difference_error"] = json!(self.difference_error());
            figures["reference_scored"] = json!(ours.tokens);
        }
        if self.choices.0 > 0 {
            figures["top1_agreement"] = json!(self.agreement());
            figures["top1_positions"] = json!(self.choices.0);
        }
        if let Some(worst) = self.logits.worst {
            figures["logits"] = json!({
                "positions": self.logits.positions,
                "kl_mean": self.logits.divergence_mean(),
                "kl_max": self.logits.divergence_max,
                "error_rms": self.logits.typical(),
                "error_max": worst.error(),
                "worst": { "position": worst.position, "token": worst.token, "expected": worst.theirs, "found": worst.ours },
            });
        }
        figures
    }
}

/// The logarithm of the sum of exponentials: a logit less this is a log-probability.
pub fn log_norm(logits: &[f32]) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    top + logits.iter().map(|&logit| (f64::from(logit) - top).exp()).sum::<f64>().ln()
}

/// The most probable token, the lowest on ties.
pub fn largest(logits: &[f32]) -> u32 {
    select_token(logits, &Selection::greedy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_prediction_has_the_perplexity_of_the_vocabulary() {
        let mut surprise = Surprise::default();
        for _ in 0..3 {
            surprise.add(1.5 - log_norm(&[1.5; 40]));
        }
        assert!((surprise.perplexity() - 40.0).abs() < 1e-9);
    }

    #[test]
    fn divergence_is_that_of_the_formula_and_a_shift_is_none() {
        let (ours, theirs) = ([0.0, 2f32.ln()], [3f32.ln(), 0.0]); // 1/3, 2/3 and 3/4, 1/4
        let mut errors = LogitErrors::default();
        errors.add(7, &ours, &theirs);
        let expected = 0.75 * (0.75f64 * 3.0).ln() + 0.25 * (0.25f64 * 1.5).ln();
        assert!((errors.divergence_mean() - expected).abs() < 1e-6);
        assert_eq!(errors.worst, Some(Worst { position: 7, token: 0, ours: 0.0, theirs: 3f32.ln() }));
        errors.add(8, &[5.0, 6.0], &[105.0, 106.0]);
        assert!(errors.divergence_sum - expected < 1e-6 && errors.divergence_max - expected < 1e-6);
        assert_eq!(errors.worst.map(|worst| (worst.position, worst.error())), Some((8, 100.0)));
    }

    #[test]
    fn large_logits_do_not_overflow_and_ties_go_to_the_lowest() {
        assert!((log_norm(&[1000.0, 1000.0]) - (1000.0 + 2f64.ln())).abs() < 1e-9);
        assert_eq!(largest(&[-1.0, 3.0, 3.0]), 1);
    }

    #[test]
    fn figures_name_only_what_was_compared() {
        let mut tally = Tally::default();
        tally.text.add(-1.0);
        assert_eq!(tally.json().as_object().map(|figures| figures.len()), Some(2));
        tally.share(-1.0, -1.1);
        tally.choices = (4, 3);
        let figures = tally.json();
        assert!((figures["perplexity_difference"].as_f64().unwrap() - ((-0.1f64).exp() - 1.0)).abs() < 1e-12);
        assert_eq!(figures["top1_agreement"], 0.75);
    }

    #[test]
    fn the_error_of_a_difference_is_that_of_its_mean() {
        let mut tally = Tally::default();
        for at in 0..400 {
            tally.share(-2.0 + if at % 2 == 0 { 0.1 } else { -0.1 }, -2.0);
        }
        assert!(tally.difference().abs() < 1e-9, "{}", tally.difference());
        assert!((tally.difference_error() - 0.1 / 20.0).abs() < 1e-9, "{}", tally.difference_error());
    }
}
