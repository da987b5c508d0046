//! The mixture of experts: routing, and both products over routes that the router chose or the test made up.

use lily_model::{Capacity, Device};

use super::{CAPACITY, round, stage_normed};
use crate::generate::{Distribution, Rng};
use crate::golden::{assert_close, assert_rows_close};
use crate::reference::{self, Expert, ModelDims, Route, swiglu};
use crate::ring::Subject;
use crate::ring::rig::{DELTA, Lab, Which, assert_no_nan, exact};

/// Rows of single experts at the edges of tiles, in a pass of 200 rows: none, one, around a tile, every row.
pub const COUNTS: [usize; 6] = [0, 1, 31, 32, 33, 200];

/// Below this margin rounding may choose another expert, and the case would check nothing.
const TIE: f64 = 1e-6;

/// Routing, then the experts over its routes, at every row count.
pub fn check<S: Subject>(subject: &S, dims: &ModelDims, rows: &[usize]) {
    let mut lab = open(subject, dims, rows.iter().copied().max().unwrap_or(1));
    for &rows in rows {
        let name = format!("{} {rows} rows", lab.label);
        let x = stage_normed(&mut lab, rows);
        let routes = check_routes(&mut lab, &name, &x);
        check_experts(&mut lab, &name, &x, &routes);
    }
}

/// The experts over made-up routes: expert `i` gets `counts[i]` rows of the pass, the experts after them share the rest.
pub fn check_counts<S: Subject>(subject: &S, dims: &ModelDims, counts: &[usize]) {
    let rows = counts.iter().copied().max().expect("counts");
    let mut lab = open(subject, dims, rows);
    let x = stage_normed(&mut lab, rows);
    let chosen = choose(&mut lab.rng, counts, (rows, dims.moe.experts, dims.moe.experts_per_token));
    let routes = made_up_routes(&mut lab, chosen);
    check_experts(&mut lab, &format!("{} rows of experts {counts:?}", subject.label()), &x, &routes);
}

fn open<S: Subject>(subject: &S, dims: &ModelDims, rows: usize) -> Lab<S::Device> {
    let rows = rows.max(CAPACITY.rows);
    Lab::new(subject, dims.clone(), Capacity { rows, logit_rows: rows, ..CAPACITY })
}

/// Where the rows of a pass go, as the device has it.
struct Routes {
    rows: Vec<Route>,
    /// `sigmoid` of the shared expert's gate.
    shared: Vec<f64>,
}

/// Routes on both sides; experts must agree wherever the margin is more than rounding. Returns the reference's.
fn check_routes<D: Device>(lab: &mut Lab<D>, name: &str, x: &[f64]) -> Routes {
    let dims = lab.reference.dims.moe;
    let (rows, per_row) = (x.len() / lab.reference.dims.hidden, dims.experts_per_token);
    // Experts out of range and NaN weights: a step that writes nothing must not pass.
    let poison: Vec<f32> = [vec![65_535.0; per_row], vec![f32::NAN; per_row + 1]].concat().repeat(rows);
    lab.device.write(&mut lab.buffers.routes, rows, &poison);
    lab.step(|device, b| device.moe_route(DELTA, rows, &b.normed, &mut b.routes));
    let found = lab.all(Which::Routes, rows);
    let weights = &lab.reference.layers[DELTA].moe;
    let x = round(lab.numerics.router, x);
    let shared: Vec<f64> = lab.weights(&weights.shared_gate, rows).apply(&x).into_iter().map(reference::sigmoid).collect();
    let routes = reference::route(&lab.weights(&weights.router, rows).apply(&x), &dims);
    let tolerance = lab.tolerances.routes;
    for ((found, route), &gate) in found.chunks_exact(2 * per_row + 1).zip(&routes).zip(&shared) {
        let (experts, rest) = found.split_at(per_row);
        assert!(route.margin > TIE, "{name}: the seed gives a tie, which checks nothing");
        let expected: Vec<f32> = route.experts.iter().map(|&expert| expert as f32).collect();
        assert_eq!(experts, expected, "{name}: experts");
        assert_close(&format!("{name}: weights"), &rest[..per_row], &route.weights, tolerance);
        assert_close(&format!("{name}: shared gate"), &rest[per_row..], &[gate], tolerance);
    }
    Routes { rows: routes, shared }
}

/// Chooses experts for every row so that the first experts get exactly `counts` rows, scattered over the pass.
fn choose(rng: &mut Rng, counts: &[usize], (rows, experts, per_row): (usize, usize, usize)) -> Vec<Vec<usize>> {
    let mut chosen: Vec<Vec<usize>> = vec![Vec::new(); rows];
    for (expert, &count) in counts.iter().enumerate() {
        let mut order: Vec<(usize, u64, usize)> = chosen.iter().enumerate().map(|(row, taken)| (taken.len(), rng.bits(), row)).collect();
        order.sort_unstable(); // the rows with most room first, in random order
        order[..count].iter().for_each(|&(_, _, row)| chosen[row].push(expert));
    }
    let rest = experts - counts.len();
    for (row, chosen) in chosen.iter_mut().enumerate() {
        let room = per_row.checked_sub(chosen.len()).expect("the counts fit into the routes");
        assert!(room <= rest, "{rest} experts are left for {room} choices of a row");
        chosen.extend((0..room).map(|choice| counts.len() + (row + choice) % rest));
        let turn = rng.below(per_row);
        chosen.rotate_left(turn);
    }
    chosen
}

/// Random weights for the chosen experts, on the device and for the reference.
fn made_up_routes<D: Device>(lab: &mut Lab<D>, chosen: Vec<Vec<usize>>) -> Routes {
    let mut routes = Routes { rows: Vec::new(), shared: Vec::new() };
    let mut written = Vec::new();
    let count = chosen.len();
    for experts in chosen {
        let drawn: Vec<f64> = experts.iter().map(|_| lab.rng.between(0.1, 1.0)).collect();
        let sum: f64 = drawn.iter().sum();
        let weights: Vec<f32> = drawn.iter().map(|weight| (weight / sum) as f32).collect();
        let shared = lab.rng.uniform() as f32;
        written.extend(experts.iter().map(|&expert| expert as f32));
        written.extend_from_slice(&weights);
        written.push(shared);
        routes.rows.push(Route { experts, weights: exact(&weights), margin: 1.0 });
        routes.shared.push(f64::from(shared));
    }
    lab.device.write(&mut lab.buffers.routes, count, &written);
    let stored = lab.all(Which::Routes, count);
    assert_close("routes, written and read back", &stored, &written, lab.tolerances.routes);
    routes
}

fn check_experts<D: Device>(lab: &mut Lab<D>, name: &str, x: &[f64], routes: &Routes) {
    let hidden = lab.reference.dims.hidden;
    let rows = routes.rows.len();
    let residual = Distribution::Gaussian.draw(&mut lab.rng, rows, hidden);
    let residual = lab.fill(Which::Residual, &residual, hidden);
    lab.poison(Which::ExpertHidden, rows);
    lab.step(|device, b| device.moe_gate_up(DELTA, rows, &b.normed, &b.routes, &mut b.expert_hidden));
    assert_no_nan(&format!("{name} moe_gate_up"), &lab.all(Which::ExpertHidden, rows));
    lab.step(|device, b| device.moe_down(DELTA, rows, &b.routes, &b.expert_hidden, &mut b.residual));
    let expected = reference::add(&residual, &experts_output(lab, x, routes));
    let found = lab.columns(Which::Residual, rows, hidden);
    assert_rows_close(&format!("{name} experts"), &found, &expected, hidden, lab.tolerances.experts);
}

/// The weighted sum of chosen and shared experts, with operands as the device rounds them.
fn experts_output<D: Device>(lab: &Lab<D>, x: &[f64], routes: &Routes) -> Vec<f64> {
    let weights = &lab.reference.layers[DELTA].moe;
    let rows = routes.rows.len();
    let rounded = |expert: &Expert| {
        let [gate, up, down] = [&expert.gate, &expert.up, &expert.down].map(|matrix| lab.weights(matrix, rows).into_owned());
        Expert { gate, up, down }
    };
    let (experts, shared_expert): (Vec<Expert>, _) = (weights.experts.iter().map(rounded).collect(), rounded(&weights.shared));
    let output = |expert: &Expert, x: &[f64]| {
        let x = lab.numerics.operand(x);
        expert.down.apply(&lab.numerics.operand(&swiglu(&expert.gate.apply(&x), &expert.up.apply(&x))))
    };
    let mut out = Vec::with_capacity(x.len());
    for ((x, route), &shared) in x.chunks_exact(x.len() / rows).zip(&routes.rows).zip(&routes.shared) {
        let mut sum: Vec<f64> = output(&shared_expert, x).iter().map(|y| shared * y).collect();
        for (&expert, weight) in route.experts.iter().zip(&route.weights) {
            let y = output(&experts[expert], x);
            sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
        }
        out.extend(sum);
    }
    out
}
