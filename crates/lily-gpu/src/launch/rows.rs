//! `embed.metal`, `norm.metal`, `halve.metal`, `project.metal`, `project_matmul.metal`, `output.metal`, `dequantise.metal`; of
//! `cuda/`: `project_mma.metal`, `project_mma_rows.metal`, `project_wgmma.metal`, `project_wgmma_wide.metal`, `project_bytes.metal`,
//! `output_mma.metal`, `output_mma_rows.metal`.

use crate::launch::launcher;

launcher!(Embed = "embed" [Read codes, Read scales, Read biases, Read tokens, Read gain, Write residual, Write next, Write sums] {
    hidden: u32, group_shift: u32, halves: u32,
});

launcher!(Halve = "halve" [Read x, Write out] { cols: u32, x_stride: u32 });

launcher!(Norm = "norm" [Read x, Read gain, Read map, Write out] { hidden: u32, gathers: u32, narrow: u32, eps: f32 });

launcher!(Project = "project" | "project_mma" | "project_mma_rows" [
    Read codes0, Read scales0, Read biases0, Read codes1, Read scales1, Read biases1, Read codes2, Read scales2, Read biases2,
    Read codes3, Read scales3, Read biases3, Read x, Read sums, Write out,
] {
    cols: u32, group_shift: u32, batch: u32, x_stride: u32, out_stride: u32, rows0: u32, rows1: u32, rows2: u32, rows3: u32, parts: u32, eps: f32,
});

launcher!(ProjectMatmul = "project_matmul" | "project_wgmma" | "project_wgmma_wide" | "project_bytes" [
    Read codes0, Read scales0, Read biases0, Read codes1, Read scales1, Read biases1, Read codes2, Read scales2, Read biases2,
    Read codes3, Read scales3, Read biases3, Read x, Write out,
] {
    cols: u32, group_shift: u32, batch: u32, x_stride: u32, out_stride: u32, rows0: u32, rows1: u32, rows2: u32, rows3: u32,
});

launcher!(Output = "output" | "output_mma" | "output_mma_rows" [
    Read codes, Read scales, Read biases, Read x, Read head_squares, Read gain, Write residual, Write next, Write sums,
] {
    cols: u32, group_shift: u32, batch: u32, x_stride: u32, rows: u32, head_shift: u32, head_share: f32, eps: f32,
    halves: u32,
});

launcher!(Dequantise = "dequantise" [Read codes, Read scales, Read biases, Write out] { cols: u32, group_shift: u32, units: u32 });
