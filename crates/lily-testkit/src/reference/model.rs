//! The whole model: token ids to logits, with the state that lets a sequence be fed in any pieces.

use super::dims::ModelDims;
use super::layer::{LayerState, LayerWeights, Pass, layer};
use super::linear::Matrix;
use super::norm::rms_norm;
use super::trace::Trace;

/// All weights, dense.
#[derive(Clone, Debug)]
pub struct Model {
    /// Dimensions from config.json.
    pub dims: ModelDims,
    /// `[vocab, hidden]`.
    pub embedding: Matrix,
    /// One per layer.
    pub layers: Vec<LayerWeights>,
    /// Whole gain before the head, `[hidden]`.
    pub final_norm: Vec<f64>,
    /// `[vocab, hidden]`.
    pub head: Matrix,
}

/// One sequence: how many tokens it has seen and what every layer remembers of them.
#[derive(Clone, Debug)]
pub struct State {
    /// The position of the next token.
    pub position: usize,
    /// One per layer.
    pub layers: Vec<LayerState>,
}

/// One greedily chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GreedyStep {
    /// The id with the largest logit, the lowest id among equals.
    pub token: u32,
    /// Its logit minus the second largest.
    pub margin: f64,
}

impl Model {
    /// The state of an empty sequence.
    pub fn state(&self) -> State {
        State { position: 0, layers: self.dims.mixers.iter().map(|&kind| LayerState::new(kind, &self.dims)).collect() }
    }

    /// Feeds the next tokens of a sequence; returns the logits at each of them, `[tokens, vocab]`.
    pub fn forward(&self, tokens: &[u32], state: &mut State, trace: &mut Trace) -> Vec<f64> {
        self.head.apply(&self.hidden(tokens, state, trace))
    }

    /// Like [`Model::forward`] but stops before the head: normalised hidden rows, `[tokens, hidden]`.
    pub fn hidden(&self, tokens: &[u32], state: &mut State, trace: &mut Trace) -> Vec<f64> {
        trace.enter(None);
        let mut x: Vec<f64> = tokens.iter().flat_map(|&t| self.embedding.row(t as usize).to_vec()).collect();
        trace.record("embedding", &x);
        for (index, (weights, memory)) in self.layers.iter().zip(&mut state.layers).enumerate() {
            trace.enter(Some(index));
            x = layer(&x, weights, memory, &mut Pass { dims: &self.dims, start: state.position, trace });
        }
        state.position += tokens.len();
        trace.enter(None);
        let normed = rms_norm(&x, &self.final_norm, self.dims.eps);
        trace.record("final_norm", &normed);
        normed
    }

    /// Continues `prompt` greedily by `count` tokens.
    pub fn greedy(&self, prompt: &[u32], count: usize) -> Vec<GreedyStep> {
        let mut state = self.state();
        let mut logits = self.forward(prompt, &mut state, &mut Trace::off());
        let mut steps = Vec::with_capacity(count);
        while steps.len() < count {
            let step = greedy_step(&logits[logits.len() - self.dims.vocab..]);
            steps.push(step);
            logits = self.forward(&[step.token], &mut state, &mut Trace::off());
        }
        steps
    }
}

/// The greedy choice over one row of logits.
pub fn greedy_step(logits: &[f64]) -> GreedyStep {
    let mut best = 0;
    let mut second = f64::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate().skip(1) {
        if logit > logits[best] {
            second = logits[best];
            best = id;
        } else {
            second = second.max(logit);
        }
    }
    GreedyStep { token: best as u32, margin: logits[best] - second }
}

/// The negative log-likelihood of all tokens but the first, in nats, from an empty state.
pub fn negative_log_likelihood(model: &Model, tokens: &[u32]) -> f64 {
    let logits = model.forward(tokens, &mut model.state(), &mut Trace::off());
    let surprise = |row: &[f64], next: u32| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        max + row.iter().map(|l| (l - max).exp()).sum::<f64>().ln() - row[next as usize]
    };
    logits.chunks_exact(model.dims.vocab).zip(&tokens[1..]).map(|(row, &next)| surprise(row, next)).sum()
}
