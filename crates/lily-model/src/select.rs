//! Choosing the next token from a row of logits: one definition for every device.
//!
//! A [`Selection`] holds everything that the choice depends on, the uniform draw included, so that it is
//! a pure function: a device that selects where the logits are must agree with [`select_token`]. The
//! engine turns a request's sampling parameters and history into selections.

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
pub fn select_token(logits: &[f32], selection: &Selection) -> u32 {
    let mut adjusted = logits.to_vec();
    for &token in &selection.repeated {
        let logit = &mut adjusted[token as usize];
        *logit = if *logit > 0.0 { *logit / selection.repetition_penalty } else { *logit * selection.repetition_penalty };
    }
    for &(token, bias) in &selection.bias {
        adjusted[token as usize] += bias;
    }
    if let Some(allowed) = &selection.allowed {
        for (token, logit) in adjusted.iter_mut().enumerate() {
            if allowed[token / 32] >> (token % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if selection.temperature == 0.0 { largest(&adjusted) } else { sample(&adjusted, selection) }
}

/// Index of the largest value, the lowest one on ties.
fn largest(values: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &value) in values.iter().enumerate() {
        if value > values[best] {
            best = index;
        }
    }
    best as u32
}

/// Draws from the tempered, truncated distribution. Truncation looks at the distribution after
/// temperature, in the order top-k, top-p, min-p.
fn sample(logits: &[f32], selection: &Selection) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).filter(|&token| logits[token as usize] > f32::NEG_INFINITY).collect();
    let descending = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if selection.top_k > 0 && selection.top_k < order.len() {
        order.select_nth_unstable_by(selection.top_k - 1, descending);
        order.truncate(selection.top_k);
    }
    order.sort_unstable_by(descending);

    let top = logits[order[0] as usize];
    let weights: Vec<f64> = order.iter().map(|&token| (((logits[token as usize] - top) / selection.temperature) as f64).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = 0;
    let mut kept_weight = 0.0;
    for &weight in &weights {
        let enough = kept_weight >= selection.top_p as f64 * total;
        if kept > 0 && (enough || weight < selection.min_p as f64 * weights[0]) {
            break;
        }
        kept += 1;
        kept_weight += weight;
    }

    let point = selection.draw as f64 * kept_weight;
    let mut passed = 0.0;
    for (at, &weight) in weights[..kept].iter().enumerate() {
        passed += weight;
        if point < passed {
            return order[at];
        }
    }
    order[kept - 1]
}
