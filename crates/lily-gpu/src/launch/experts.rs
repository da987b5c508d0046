//! `route.metal`, `experts.metal`, `experts_matmul.metal`, `cuda/experts_mma.metal`, `cuda/experts_wgmma.metal`,
//! `cuda/experts_fitted.metal`, `cuda/experts_thin.metal`.

use crate::launch::{arguments, launcher};

launcher!(MoeTopK = "moe_top_k" [Read logits, Write routes] { rows: u32, experts: u32, per_token: u32 });

launcher!(MoeCount = "moe_count" [Read routes, Write counts] { rows: u32, per_token: u32, experts: u32, tile_rows: u32 });

launcher!(MoePlace = "moe_place" [Read routes, Read counts, Write order, Write tiles] {
    rows: u32, per_token: u32, experts: u32, tile_rows: u32,
});

launcher!(ExpertsGateUp = "experts_gate_up" | "experts_gate_up_mma" [
    Read gate_codes, Read gate_scales, Read gate_biases, Read up_codes, Read up_scales, Read up_biases, Read shared_gate_codes,
    Read shared_gate_scales, Read shared_gate_biases, Read shared_up_codes, Read shared_up_scales, Read shared_up_biases, Read x,
    Read sums, Read logits, Write routes, Write hidden,
] {
    cols: u32, group_shift: u32, per_token: u32, experts: u32, width: u32, shared_width: u32, gate_stride: u32, gate_first: u32,
    up_stride: u32, up_first: u32, parts: u32, eps: f32, halves: u32,
});

launcher!(ExpertsDown = "experts_down" [
    Read codes, Read scales, Read biases, Read shared_codes, Read shared_scales, Read shared_biases, Read x, Read routes, Read gain,
    Write residual, Write next, Write sums,
] {
    group_shift: u32, shared_group_shift: u32, per_token: u32, hidden: u32, width: u32, shared_width: u32, stride: u32, first: u32,
});

launcher!(ExpertsDownMma = "experts_down_mma" [
    Read codes, Read scales, Read biases, Read shared_codes, Read shared_scales, Read shared_biases, Read x, Read routes, Read logits,
    Read gain, Write residual, Write next, Write sums,
] {
    per_token: u32, experts: u32, hidden: u32, width: u32, shared_width: u32, stride: u32, first: u32, halves: u32,
});

arguments!(
    /// Of the grouped products; see `kernels/lib/grouped.h`.
    GroupedArgs {
        cols: u32, group_shift: u32, batch: u32, per_token: u32, dense: u32, width: u32, hidden_stride: u32, choice_stride: u32,
        gate_stride: u32, gate_first: u32, up_stride: u32, up_first: u32, tile_rows: u32, part: u32,
    }
);

launcher!(ExpertsGateUpMatmul = "experts_gate_up_matmul" | "experts_gate_up_wgmma" | "experts_gate_up_fitted" | "experts_gate_up_thin" [
    Read gate_codes, Read gate_scales, Read gate_biases, Read up_codes, Read up_scales, Read up_biases, Read x, Read order, Read tiles,
    Write hidden,
] GroupedArgs);

launcher!(ExpertsDownMatmul = "experts_down_matmul" | "experts_down_wgmma" | "experts_down_fitted" | "experts_down_thin" [
    Read codes, Read scales, Read biases, Read x, Read order, Read tiles, Write part,
] GroupedArgs);

launcher!(MoeCombine = "moe_combine" [Read part, Read routes, Write residual] { hidden: u32, per_token: u32 });
