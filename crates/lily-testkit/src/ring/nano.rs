//! The bundled model: logits, greedy text and perplexity against mlx-lm in f32, and the agreement of two devices.
//!
//! Every check prints what it measured; run the tests with `--nocapture` to see it.

use lily_model::PAGE_TOKENS;

use super::model::check_logits;
use super::rig::{Sequence, largest, open_nano};
use super::{Bound, Subject};
use crate::golden::Golden;

/// Positions that [`agreement`] compares.
const POSITIONS: usize = 192;

/// The logits of every sequence of the golden, row by row, and the greedy continuations.
pub fn check_golden<S: Subject>(subject: &S, tolerance: f64) {
    let golden = Golden::load("lily-nano").expect("the golden loads");
    let mut runner = open_nano(subject);
    let vocab = runner.config.vocab;
    for (index, sequence) in golden.sequences.iter().enumerate() {
        let name = format!("lily-nano {} sequence {index}", subject.label());
        let mut ours = Sequence::start(&mut runner, 1, &[6, 0, 11]);
        let logits = ours.feed(&mut runner, &sequence.tokens, 320);
        let expected = golden.tensor(&format!("sequences.{index}.logits.mlx"));
        let error = check_logits(&name, &logits, (expected, vocab), Bound::EveryRow(tolerance));
        let tokens = ours.greedy(&mut runner, &logits, sequence.mlx.tokens.len());
        let compared = sequence.mlx.assert_followed(&name, &tokens, error);
        println!("{name}: {compared} of {} greedy tokens equal", tokens.len());
    }
}

/// All devices, with the prompt in pieces of all lengths, answer with the same tokens.
pub fn check_same_answers<S: Subject>(subjects: &[S], chunks: &[usize]) {
    const ANSWER: usize = 48;
    let golden = Golden::load("lily-nano").expect("the golden loads");
    let prompt = &golden.sequences[0].tokens;
    let mut expected: Option<Vec<u32>> = None;
    for subject in subjects {
        let mut runner = open_nano(subject);
        for &chunk in chunks {
            let mut ours = Sequence::start(&mut runner, 1, &[6, 0, 11]);
            let logits = ours.feed(&mut runner, prompt, chunk);
            let tokens = ours.greedy(&mut runner, &logits, ANSWER);
            let first = expected.get_or_insert_with(|| tokens.clone());
            assert!(tokens == *first, "{}, chunks of {chunk}: expected {first:?}, found {tokens:?}", subject.label());
        }
    }
}

/// The perplexity of the first `windows_max` windows of both held-out texts, within `tolerance` of mlx-lm's, relative.
pub fn check_perplexity<S: Subject>(subject: &S, windows_max: usize, tolerance: f64) {
    let golden = Golden::load("lily-nano").expect("the golden loads");
    let (mut runner, label) = (open_nano(subject), subject.label());
    for text in &golden.perplexities {
        let (mut ours, mut theirs, mut scored) = (0.0, 0.0, 0);
        for (tokens, nll) in text.tokens.chunks(text.window).zip(&text.nll).take(windows_max) {
            let pages: Vec<u32> = (0..tokens.len().div_ceil(PAGE_TOKENS) as u32).collect();
            let logits = Sequence::start(&mut runner, 0, &pages).feed(&mut runner, tokens, 256);
            ours += negative_log_likelihood(&logits, tokens);
            theirs += nll;
            scored += tokens.len() - 1;
        }
        let difference = ((ours - theirs) / scored as f64).exp() - 1.0;
        let perplexity = (ours / scored as f64).exp();
        println!("{} {label}: perplexity {perplexity:.4} over {scored} tokens, {:+.4} %", text.file, 100.0 * difference);
        assert!(difference.abs() <= tolerance, "{} {label}: perplexity is off by {difference:.2e}", text.file);
    }
}

/// In nats, of all tokens but the first.
fn negative_log_likelihood(logits: &[f32], tokens: &[u32]) -> f64 {
    let vocab = logits.len() / tokens.len();
    let rows = logits.chunks_exact(vocab).zip(&tokens[1..]);
    rows.map(|(row, &next)| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        sum.ln() - f64::from(row[next as usize] - max)
    })
    .sum()
}

/// How two devices agree on the same tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Positions compared.
    pub positions: usize,
    /// Of each device.
    pub perplexities: [f64; 2],
    /// The second perplexity over the first, less one.
    pub difference: f64,
    /// Share of the positions at which both choose the same token.
    pub top1: f64,
}

/// Feeds both devices the same 192 tokens of a held-out text, the first half as one prefill, the second half token by
/// token, and compares what they predict. Prints the figures.
pub fn agreement<A: Subject, B: Subject>(a: &A, b: &B) -> Agreement {
    agreement_over(a, b, POSITIONS)
}

/// The same over the first `positions` tokens.
pub fn agreement_over<A: Subject, B: Subject>(a: &A, b: &B, positions: usize) -> Agreement {
    let golden = Golden::load("lily-nano").expect("the golden loads");
    let tokens = &golden.perplexities[0].tokens[..=positions];
    let (ours, theirs) = (predict(a, tokens), predict(b, tokens));
    let vocab = ours.len() / tokens.len();
    let equal = ours.chunks_exact(vocab).zip(theirs.chunks_exact(vocab)).take(positions).filter(|(a, b)| largest(a) == largest(b)).count();
    let perplexities = [&ours, &theirs].map(|logits| (negative_log_likelihood(logits, tokens) / positions as f64).exp());
    let difference = perplexities[1] / perplexities[0] - 1.0;
    let top1 = equal as f64 / positions as f64;
    println!("lily-nano, {positions} positions of {}, {} and {}:", golden.perplexities[0].file, a.label(), b.label());
    println!("  perplexity {:.4} and {:.4}, {:+.4} %", perplexities[0], perplexities[1], 100.0 * difference);
    println!("  the same first choice at {equal} positions, {:.1} %", 100.0 * top1);
    Agreement { positions, perplexities, difference, top1 }
}

/// Logits at every token.
fn predict<S: Subject>(subject: &S, tokens: &[u32]) -> Vec<f32> {
    let mut runner = open_nano(subject);
    let (prefilled, decoded) = tokens.split_at(tokens.len() / 2);
    let mut sequence = Sequence::start(&mut runner, 2, &[13]);
    let mut logits = sequence.feed(&mut runner, prefilled, prefilled.len());
    logits.extend(sequence.feed(&mut runner, decoded, 1));
    logits
}

impl Agreement {
    /// Panics unless the perplexities are within `perplexity` of each other, relative, and at least `top1` of the first
    /// choices are the same.
    pub fn assert_within(&self, perplexity: f64, top1: f64) {
        assert!(self.difference.abs() <= perplexity, "perplexities differ by {:.2e}; tolerated is {perplexity:.2e}", self.difference);
        assert!(self.top1 >= top1, "only {:.4} of the first choices agree; {top1} is asked for", self.top1);
    }
}
