//! The mixture of experts: router, chosen experts, shared expert.

use super::attention::softmax;
use super::dims::MoeDims;
use super::linear::Matrix;
use super::{sigmoid, silu};

/// One expert: `down(silu(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `[expert_width, hidden]`.
    pub gate: Matrix,
    /// `[expert_width, hidden]`.
    pub up: Matrix,
    /// `[hidden, expert_width]`.
    pub down: Matrix,
}

/// Everything the MoE block of one layer owns.
#[derive(Clone, Debug)]
pub struct MoeWeights {
    /// `[experts, hidden]`.
    pub router: Matrix,
    /// One per expert id.
    pub experts: Vec<Expert>,
    /// `[1, hidden]`.
    pub shared_gate: Matrix,
    /// The expert every token visits.
    pub shared: Expert,
}

/// Where one token goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The chosen experts, most probable first; equal probabilities in order of id.
    pub experts: Vec<usize>,
    /// Their weights, in the same order.
    pub weights: Vec<f64>,
    /// Probability of the last chosen minus that of the first left out (0 where no expert is left out): an engine
    /// whose probabilities err by more than this may rightly choose otherwise.
    pub margin: f64,
}

/// Softmax over all experts, then the `experts_per_token` most probable, ties to the lowest id. `logits [tokens, experts]`.
pub fn route(logits: &[f64], dims: &MoeDims) -> Vec<Route> {
    assert_eq!(logits.len() % dims.experts, 0, "route: not rows of {}", dims.experts);
    logits.chunks_exact(dims.experts).map(|row| route_token(row, dims)).collect()
}

fn route_token(logits: &[f64], dims: &MoeDims) -> Route {
    let probabilities = softmax(logits);
    let mut order: Vec<usize> = (0..dims.experts).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a])); // stable: equal ones stay in order of id
    let (chosen, rest) = order.split_at(dims.experts_per_token);
    let last = chosen.last().map_or(0.0, |&e| probabilities[e]);
    let margin = rest.first().map_or(0.0, |&e| last - probabilities[e]);
    let sum: f64 = chosen.iter().map(|&e| probabilities[e]).sum();
    let divisor = if dims.normalise_top { sum } else { 1.0 };
    let weights = chosen.iter().map(|&e| probabilities[e] / divisor).collect();
    Route { experts: chosen.to_vec(), weights, margin }
}

/// `silu(gate) * up`, element-wise.
pub fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    assert_eq!(gate.len(), up.len(), "swiglu: lengths differ");
    gate.iter().zip(up).map(|(&g, u)| silu(g) * u).collect()
}

impl Expert {
    /// `x [rows, hidden]` to `[rows, hidden]`.
    pub fn apply(&self, x: &[f64]) -> Vec<f64> {
        self.down.apply(&swiglu(&self.gate.apply(x), &self.up.apply(x)))
    }
}

/// The weighted sum of the chosen experts, `x [tokens, hidden]` to `[tokens, hidden]`.
pub fn experts_output(x: &[f64], routes: &[Route], experts: &[Expert]) -> Vec<f64> {
    let hidden = experts[0].gate.inputs;
    assert_eq!(x.len(), routes.len() * hidden, "experts_output: x is not [{}, {hidden}]", routes.len());
    let mut out = vec![0.0; x.len()];
    for ((row, route), out) in x.chunks_exact(hidden).zip(routes).zip(out.chunks_exact_mut(hidden)) {
        for (&expert, weight) in route.experts.iter().zip(&route.weights) {
            let y = experts[expert].apply(row);
            out.iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
        }
    }
    out
}

/// The shared expert times its gate, `sigmoid(shared_gate · x) * shared(x)`, `[tokens, hidden]`.
pub fn shared_output(x: &[f64], weights: &MoeWeights) -> Vec<f64> {
    let hidden = weights.shared_gate.inputs;
    let gates = weights.shared_gate.apply(x);
    let y = weights.shared.apply(x);
    y.iter().enumerate().map(|(i, y)| y * sigmoid(gates[i / hidden])).collect()
}

/// The whole block: chosen experts plus shared expert, `x [tokens, hidden]` (already normalised).
pub fn moe(x: &[f64], weights: &MoeWeights, dims: &MoeDims) -> Vec<f64> {
    let routes = route(&weights.router.apply(x), dims);
    super::add(&experts_output(x, &routes, &weights.experts), &shared_output(x, weights))
}
