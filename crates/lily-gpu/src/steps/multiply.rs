//! Products with weight matrices.

use crate::backend::Backend;
use crate::commands::View;
use crate::device::GpuDevice;
use crate::entry::{Bits, entry, entry2, entry3};
use crate::launch::{Dequantise, Output, Project, ProjectMatmul};
use crate::matrix::GpuMatrix;
use crate::options::TileRows;
use crate::policy::{
    BYTES_ROWS, FEW_ROWS, MMA_GROUP, MMA_SIMDGROUPS, OUTPUT_THREADS, PROJECT_THREADS, TILE_COLS, TILE_THREADS, WG_ROWS, WG_THREADS,
    WG_WIDE_ROWS, bytes_suit, mma_rows, mma_simdgroups, mma_tiles, project_outputs, tile_rows, vector_rows, wgmma_spread, wgmma_wide,
};

/// Rows of activations and where their product goes.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub stage: &'static str,
    pub rows: usize,
    /// f32 for few rows, else f16.
    pub x: View,
    /// Values from one row of `x` to the next.
    pub x_stride: usize,
    /// f32
    pub out: View,
    /// Values from one row of `out` to the next.
    pub out_stride: usize,
}

impl<B: Backend> GpuDevice<B> {
    /// `out = [m0 | m1 | ..] x`, by the kernel that suits the rows. Up to four matrices of one format are one launch.
    pub(super) fn multiply(&mut self, product: Product, matrices: &[GpuMatrix]) {
        if product.rows > FEW_ROWS {
            return self.multiply_tiles(product, matrices, false);
        }
        for (column, run) in runs(matrices) {
            self.multiply_few(Product { out: shifted(product.out, column), ..product }, run);
        }
    }

    /// Spans of a row if products of few rows with this matrix go through an mma kernel.
    pub(super) fn mma_spans(&self, matrix: &GpuMatrix) -> Option<usize> {
        matrix.mma_spans().filter(|_| self.native.mma)
    }

    fn multiply_few(&mut self, product: Product, run: &[GpuMatrix]) {
        let [m0, m1, m2, m3] = padded(run);
        let rows = vector_rows(product.rows);
        // The mma kernels take all rows, one or four at a time, their weights in registers.
        let (entry, outputs, row_tiles, simdgroups) = match self.mma_spans(&m0) {
            Some(spans) if mma_rows(product.rows, m0.cols) => {
                (entry("project_mma_rows", m0.bits.suffix()), MMA_SIMDGROUPS / spans * 16, 1, MMA_SIMDGROUPS)
            }
            Some(spans) => {
                let simdgroups = mma_simdgroups(m0.bits, spans);
                (entry("project_mma", m0.bits.suffix()), simdgroups / spans * mma_tiles(m0.bits) * 16, 1, simdgroups)
            }
            None => {
                let simdgroups = PROJECT_THREADS as usize / 32;
                let entry = entry3("project", m0.bits.suffix(), rows, m0.lane_inputs(rows));
                (entry, project_outputs(rows) * simdgroups, product.rows.div_ceil(rows), simdgroups)
            }
        };
        let tiles: usize = run.iter().map(|matrix| matrix.rows.div_ceil(outputs)).sum();
        let x = if entry.starts_with("project_mma_q") {
            self.in_halves(product.stage, product.rows, product.x, [product.x_stride, m0.cols], m0.bits)
        } else {
            product.x
        };
        Project {
            entry,
            codes0: m0.codes,
            scales0: m0.scales,
            biases0: m0.biases,
            codes1: m1.codes,
            scales1: m1.scales,
            biases1: m1.biases,
            codes2: m2.codes,
            scales2: m2.scales,
            biases2: m2.biases,
            codes3: m3.codes,
            scales3: m3.scales,
            biases3: m3.biases,
            x,
            sums: self.arena.sums,
            out: product.out,
            cols: m0.cols as u32,
            group_shift: m0.group_shift,
            batch: product.rows as u32,
            x_stride: product.x_stride as u32,
            out_stride: product.out_stride as u32,
            rows0: m0.rows as u32,
            rows1: m1.rows as u32,
            rows2: m2.rows as u32,
            rows3: m3.rows as u32,
            parts: self.chained_parts(),
            eps: self.config.rms_eps,
            grid: [tiles, row_tiles, 1],
            threads: 32 * simdgroups as u32,
        }
        .launch(product.stage, &mut self.list);
    }

    /// As `multiply` on tiles; with `add` one matrix, and `out +=`.
    pub(super) fn multiply_tiles(&mut self, product: Product, matrices: &[GpuMatrix], add: bool) {
        if self.arena.expanded.is_none() {
            for (column, run) in runs(matrices) {
                self.multiply_run(Product { out: shifted(product.out, column), ..product }, run, add);
            }
            return;
        }
        let mut column = 0;
        for matrix in matrices {
            let expanded = self.expand(product.stage, *matrix, 0);
            self.multiply_run(Product { out: shifted(product.out, column), ..product }, &[expanded], add);
            column += matrix.rows;
        }
    }

    /// Whether `project_bytes` takes a product with this matrix, of so many tiles of outputs.
    fn takes_bytes(&self, rows: usize, tiles: usize, matrix: &GpuMatrix) -> bool {
        let covered = self.native.wgmma && self.options.tile_rows == TileRows::ByShape && matrix.has_bytes();
        covered && bytes_suit(rows, tiles, self.native.multiprocessors)
    }

    fn multiply_run(&mut self, product: Product, run: &[GpuMatrix], add: bool) {
        let [m0, m1, m2, m3] = padded(run);
        let tiles = |columns: usize| -> usize { run.iter().map(|matrix| matrix.rows.div_ceil(columns)).sum() };
        let (entry, rows, tiles, threads) = if self.native.wgmma && m0.has_wgmma() {
            let (stem, tiles) = (if add { "output_wgmma" } else { "project_wgmma" }, tiles(WG_ROWS));
            if self.options.tile_rows == TileRows::ByShape && wgmma_wide(product.rows, m0.cols, tiles, self.native.multiprocessors) {
                (entry(stem, "wide"), WG_WIDE_ROWS, tiles, WG_THREADS)
            } else {
                let rows = wgmma_spread(&self.options, product.rows, tiles, self.native.multiprocessors);
                (entry(stem, rows), rows as usize, tiles, WG_THREADS)
            }
        } else if !add && self.takes_bytes(product.rows, tiles(TILE_COLS), &m0) {
            ("project_bytes", BYTES_ROWS, tiles(TILE_COLS), TILE_THREADS)
        } else {
            let (stem, rows) = (if add { "output_matmul" } else { "project_matmul" }, tile_rows(&self.options, product.rows));
            (entry2(stem, m0.bits.suffix(), rows), rows as usize, tiles(TILE_COLS), TILE_THREADS)
        };
        ProjectMatmul {
            entry,
            codes0: m0.codes,
            scales0: m0.scales,
            biases0: m0.biases,
            codes1: m1.codes,
            scales1: m1.scales,
            biases1: m1.biases,
            codes2: m2.codes,
            scales2: m2.scales,
            biases2: m2.biases,
            codes3: m3.codes,
            scales3: m3.scales,
            biases3: m3.biases,
            x: product.x,
            out: product.out,
            cols: m0.cols as u32,
            group_shift: m0.group_shift,
            batch: product.rows as u32,
            x_stride: product.x_stride as u32,
            out_stride: product.out_stride as u32,
            rows0: m0.rows as u32,
            rows1: m1.rows as u32,
            rows2: m2.rows as u32,
            rows3: m3.rows as u32,
            grid: [tiles, product.rows.div_ceil(rows), 1],
            threads,
        }
        .launch(product.stage, &mut self.list);
    }

    /// `out += matrix x` for few rows. With the gain of the next norm its input is prepared too; returns the parts of its
    /// sums.
    pub(super) fn add_output(&mut self, product: Product, matrix: GpuMatrix, gain: Option<View>) -> usize {
        let rows = vector_rows(product.rows);
        let head_dim = self.unscaled.map(|_| self.config.dim_v);
        let covered = matrix.bits == Bits::Q4 && head_dim.is_none_or(|dim| dim >= MMA_GROUP);
        let mut x = product.x;
        let (entry, outputs, row_tiles, threads) = match self.mma_spans(&matrix).filter(|_| covered) {
            Some(spans) => {
                if product.rows == 1 {
                    x = self.in_halves(product.stage, 1, product.x, [product.x_stride, matrix.cols], Bits::Q4);
                }
                let entry = match (product.rows, gain) {
                    (1, None) => "output_mma",
                    (1, Some(_)) => "output_mma_chain",
                    (_, None) => "output_mma_rows",
                    (_, Some(_)) => "output_mma_rows_chain",
                };
                (entry, MMA_SIMDGROUPS / spans * 16, 1, PROJECT_THREADS)
            }
            None => {
                let stem = if gain.is_some() { "output_chain" } else { "output" };
                let entry = entry3(stem, matrix.bits.suffix(), rows, matrix.lane_inputs(rows));
                (entry, OUTPUT_THREADS as usize / 32, product.rows.div_ceil(rows), OUTPUT_THREADS)
            }
        };
        let parts = matrix.rows.div_ceil(outputs);
        Output {
            entry,
            codes: matrix.codes,
            scales: matrix.scales,
            biases: matrix.biases,
            x,
            head_squares: self.arena.head_squares,
            gain: gain.unwrap_or(matrix.scales), // bound, not read
            residual: product.out,
            next: self.next(),
            sums: self.arena.sums,
            cols: matrix.cols as u32,
            group_shift: matrix.group_shift,
            batch: product.rows as u32,
            x_stride: product.x_stride as u32,
            rows: matrix.rows as u32,
            head_shift: head_dim.map_or(0, usize::ilog2),
            head_share: (self.config.dim_v as f32).recip(),
            eps: self.config.rms_eps,
            halves: self.halves_after([matrix.rows; 2]),
            grid: [parts, row_tiles, 1],
            threads,
        }
        .launch(product.stage, &mut self.list);
        self.halved = (entry.starts_with("output_mma") && gain.is_some()).then_some(self.next());
        parts
    }

    /// The matrix expanded to bf16 in scratch `at`, for products that do not dequantise; itself if there is no scratch.
    pub(super) fn expand(&mut self, stage: &'static str, matrix: GpuMatrix, at: usize) -> GpuMatrix {
        let Some(scratch) = self.arena.expanded.filter(|_| matrix.bits != Bits::B16) else { return matrix };
        let (out, units) = (scratch[at], matrix.rows * matrix.cols / 8);
        Dequantise {
            entry: entry("dequantise", matrix.bits.suffix()),
            codes: matrix.codes,
            scales: matrix.scales,
            biases: matrix.biases,
            out,
            cols: matrix.cols as u32,
            group_shift: matrix.group_shift,
            units: units as u32,
            grid: [units.div_ceil(256), 1, 1],
            threads: 256,
        }
        .launch(stage, &mut self.list);
        GpuMatrix { bits: Bits::B16, group_shift: 0, codes: out, scales: out, biases: out, ..matrix }
    }
}

/// Runs of up to four neighbours of one format, each with the column where its outputs start.
fn runs(matrices: &[GpuMatrix]) -> Vec<(usize, &[GpuMatrix])> {
    let (mut runs, mut first, mut column) = (Vec::new(), 0, 0);
    while first < matrices.len() {
        let same = matrices[first..].iter().take(4).take_while(|matrix| matrix.same_format(&matrices[first])).count();
        let run = &matrices[first..first + same];
        runs.push((column, run));
        column += run.iter().map(|matrix| matrix.rows).sum::<usize>();
        first += same;
    }
    runs
}

/// Four matrices: those of the run, then some without rows.
fn padded(run: &[GpuMatrix]) -> [GpuMatrix; 4] {
    std::array::from_fn(|at| run.get(at).copied().unwrap_or(GpuMatrix { rows: 0, ..run[0] }))
}

/// The view from some column of its first row on.
fn shifted(out: View, column: usize) -> View {
    out.part(4 * column, out.bytes - 4 * column)
}
