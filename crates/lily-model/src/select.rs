//! Choosing the next token from a row of logits: one definition for every device.
//!
//! A [`Selection`] holds everything that the choice depends on, the uniform draw included, so that it is
//! a pure function: a device that selects where the logits are must agree with [`select_token`]. The
//! engine turns a request's sampling parameters and history into selections.

use std::borrow::Cow;

/// How to choose one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// 0 is greedy: the largest adjusted logit, the lowest id on ties.
    pub temperature: f32,
    /// Keep the `top_k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most probable tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than `min_p` times the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Uniform in [0, 1): the point of the cumulative distribution to choose at.
    pub draw: f32,
    /// Divides a positive logit and multiplies a negative one, for each token listed; 1 is none.
    pub repetition_penalty: f32,
    /// Tokens under the repetition penalty, each once.
    pub repeated: Vec<u32>,
    /// Added to logits before anything else but the repetition penalty: logit bias, presence and frequency penalties.
    pub bias: Vec<(u32, f32)>,
    /// One bit per token, low bits first; a token whose bit is 0 cannot be chosen. `None` allows all.
    pub allowed: Option<Vec<u32>>,
}

impl Selection {
    /// The most probable token, unadjusted.
    pub fn greedy() -> Self {
        Selection {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            draw: 0.0,
            repetition_penalty: 1.0,
            repeated: Vec::new(),
            bias: Vec::new(),
            allowed: None,
        }
    }
}

/// Chooses a token from `logits` (`[vocab]`). At least one token must be allowed.
///
/// A logit that is NaN or minus infinity is not chosen; if all are, the lowest allowed token is. Tokens
/// of `repeated` and `bias` beyond the vocabulary are passed over; tokens beyond the `allowed` bits are not
/// allowed.
pub fn select_token(logits: &[f32], selection: &Selection) -> u32 {
    let adjusted = adjusted(logits, selection);
    let greedy = largest(&adjusted, selection);
    // Not `<= 0`: a temperature that is no number is greedy too.
    let samples = selection.temperature > 0.0 && adjusted.get(greedy as usize).is_some_and(|&top| top > f32::NEG_INFINITY);
    if samples { sample(&adjusted, greedy, selection) } else { greedy }
}

/// Logits after penalties and biases; copied only where there are any.
fn adjusted<'a>(logits: &'a [f32], selection: &Selection) -> Cow<'a, [f32]> {
    if selection.bias.is_empty() && (selection.repeated.is_empty() || selection.repetition_penalty == 1.0) {
        return Cow::Borrowed(logits);
    }
    let mut adjusted = logits.to_vec();
    for &token in &selection.repeated {
        if let Some(logit) = adjusted.get_mut(token as usize) {
            *logit = if *logit > 0.0 { *logit / selection.repetition_penalty } else { *logit * selection.repetition_penalty };
        }
    }
    for &(token, bias) in &selection.bias {
        if let Some(logit) = adjusted.get_mut(token as usize) {
            *logit += bias;
        }
    }
    Cow::Owned(adjusted)
}

fn is_allowed(token: usize, selection: &Selection) -> bool {
    selection.allowed.as_ref().is_none_or(|bits| bits.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
}

/// The allowed token with the largest logit, the lowest one on ties and where no logit is a number.
fn largest(logits: &[f32], selection: &Selection) -> u32 {
    let mut best = None;
    let mut top = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if (logit > top || best.is_none()) && is_allowed(token, selection) {
            best = Some(token);
            top = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        }
    }
    best.unwrap_or(0) as u32
}

/// Draws from the tempered, truncated distribution. Truncation looks at the distribution after
/// temperature, in the order top-k, top-p, min-p.
fn sample(logits: &[f32], greedy: u32, selection: &Selection) -> u32 {
    let top = logits[greedy as usize];
    let weight = |logit: f32| if logit == top { 1.0 } else { (((logit - top) / selection.temperature) as f64).exp() };
    let possible = |&(token, logit): &(usize, &f32)| *logit > f32::NEG_INFINITY && is_allowed(token, selection);
    let mut ranking = Ranking {
        keys: logits.iter().enumerate().filter(possible).map(|(token, &logit)| rank_key(token as u32, logit)).collect(),
        sorted: 0,
    };
    if selection.top_k > 0 {
        ranking.truncate(selection.top_k);
    }
    let count = ranking.keys.len();
    let total: f64 = ranking.keys.iter().map(|&key| weight(logits[token_of(key) as usize])).sum();

    let truncates = selection.top_p < 1.0 || selection.min_p > 0.0;
    let (mut kept, mut kept_weight) = if truncates { (0, 0.0) } else { (count, total) };
    while kept < count {
        let next = weight(logits[ranking.token(kept) as usize]);
        let enough = kept_weight >= selection.top_p as f64 * total;
        if kept > 0 && (enough || next < selection.min_p as f64) {
            break;
        }
        kept += 1;
        kept_weight += next;
    }

    let point = selection.draw as f64 * kept_weight;
    let (mut chosen, mut passed) = (greedy, 0.0);
    for rank in 0..kept {
        let token = ranking.token(rank);
        let weight = weight(logits[token as usize]);
        if weight == 0.0 {
            break; // rounding left the point beyond the sum: the last possible token
        }
        (chosen, passed) = (token, passed + weight);
        if point < passed {
            break;
        }
    }
    chosen
}

/// Tokens from the most to the least probable, put in order only as far as somebody looks: a choice rarely
/// looks beyond the first hundred of a vocabulary of 248,320.
struct Ranking {
    /// See [`rank_key`]; larger comes first.
    keys: Vec<u64>,
    /// So many keys at the front are in their final place.
    sorted: usize,
}

impl Ranking {
    /// Keeps the first `count`.
    fn truncate(&mut self, count: usize) {
        if count < self.keys.len() {
            self.keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
            self.keys.truncate(count);
        }
    }

    fn token(&mut self, rank: usize) -> u32 {
        while self.sorted <= rank {
            let rest = &mut self.keys[self.sorted..];
            let more = self.sorted.max(64).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, |a, b| b.cmp(a));
            }
            rest[..more].sort_unstable_by(|a, b| b.cmp(a));
            self.sorted += more;
        }
        token_of(self.keys[rank])
    }
}

/// An integer that orders by logit, then lowest token first: the logit's bits made monotonic above, the
/// token's complement below.
fn rank_key(token: u32, logit: f32) -> u64 {
    let logit = logit + 0.0; // -0 and 0 are one value
    let bits = logit.to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!token)
}

fn token_of(key: u64) -> u32 {
    !(key as u32)
}
