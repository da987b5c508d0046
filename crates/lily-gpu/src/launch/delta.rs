//! `delta.metal`, `delta_scan.metal`, `delta_scan_blocked.metal`, `cuda/delta_scan_mma.metal`.

use crate::launch::{arguments, launcher};

arguments!(
    /// Of all kernels of the mixer; see `kernels/lib/delta.h`.
    DeltaArgs {
        layer: u32, layers: u32, heads_k: u32, heads_v: u32, dim_k: u32, dim_v: u32, conv_width: u32, stride: u32, mixed_stride: u32,
        narrow: u32, row_count: u32, eps: f32, halves: u32,
    }
);

launcher!(DeltaStep = "delta_step" [
    Read projected, Read rows, Read conv, Read decay_rate, Read dt_bias, Read gain, Write ring, Write memory, Write mixed,
    Write head_squares,
] DeltaArgs);

launcher!(DeltaConv = "delta_conv" | "delta_conv_taps" [
    Read projected, Read rows, Read conv, Read decay_rate, Read dt_bias, Read ring, Write inputs, Write gates,
] DeltaArgs);

launcher!(DeltaCarry = "delta_carry" [Read projected, Read spans, Write ring] DeltaArgs);

launcher!(DeltaScan = "delta_scan" [Read inputs, Read gates, Read spans, Write memory, Write reads] DeltaArgs);

launcher!(DeltaFactors = "delta_factors" | "delta_factors_mma" [Read inputs, Read gates, Read spans, Write factors] DeltaArgs);

launcher!(DeltaScanBlocked = "delta_scan_blocked" | "delta_scan_mma" [
    Read inputs, Read factors, Read spans, Write memory, Write reads,
] DeltaArgs);

launcher!(DeltaGate = "delta_gate" [Read reads, Read projected, Read gain, Write mixed] DeltaArgs);
