//! The Gated DeltaNet mixer between its projections.

use crate::backend::Backend;
use crate::buffer::{GpuBuffer, floats};
use crate::device::GpuDevice;
use crate::entry::entry;
use crate::launch::{DeltaArgs, DeltaCarry, DeltaConv, DeltaFactors, DeltaGate, DeltaScan, DeltaScanBlocked, DeltaStep};
use crate::model::DeltaMixer;
use crate::options::DeltaScan as Scan;
use crate::policy::{DELTA_STEP_THREADS, DELTA_TILE_THREADS, DELTA_TILES, ScanBlock, delta_tiles_cover};
use lily_model::LayerKind;

/// Columns of a threadgroup of `delta_scan`: a simdgroup each.
const REGISTER_COLUMNS: usize = 8;

/// Taps of `delta_conv_taps`, and rows of a simdgroup; `kernels/delta_scan.metal` says the same.
const CONV_TAPS: usize = 4;
const CONV_ROWS: usize = 8;

impl<B: Backend> GpuDevice<B> {
    pub(super) fn update_delta(&mut self, layer: usize, rows: usize, projected: &GpuBuffer, mixed: &GpuBuffer, chain: bool) {
        let mixer = self.model.delta(layer);
        self.unscaled = None;
        if self.staged.single {
            self.step_delta(mixer, rows, projected, mixed, chain);
        } else {
            self.scan_delta(mixer, rows, projected, mixed);
            self.halved = None;
        }
    }

    /// Of all kernels of the mixer.
    fn delta_args(&self, mixer: DeltaMixer, rows: usize, projected: &GpuBuffer, mixed: &GpuBuffer) -> DeltaArgs {
        let config = &self.config;
        DeltaArgs {
            layer: mixer.index as u32,
            layers: config.layers_of(LayerKind::Delta) as u32,
            heads_k: config.heads_k as u32,
            heads_v: config.heads_v as u32,
            dim_k: config.dim_k as u32,
            dim_v: config.dim_v as u32,
            conv_width: config.conv_width as u32,
            stride: projected.width as u32,
            mixed_stride: mixed.width as u32,
            narrow: self.narrow(),
            row_count: rows as u32,
            eps: config.rms_eps,
            halves: self.halves_after([mixed.width, self.config.v_width()]),
        }
    }

    /// One token a sequence: all in one kernel, less the norm's factor with `chain`.
    fn step_delta(&mut self, mixer: DeltaMixer, rows: usize, projected: &GpuBuffer, mixed: &GpuBuffer, chain: bool) {
        let tiled = chain && delta_tiles_cover(self.config.dim_v);
        self.unscaled = tiled.then_some(*mixed);
        self.halved = Some(mixed.view);
        let (stem, tiles, threads) =
            if tiled { ("delta_step_tiled", DELTA_TILES, DELTA_TILE_THREADS) } else { ("delta_step", 1, DELTA_STEP_THREADS) };
        DeltaStep {
            entry: entry(stem, self.config.dim_k),
            projected: projected.view,
            rows: self.pass().rows,
            conv: mixer.conv,
            decay_rate: mixer.decay_rate,
            dt_bias: mixer.dt_bias,
            gain: mixer.norm,
            ring: self.arena.ring,
            memory: self.arena.memory,
            mixed: mixed.view,
            head_squares: self.arena.head_squares,
            args: self.delta_args(mixer, rows, projected, mixed),
            grid: [tiles, self.config.heads_v, rows],
            threads,
        }
        .launch("delta_update", &mut self.list);
    }

    /// Multiplies rows of the mixer's results by the factors that their heads lack.
    pub(super) fn scale_heads(&self, rows: usize, width: usize, values: &mut [f32]) {
        let config = &self.config;
        let squares = floats(&self.read_all(&[self.arena.head_squares.part(0, 4 * rows * config.heads_v * DELTA_TILES)]));
        for (row, squares) in values.chunks_exact_mut(width).zip(squares.chunks_exact(config.heads_v * DELTA_TILES)) {
            for (head, squares) in row.chunks_exact_mut(config.dim_v).zip(squares.chunks_exact(DELTA_TILES)) {
                let factor = (squares.iter().sum::<f32>() / config.dim_v as f32 + config.rms_eps).sqrt().recip();
                head.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// Many tokens of some sequences: convolution of all, then the scan, then the gated norm.
    fn scan_delta(&mut self, mixer: DeltaMixer, rows: usize, projected: &GpuBuffer, mixed: &GpuBuffer) {
        let args = self.delta_args(mixer, rows, projected, mixed);
        let (config, arena, pass, spans) = (&self.config, &self.arena, *self.pass(), self.staged.spans);
        let stage = "delta_update";
        let chunked = self.native.scan_mma;
        let heads = 2 * config.heads_k + config.heads_v;
        let (conv, conv_grid) = match config.conv_width {
            CONV_TAPS => ("delta_conv_taps", [heads, rows.div_ceil(4 * CONV_ROWS), 1]),
            _ => ("delta_conv", [rows, heads.div_ceil(4), 1]),
        };
        DeltaConv {
            entry: if chunked { entry(conv, "split") } else { conv },
            projected: projected.view,
            rows: pass.rows,
            conv: mixer.conv,
            decay_rate: mixer.decay_rate,
            dt_bias: mixer.dt_bias,
            ring: arena.ring,
            inputs: arena.inputs,
            gates: arena.gates,
            args,
            grid: conv_grid,
            threads: 128,
        }
        .launch(stage, &mut self.list);
        DeltaCarry {
            entry: "delta_carry",
            projected: projected.view,
            spans: pass.spans,
            ring: arena.ring,
            args,
            grid: [spans, config.conv_width - 1, config.conv_dim().div_ceil(4 * 256)],
            threads: 256,
        }
        .launch(stage, &mut self.list);
        match self.options.delta_scan {
            Scan::Register => DeltaScan {
                entry: entry("delta_scan", config.dim_k),
                inputs: arena.inputs,
                gates: arena.gates,
                spans: pass.spans,
                memory: arena.memory,
                reads: arena.reads,
                args,
                grid: [config.dim_v.div_ceil(REGISTER_COLUMNS), config.heads_v, spans],
                threads: 32 * REGISTER_COLUMNS as u32,
            }
            .launch(stage, &mut self.list),
            Scan::Blocked | Scan::Chunked => {
                let stems = if chunked { ["delta_factors_mma", "delta_scan_mma"] } else { ["delta_factors", "delta_scan_blocked"] };
                let ScanBlock { tokens, columns, .. } = ScanBlock::new(chunked);
                DeltaFactors {
                    entry: entry(stems[0], config.dim_k),
                    inputs: arena.inputs,
                    gates: arena.gates,
                    spans: pass.spans,
                    factors: arena.factors,
                    args,
                    grid: [self.staged.longest.div_ceil(tokens), config.heads_k, spans],
                    threads: 128,
                }
                .launch(stage, &mut self.list);
                DeltaScanBlocked {
                    entry: entry(stems[1], config.dim_k),
                    inputs: arena.inputs,
                    factors: arena.factors,
                    spans: pass.spans,
                    memory: arena.memory,
                    reads: arena.reads,
                    args,
                    grid: [config.dim_v.div_ceil(columns), config.heads_v, spans],
                    threads: 128,
                }
                .launch(stage, &mut self.list);
            }
        }
        DeltaGate {
            entry: "delta_gate",
            reads: arena.reads,
            projected: projected.view,
            gain: mixer.norm,
            mixed: mixed.view,
            args,
            grid: [rows, 1, 1],
            threads: 256,
        }
        .launch(stage, &mut self.list);
    }
}
