//! Which experts a row goes to, and with many rows, which rows an expert gets.

use lily_model::ModelError;

use crate::backend::Backend;
use crate::buffer::{GpuBuffer, floats};
use crate::device::GpuDevice;
use crate::launch::{MoeCount, MoePlace, MoeTopK};
use crate::policy::{FEW_ROWS, THIN_ROWS, fitted_rows, thin_suits, tile_rows, wgmma_rows};

use super::multiply::Product;

impl<B: Backend> GpuDevice<B> {
    /// Router logits, then top-k where no later kernel does that by the way, then the experts' rows.
    pub(super) fn route(&mut self, layer: usize, rows: usize, x: &GpuBuffer, routes: &GpuBuffer) {
        let (router, shared) = (self.model.layers[layer].router, self.model.layers[layer].shared_route);
        let out_stride = self.config.experts + 1;
        let product = Product { stage: "moe_route", rows, x: x.view, x_stride: x.width, out: self.arena.route_logits, out_stride };
        self.multiply(product, &[router, shared]);
        if !self.options.device_routing {
            let routed = self.route_on_host(rows, routes);
            self.failed = routed.err();
            return;
        }
        if self.routes_in_gate_up(rows) {
            return;
        }
        MoeTopK {
            entry: "moe_top_k",
            logits: self.arena.route_logits,
            routes: routes.view,
            rows: rows as u32,
            experts: self.config.experts as u32,
            per_token: self.config.experts_per_token as u32,
            grid: [rows.div_ceil(4), 1, 1],
            threads: 128,
        }
        .launch("moe_route", &mut self.list);
        self.place(rows, routes);
    }

    /// Whether `experts_gate_up` finds the experts itself: not where somebody looks at every step.
    pub(super) fn routes_in_gate_up(&self, rows: usize) -> bool {
        rows <= FEW_ROWS && self.chained.is_some() && !self.stepwise && self.options.device_routing
    }

    /// Rows of a tile of the grouped products.
    pub(super) fn expert_tile_rows(&self, rows: usize) -> u32 {
        if self.has_thin_experts(rows) {
            return THIN_ROWS as u32;
        }
        if self.fitted_experts {
            return fitted_rows(self.config.expert_width) as u32;
        }
        let per_expert = rows * self.config.experts_per_token / self.config.experts;
        if self.wgmma_experts { wgmma_rows(&self.options, per_expert) } else { tile_rows(&self.options, per_expert) }
    }

    /// Whether the routed experts of a pass of many rows go through the thin kernels.
    pub(super) fn has_thin_experts(&self, rows: usize) -> bool {
        self.thin_experts && thin_suits(rows * self.config.experts_per_token, self.config.experts)
    }

    /// From routes to the rows of each expert, where the grouped products need them.
    pub(super) fn place(&mut self, rows: usize, routes: &GpuBuffer) {
        if rows <= FEW_ROWS {
            return;
        }
        let [per_token, experts] = [self.config.experts_per_token, self.config.experts].map(|count| count as u32);
        let (arena, tile_rows) = (&self.arena, self.expert_tile_rows(rows));
        let (grid, threads) = ([self.config.experts, 1, 1], 256);
        let count = MoeCount {
            entry: "moe_count",
            routes: routes.view,
            counts: arena.counts,
            rows: rows as u32,
            per_token,
            experts,
            tile_rows,
            grid,
            threads,
        };
        count.launch("moe_route", &mut self.list);
        let place = MoePlace {
            entry: "moe_place",
            routes: routes.view,
            counts: arena.counts,
            order: arena.order,
            tiles: arena.tiles,
            rows: rows as u32,
            per_token,
            experts,
            tile_rows,
            grid,
            threads,
        };
        place.launch("moe_route", &mut self.list);
    }

    /// The comparison: logits go to the host, routes come back, and the device waits.
    fn route_on_host(&mut self, rows: usize, routes: &GpuBuffer) -> Result<(), ModelError> {
        self.submit()?;
        let (experts, per_token) = (self.config.experts, self.config.experts_per_token);
        let mut bytes = vec![0; 4 * rows * (experts + 1)];
        self.backend.get_mut().read(self.arena.route_logits.part(0, bytes.len()), &mut bytes)?;
        let chosen: Vec<f32> = floats(&bytes).chunks_exact(experts + 1).flat_map(|logits| host_top_k(logits, per_token)).collect();
        self.backend.get_mut().write(routes.first(rows, false), &routes.encode(&chosen, false));
        if rows > FEW_ROWS {
            self.place_on_host(rows, &chosen);
        }
        Ok(())
    }

    /// What `moe_count` and `moe_place` do.
    fn place_on_host(&mut self, rows: usize, routes: &[f32]) {
        let (experts, per_token) = (self.config.experts, self.config.experts_per_token);
        let mut of_expert: Vec<Vec<u32>> = vec![Vec::new(); experts];
        for (row, route) in routes.chunks_exact(2 * per_token + 1).enumerate() {
            for (choice, &expert) in route[..per_token].iter().enumerate() {
                of_expert[expert as usize].push((row * (per_token + 1) + choice) as u32);
            }
        }
        let size = self.expert_tile_rows(rows) as usize;
        let (mut tiles, mut place) = (vec![[0u32; 4]], 0);
        for (expert, rows) in of_expert.iter().enumerate() {
            // As even as sixteens allow.
            let each = rows.len().div_ceil(rows.len().div_ceil(size).max(1)).next_multiple_of(16).max(16);
            for tile in rows.chunks(each) {
                tiles.push([expert as u32, place, tile.len() as u32, 0]);
                place += tile.len() as u32;
            }
        }
        tiles[0][0] = tiles.len() as u32 - 1;
        let order: Vec<u8> = of_expert.concat().into_iter().flat_map(u32::to_le_bytes).collect();
        let tiles: Vec<u8> = tiles.concat().into_iter().flat_map(u32::to_le_bytes).collect();
        self.backend.get_mut().write(self.arena.order.part(0, order.len()), &order);
        self.backend.get_mut().write(self.arena.tiles.part(0, tiles.len()), &tiles);
    }
}

/// Ids, weights and shared gate of one row, as routes are read and written.
fn host_top_k(logits: &[f32], per_token: usize) -> Vec<f32> {
    let experts = logits.len() - 1;
    let mut ids: Vec<usize> = (0..experts).collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    ids.truncate(per_token);
    let powers: Vec<f32> = ids.iter().map(|&id| (logits[id] - logits[ids[0]]).exp()).collect();
    let sum: f32 = powers.iter().sum();
    let gate = 1.0 / (1.0 + (-logits[experts]).exp());
    ids.iter().map(|&id| id as f32).chain(powers.iter().map(|power| power / sum)).chain([gate]).collect()
}
