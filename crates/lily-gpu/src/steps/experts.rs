//! The experts: gate, up, down and their sum.

use crate::backend::Backend;
use crate::buffer::GpuBuffer;
use crate::commands::View;
use crate::device::{Chained, GpuDevice};
use crate::entry::{Bits, entry, entry2, entry3};
use crate::launch::{ExpertsDown, ExpertsDownMatmul, ExpertsDownMma, ExpertsGateUp, ExpertsGateUpMatmul, GroupedArgs, MoeCombine};
use crate::matrix::{GpuExperts, GpuMatrix};
use crate::policy::{
    DOWN_SPANS_MAX, FEW_ROWS, FITTED_ROWS, FITTED_THREADS, GATE_OUTPUTS, OUTPUT_THREADS, PROJECT_THREADS, THIN_DOWN_PART, THIN_GATE_PART,
    THIN_THREADS, TILE_COLS, TILE_GATE_COLS, TILE_THREADS, WG_ROWS, WG_THREADS, fitted_dense, fitted_parts, fitted_rows, mma_simdgroups,
    mma_tiles, span_inputs, tile_rows, wgmma_rows,
};

/// One grouped product: the routed experts, or the shared expert for all rows.
#[derive(Clone, Copy)]
struct Grouped {
    /// Every row, no tile map.
    dense: bool,
    rows: usize,
    tile_rows: u32,
}

impl<B: Backend> GpuDevice<B> {
    pub(super) fn gate_up(&mut self, layer: usize, rows: usize, [x, routes]: [&GpuBuffer; 2], hidden: &GpuBuffer) {
        if rows <= FEW_ROWS {
            return self.gate_up_few(layer, rows, [x.view, routes.view, hidden.view]);
        }
        let weights = &self.model.layers[layer];
        let (gate, up) = (weights.gate, weights.up);
        let (shared, dense) = ([weights.shared_gate, weights.shared_up].map(single), self.dense(rows, weights.shared_gate));
        self.gate_up_tiles(self.routed(rows), [gate, up], [x.view, hidden.view]);
        self.gate_up_tiles(dense, shared, [x.view, hidden.view]);
    }

    pub(super) fn down(&mut self, layer: usize, rows: usize, [routes, hidden]: [&GpuBuffer; 2], residual: &GpuBuffer) {
        let found_in_gate_up = self.routes_in_gate_up(rows);
        self.chained = None;
        if rows <= FEW_ROWS {
            return match self.mma_down_spans(layer) {
                Some(spans) => self.down_mma(layer, rows, [routes.view, hidden.view, residual.view], spans, found_in_gate_up),
                None => self.down_few(layer, rows, [routes.view, hidden.view, residual.view]),
            };
        }
        let weights = &self.model.layers[layer];
        let (down, shared, dense) = (weights.down, single(weights.shared_down), self.dense(rows, weights.shared_down));
        self.down_tiles(self.routed(rows), down, hidden.view);
        self.down_tiles(dense, shared, hidden.view);
        MoeCombine {
            entry: "moe_combine",
            part: self.arena.expert_parts,
            routes: routes.view,
            residual: residual.view,
            hidden: self.config.hidden as u32,
            per_token: self.config.experts_per_token as u32,
            grid: [rows, 1, 1],
            threads: 256,
        }
        .launch("moe_down", &mut self.list);
    }

    fn gate_up_few(&mut self, layer: usize, rows: usize, [x, routes, hidden]: [View; 3]) {
        let mma = self.mma_gate_spans(layer);
        let x = if mma.is_some() { self.in_halves("moe_gate_up", rows, x, [self.config.hidden; 2], Bits::Q4) } else { x };
        let (config, weights, fused) = (&self.config, &self.model.layers[layer], self.routes_in_gate_up(rows));
        let (gate, up, shared_gate, shared_up) = (weights.gate, weights.up, weights.shared_gate, weights.shared_up);
        let (entry, outputs, threads) = match mma {
            Some(spans) => {
                let entry = if fused { "experts_gate_up_mma_routes" } else { "experts_gate_up_mma" };
                let simdgroups = mma_simdgroups(Bits::Q4, spans);
                (entry, simdgroups / spans * mma_tiles(Bits::Q4) * 8, 32 * simdgroups as u32)
            }
            None => {
                let stem = if fused { "experts_gate_up_routes" } else { "experts_gate_up" };
                let entry = entry2(stem, gate.all.bits.suffix(), gate.all.lane_inputs(1));
                (entry, GATE_OUTPUTS * PROJECT_THREADS as usize / 32, PROJECT_THREADS)
            }
        };
        ExpertsGateUp {
            entry,
            gate_codes: gate.all.codes,
            gate_scales: gate.all.scales,
            gate_biases: gate.all.biases,
            up_codes: up.all.codes,
            up_scales: up.all.scales,
            up_biases: up.all.biases,
            shared_gate_codes: shared_gate.codes,
            shared_gate_scales: shared_gate.scales,
            shared_gate_biases: shared_gate.biases,
            shared_up_codes: shared_up.codes,
            shared_up_scales: shared_up.scales,
            shared_up_biases: shared_up.biases,
            x,
            sums: self.arena.sums,
            logits: self.arena.route_logits,
            routes,
            hidden,
            cols: config.hidden as u32,
            group_shift: gate.all.group_shift,
            per_token: config.experts_per_token as u32,
            experts: config.experts as u32,
            width: config.expert_width as u32,
            shared_width: config.shared_width as u32,
            gate_stride: gate.stride as u32,
            gate_first: gate.first as u32,
            up_stride: up.stride as u32,
            up_first: up.first as u32,
            parts: self.chained_parts(),
            eps: config.rms_eps,
            halves: if self.mma_down_spans(layer).is_some() { self.halves_after([self.hidden_width(); 2]) } else { 0 },
            grid: [config.expert_width.max(config.shared_width).div_ceil(outputs), config.experts_per_token + 1, rows],
            threads,
        }
        .launch("moe_gate_up", &mut self.list);
        self.halved = mma.map(|_| hidden);
    }

    /// Values of all choices of a row.
    fn hidden_width(&self) -> usize {
        self.config.experts_per_token * self.config.expert_width + self.config.shared_width
    }

    fn down_few(&mut self, layer: usize, rows: usize, [routes, hidden, residual]: [View; 3]) {
        let chain = self.options.fused_chains;
        let (next, gain) = self.norm_after(layer);
        let (config, weights) = (&self.config, &self.model.layers[layer]);
        let (down, shared) = (weights.down, weights.shared_down);
        let parts = config.hidden.div_ceil(OUTPUT_THREADS as usize / 32);
        ExpertsDown {
            entry: entry3(
                if chain { "experts_down_chain" } else { "experts_down" },
                down.all.bits.suffix(),
                down.all.lane_inputs(1),
                shared.lane_inputs(1),
            ),
            codes: down.all.codes,
            scales: down.all.scales,
            biases: down.all.biases,
            shared_codes: shared.codes,
            shared_scales: shared.scales,
            shared_biases: shared.biases,
            x: hidden,
            routes,
            gain,
            residual,
            next: self.next(),
            sums: self.arena.sums,
            group_shift: down.all.group_shift,
            shared_group_shift: shared.group_shift,
            per_token: config.experts_per_token as u32,
            hidden: config.hidden as u32,
            width: config.expert_width as u32,
            shared_width: config.shared_width as u32,
            stride: down.stride as u32,
            first: down.first as u32,
            grid: [parts, rows, 1],
            threads: OUTPUT_THREADS,
        }
        .launch("moe_down", &mut self.list);
        self.chained = chain.then_some((next, parts));
        self.halved = None;
    }

    /// Spans of a row of gate and up, if they go through the mma kernel; all four matrices have one format.
    fn mma_gate_spans(&self, layer: usize) -> Option<usize> {
        let gate = self.model.layers[layer].gate.all;
        self.mma_spans(&gate).filter(|_| gate.bits == Bits::Q4)
    }

    /// Spans of all choices of a row, if their down projections go through the mma kernel.
    fn mma_down_spans(&self, layer: usize) -> Option<usize> {
        let layer = &self.model.layers[layer];
        let covered = |matrix: &GpuMatrix| matrix.bits == Bits::Q4 && self.mma_spans(matrix).is_some();
        if !covered(&layer.down.all) || !covered(&layer.shared_down) {
            return None;
        }
        let spans = self.hidden_width() / span_inputs(Bits::Q4);
        (spans <= DOWN_SPANS_MAX).then_some(spans)
    }

    /// `found_in_gate_up`: the launch before has found the experts from the logits, and lets this one in once they are
    /// complete, so that this one does so as well instead of waiting for the routes.
    fn down_mma(&mut self, layer: usize, rows: usize, [routes, hidden, residual]: [View; 3], spans: usize, found_in_gate_up: bool) {
        let chain = self.options.fused_chains;
        let (next, gain) = self.norm_after(layer);
        let early = found_in_gate_up && self.mma_gate_spans(layer).is_some();
        let hidden = self.in_halves("moe_down", rows, hidden, [self.hidden_width(); 2], Bits::Q4);
        let (config, weights) = (&self.config, &self.model.layers[layer]);
        let (down, shared) = (weights.down, weights.shared_down);
        let parts = config.hidden.div_ceil(16);
        ExpertsDownMma {
            entry: match (chain, early) {
                (false, _) => "experts_down_mma",
                (true, false) => "experts_down_mma_chain",
                (true, true) => "experts_down_mma_routes",
            },
            codes: down.all.codes,
            scales: down.all.scales,
            biases: down.all.biases,
            shared_codes: shared.codes,
            shared_scales: shared.scales,
            shared_biases: shared.biases,
            x: hidden,
            routes,
            logits: self.arena.route_logits,
            gain,
            residual,
            next: self.next(),
            sums: self.arena.sums,
            per_token: config.experts_per_token as u32,
            experts: config.experts as u32,
            hidden: config.hidden as u32,
            width: config.expert_width as u32,
            shared_width: config.shared_width as u32,
            stride: down.stride as u32,
            first: down.first as u32,
            halves: self.halves_after([config.hidden; 2]),
            grid: [parts, rows, 1],
            threads: 32 * spans as u32,
        }
        .launch("moe_down", &mut self.list);
        self.chained = chain.then_some((next, parts));
        self.halved = chain.then_some(self.next());
    }

    /// The norm after a layer, and its gain.
    fn norm_after(&self, layer: usize) -> (Chained, View) {
        let following = self.model.layers.get(layer + 1);
        following.map_or((Chained::Final, self.model.norm), |layer_after| (Chained::Mixer(layer + 1), layer_after.mixer_norm))
    }

    fn gate_up_tiles(&mut self, grouped: Grouped, [gate, up]: [GpuExperts; 2], [x, hidden]: [View; 2]) {
        let stage = "moe_gate_up";
        let gate = GpuExperts { all: self.expand(stage, gate.all, 0), ..gate };
        let up = GpuExperts { all: self.expand(stage, up.all, 1), ..up };
        let thin = self.is_thin(grouped);
        let fitted = self.fitted_experts && !thin;
        let grouped = if fitted { self.fitted_gate(grouped, gate.rows) } else { grouped };
        let (arena, rows) = (&self.arena, grouped.tile_rows);
        let (entry, columns, threads) = if thin {
            ("experts_gate_up_thin", THIN_GATE_PART, THIN_THREADS)
        } else if fitted {
            ("experts_gate_up_fitted", WG_ROWS, FITTED_THREADS)
        } else if self.native.wgmma && gate.all.has_wgmma() {
            (entry("experts_gate_up_wgmma", rows), WG_ROWS / 2, WG_THREADS)
        } else {
            (entry2("experts_gate_up_matmul", gate.all.bits.suffix(), rows), TILE_GATE_COLS, TILE_THREADS)
        };
        ExpertsGateUpMatmul {
            entry,
            gate_codes: gate.all.codes,
            gate_scales: gate.all.scales,
            gate_biases: gate.all.biases,
            up_codes: up.all.codes,
            up_scales: up.all.scales,
            up_biases: up.all.biases,
            x,
            order: arena.order,
            tiles: arena.tiles,
            hidden,
            args: GroupedArgs {
                up_stride: up.stride as u32,
                up_first: up.first as u32,
                part: columns as u32,
                ..self.grouped_args(grouped, &gate, gate.rows)
            },
            grid: self.grouped_grid(grouped, gate.rows.div_ceil(columns), fitted || thin),
            threads,
        }
        .launch(stage, &mut self.list);
    }

    fn down_tiles(&mut self, grouped: Grouped, down: GpuExperts, hidden: View) {
        let stage = "moe_down";
        let down = GpuExperts { all: self.expand(stage, down.all, 0), ..down };
        let thin = self.is_thin(grouped);
        let (grouped, part) = if thin { (grouped, None) } else { self.fitted_down(grouped, down.all.cols) };
        let (config, arena, rows) = (&self.config, &self.arena, grouped.tile_rows);
        let (entry, columns, threads) = if thin {
            ("experts_down_thin", THIN_DOWN_PART, THIN_THREADS)
        } else if let Some(part) = part {
            ("experts_down_fitted", part, FITTED_THREADS)
        } else if self.native.wgmma && down.all.has_wgmma() {
            (entry("experts_down_wgmma", rows), WG_ROWS, WG_THREADS)
        } else {
            (entry2("experts_down_matmul", down.all.bits.suffix(), rows), TILE_COLS, TILE_THREADS)
        };
        ExpertsDownMatmul {
            entry,
            codes: down.all.codes,
            scales: down.all.scales,
            biases: down.all.biases,
            x: hidden,
            order: arena.order,
            tiles: arena.tiles,
            part: arena.expert_parts,
            args: GroupedArgs { part: columns as u32, ..self.grouped_args(grouped, &down, config.hidden) },
            grid: self.grouped_grid(grouped, config.hidden.div_ceil(columns), part.is_some() || thin),
            threads,
        }
        .launch(stage, &mut self.list);
    }

    fn routed(&self, rows: usize) -> Grouped {
        Grouped { dense: false, rows, tile_rows: self.expert_tile_rows(rows) }
    }

    fn dense(&self, rows: usize, matrix: GpuMatrix) -> Grouped {
        let wide = self.native.wgmma && matrix.has_wgmma();
        let tile_rows = if wide { wgmma_rows(&self.options, rows) } else { tile_rows(&self.options, rows) };
        Grouped { dense: true, rows, tile_rows }
    }

    /// Whether the thin kernels take this group.
    fn is_thin(&self, grouped: Grouped) -> bool {
        !grouped.dense && self.has_thin_experts(grouped.rows)
    }

    /// A group with the tiles of the fitted kernel of gate and up projections of `width` outputs.
    fn fitted_gate(&self, grouped: Grouped, width: usize) -> Grouped {
        if !grouped.dense {
            return grouped;
        }
        let (tile, _) = fitted_dense(grouped.rows, FITTED_ROWS, width.div_ceil(WG_ROWS), self.native.multiprocessors);
        Grouped { tile_rows: tile as u32, ..grouped }
    }

    /// Outputs of a threadgroup of the fitted kernel of down projections of `width` inputs, if it is to be used.
    fn fitted_down(&self, grouped: Grouped, width: usize) -> (Grouped, Option<usize>) {
        if !self.fitted_experts {
            return (grouped, None);
        }
        let (hidden, room) = (self.config.hidden, self.native.multiprocessors);
        if !grouped.dense {
            let experts = self.config.experts.min(grouped.rows * self.config.experts_per_token);
            return (grouped, Some(fitted_parts(width, hidden, |parts| (experts * parts).div_ceil(room))));
        }
        let dense = |parts: usize| fitted_dense(grouped.rows, fitted_rows(width), parts, room);
        let part = fitted_parts(width, hidden, |parts| dense(parts).1);
        (Grouped { tile_rows: dense(hidden.div_ceil(part)).0 as u32, ..grouped }, Some(part))
    }

    /// `flat`: fitted and thin kernels find their tile in one number.
    fn grouped_grid(&self, grouped: Grouped, columns: usize, flat: bool) -> [usize; 3] {
        match flat {
            true => [columns * self.place_tiles(grouped), 1, 1],
            false => [columns, self.place_tiles(grouped), 1],
        }
    }

    /// Tiles of places, at most: with routed experts the device knows how many there are, and the rest return at once.
    fn place_tiles(&self, grouped: Grouped) -> usize {
        let size = grouped.tile_rows as usize;
        if grouped.dense {
            return grouped.rows.div_ceil(size);
        }
        let assignments = grouped.rows * self.config.experts_per_token;
        // Every expert that is used may end in a tile that is not full.
        assignments / size + self.config.experts.min(assignments)
    }

    /// Of a product with one projection, `width` outputs of an expert; a second projection brings its own place.
    fn grouped_args(&self, grouped: Grouped, experts: &GpuExperts, width: usize) -> GroupedArgs {
        let config = &self.config;
        GroupedArgs {
            cols: experts.all.cols as u32,
            group_shift: experts.all.group_shift,
            batch: grouped.rows as u32,
            per_token: config.experts_per_token as u32,
            dense: u32::from(grouped.dense),
            width: width as u32,
            hidden_stride: self.hidden_width() as u32,
            choice_stride: config.expert_width as u32,
            gate_stride: experts.stride as u32,
            gate_first: experts.first as u32,
            up_stride: 0,
            up_first: 0,
            tile_rows: grouped.tile_rows,
            part: 0,
        }
    }
}

/// The shared expert as a group of one.
fn single(matrix: GpuMatrix) -> GpuExperts {
    GpuExperts { rows: matrix.rows, stride: 0, first: 0, all: matrix }
}
