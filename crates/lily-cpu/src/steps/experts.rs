//! The mixture of experts: routing here, products in [`crate::matrix::experts`].

use crate::buffer::{RouteRows, Rows};
use crate::device::CpuDevice;
use crate::matrix::{DownExperts, GateUpExperts, Job, Projection, project};
use crate::route::route;

pub(super) fn route_rows(device: &mut CpuDevice, layer: usize, rows: usize, x: &Rows, routes: &mut RouteRows) {
    let weights = &device.model.layers[layer];
    let experts = device.config.experts;
    let (logits, y_stride) = (&mut device.route_logits[..rows * (experts + 1)], experts + 1);
    let jobs = [Job { matrix: &weights.router, column: 0 }, Job { matrix: &weights.shared_route, column: experts }];
    let projection = Projection { x: x.first(rows), x_stride: x.width(), rows, jobs: &jobs, y: logits, y_stride, accumulate: false };
    project(&mut device.team, &mut device.workspace, projection);
    let per_row = routes.per_row();
    for (row, logits) in device.route_logits[..rows * y_stride].chunks_exact(y_stride).enumerate() {
        let choices = row * per_row..(row + 1) * per_row;
        route(&logits[..experts], &mut routes.ids[choices.clone()], &mut routes.weights[choices]);
        routes.shared[row] = 1.0 / (1.0 + (-logits[experts]).exp());
    }
}

pub(super) fn gate_up(device: &mut CpuDevice, layer: usize, rows: usize, (x, routes): (&Rows, &RouteRows), hidden: &mut Rows) {
    let weights = &device.model.layers[layer];
    let (x, x_stride, hidden_stride) = (x.first(rows), x.width(), hidden.width());
    let step = GateUpExperts {
        x,
        x_stride,
        rows,
        routes: routes.as_routes(),
        gate: &weights.gate,
        up: &weights.up,
        shared_gate: &weights.shared_gate,
        shared_up: &weights.shared_up,
        hidden: hidden.first_mut(rows),
        hidden_stride,
    };
    step.run(&mut device.team, &mut device.workspace);
}

pub(super) fn down(device: &mut CpuDevice, layer: usize, rows: usize, (hidden, routes): (&Rows, &RouteRows), residual: &mut Rows) {
    let weights = &device.model.layers[layer];
    let (hidden, hidden_stride, residual_stride) = (hidden.first(rows), hidden.width(), residual.width());
    let step = DownExperts {
        hidden,
        hidden_stride,
        rows,
        routes: routes.as_routes(),
        down: &weights.down,
        shared_down: &weights.shared_down,
        residual: residual.first_mut(rows),
        residual_stride,
    };
    step.run(&mut device.team, &mut device.workspace);
}
