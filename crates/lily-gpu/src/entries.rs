//! Which kernels a model needs, and which models the kernels cover.

use std::collections::BTreeSet;

use lily_model::{LayerKind, ModelConfig, ModelError};

use crate::entry::{Bits, entry, entry2, entry3};
use crate::matrix::GpuMatrix;
use crate::model::{Layer, LayerMixer, Model};
use crate::options::{GpuOptions, Native};
use crate::policy::{EXPERT_WIDTH_MAX, fitted_covers};

/// # Errors
/// [`ModelError::Device`], naming the field, what the kernels cover and what was found.
pub(crate) fn check_shape(config: &ModelConfig) -> Result<(), ModelError> {
    let check = |covered: bool, what: &str, expected: &str, found: usize| match covered {
        true => Ok(()),
        false => Err(ModelError::Device(format!("{what}: the GPU kernels cover {expected}, found {found} (the CPU device takes any)"))),
    };
    if config.layers_of(LayerKind::Delta) > 0 {
        check([32, 64, 128].contains(&config.dim_k), "linear_key_head_dim", "32, 64 and 128", config.dim_k)?;
        check(config.dim_v <= 256 && config.dim_v.is_multiple_of(4), "linear_value_head_dim", "multiples of 4 up to 256", config.dim_v)?;
    }
    if config.layers_of(LayerKind::Attention) > 0 {
        check([32, 64, 128, 256].contains(&config.head_dim), "head_dim", "32, 64, 128 and 256", config.head_dim)?;
        let per_kv = config.heads_q / config.heads_kv;
        check(per_kv <= 32, "num_attention_heads over num_key_value_heads", "up to 32", per_kv)?;
    }
    check(config.experts <= 1024, "num_experts", "up to 1024", config.experts)?;
    check(config.experts_per_token <= 32, "num_experts_per_tok", "up to 32", config.experts_per_token)?;
    for (what, width) in [
        ("hidden_size", config.hidden),
        ("moe_intermediate_size", config.expert_width),
        ("shared_expert_intermediate_size", config.shared_width),
    ] {
        check(width.is_multiple_of(8), what, "multiples of 8", width)?;
    }
    for (what, width) in [("moe_intermediate_size", config.expert_width), ("shared_expert_intermediate_size", config.shared_width)] {
        check(width <= EXPERT_WIDTH_MAX, what, "up to 2048", width)?;
    }
    Ok(())
}

/// The experts' kernels read gate, up and the shared expert in one launch, as one format.
///
/// # Errors
/// [`ModelError::Device`], naming the layer and both matrices.
pub(crate) fn check_formats(model: &Model) -> Result<(), ModelError> {
    for (index, layer) in model.layers.iter().enumerate() {
        let (gate, down) = (&layer.gate.all, &layer.down.all);
        let pairs = [
            ("up_proj", "gate_proj", layer.up.all.same_format(gate)),
            ("shared gate_proj", "gate_proj", layer.shared_gate.same_format(gate)),
            ("shared up_proj", "gate_proj", layer.shared_up.same_format(gate)),
            ("shared down_proj", "down_proj", layer.shared_down.bits == down.bits),
        ];
        if let Some((found, expected, _)) = pairs.into_iter().find(|pair| !pair.2) {
            return Err(ModelError::Device(format!(
                "layer {index}: expected {found} quantised as the experts' {expected}, found another format (the CPU device takes any)"
            )));
        }
    }
    Ok(())
}

/// Whether the fitted kernels cover the experts and the shared one, given that the wgmma kernels cover the experts.
pub(crate) fn covers_fitted(config: &ModelConfig, model: &Model) -> bool {
    let shared = |layer: &Layer| [layer.shared_gate, layer.shared_up, layer.shared_down].iter().all(GpuMatrix::has_wgmma);
    fitted_covers(config.hidden, [config.expert_width, config.shared_width]) && model.layers.iter().all(shared)
}

/// Values of the largest matrix, experts together.
pub(crate) fn largest_matrix(model: &Model) -> usize {
    let experts = model.layers.iter().flat_map(|layer| [layer.gate.all, layer.up.all, layer.down.all]);
    matrices(model).into_iter().chain(experts).map(|matrix| matrix.rows * matrix.cols).max().unwrap_or(0)
}

/// Every entry that some pass of this model may launch.
pub(crate) fn needed(config: &ModelConfig, model: &Model, options: &GpuOptions, native: Native, fitted_experts: bool) -> Vec<&'static str> {
    let mut names = vec!["norm", "moe_top_k", "moe_count", "moe_place", "moe_combine", "select_largest", "select_token"];
    names.extend(["embed", "embed_chain"].map(|stem| entry(stem, model.embedding.bits.suffix())));
    let mut entries = BTreeSet::new();
    for matrix in matrices(model) {
        let suffix = matrix.bits.suffix();
        for rows in [1, 2, 4, 8] {
            let stems = ["project", "output", "output_chain"];
            entries.extend(stems.map(|stem| entry3(stem, suffix, rows, matrix.lane_inputs(rows))));
        }
        if native.mma && matrix.mma_spans().is_some() {
            entries.extend(["project_mma", "project_mma_rows"].map(|stem| entry(stem, suffix)));
        }
        entries.extend(tiles(&["project_matmul", "output_matmul"], matrix.bits));
    }
    for layer in &model.layers {
        let (gate, down, shared) = (layer.gate.all, layer.down.all, layer.shared_down);
        let lanes = [down.lane_inputs(1), shared.lane_inputs(1)];
        entries.extend(["experts_gate_up", "experts_gate_up_routes"].map(|stem| entry2(stem, gate.bits.suffix(), gate.lane_inputs(1))));
        entries.extend(["experts_down", "experts_down_chain"].map(|stem| entry3(stem, down.bits.suffix(), lanes[0], lanes[1])));
        for bits in [gate.bits, down.bits, layer.shared_gate.bits, shared.bits] {
            entries.extend(tiles(&["experts_gate_up_matmul", "experts_down_matmul"], bits));
        }
    }
    if native.mma {
        entries.extend(["halve_q4", "halve_q8", "output_mma", "output_mma_chain", "output_mma_rows", "output_mma_rows_chain"]);
        entries.extend(["experts_gate_up_mma", "experts_gate_up_mma_routes"]);
        entries.extend(["experts_down_mma", "experts_down_mma_chain", "experts_down_mma_routes"]);
    }
    if native.wgmma {
        let by_rows = |stem| [16, 32, 64, 128].map(|rows| entry(stem, rows));
        entries.extend(["project_wgmma", "output_wgmma"].into_iter().flat_map(by_rows));
        entries.extend(["project_wgmma_wide", "output_wgmma_wide", "project_bytes"]);
        // Either takes long to compile, and experts go through one of them.
        match fitted_experts {
            true => entries.extend(["experts_gate_up_fitted", "experts_down_fitted"]),
            false => entries.extend(["experts_gate_up_wgmma", "experts_down_wgmma"].into_iter().flat_map(by_rows)),
        }
    }
    if !options.fused_dequantise {
        entries.extend(["dequantise_q4", "dequantise_q8"]);
        entries.extend(tiles(&["project_matmul", "output_matmul", "experts_gate_up_matmul", "experts_down_matmul"], Bits::B16));
    }
    names.extend(entries);
    if config.layers_of(LayerKind::Delta) > 0 {
        names.extend(["delta_conv", "delta_conv_taps", "delta_carry", "delta_gate"]);
        names.extend(
            ["delta_step", "delta_step_tiled", "delta_scan", "delta_factors", "delta_scan_blocked"].map(|stem| entry(stem, config.dim_k)),
        );
        if native.scan_mma {
            names.extend(["delta_conv_split", "delta_conv_taps_split"]);
            names.extend(["delta_factors_mma", "delta_scan_mma"].map(|stem| entry(stem, config.dim_k)));
        }
    }
    if config.layers_of(LayerKind::Attention) > 0 {
        names.extend(["attn_prepare", "attn_combine", entry(native.flash_stem(), config.head_dim)]);
        if native.attention_few {
            names.push(entry("attn_decode_mma", config.head_dim));
        }
        names.extend([1, 2, 4].map(|pack| entry2("attn_decode", config.head_dim, pack)));
        if config.head_dim == 256 {
            names.extend(["attn_decode_strided_256_1", "attn_decode_strided_256_4"]);
        }
    }
    names
}

/// A matrix kernel's variants for one format.
fn tiles(stems: &[&str], bits: Bits) -> Vec<&'static str> {
    stems.iter().flat_map(|stem| [16, 32, 64].map(|rows| entry2(stem, bits.suffix(), rows))).collect()
}

/// All matrices but the experts'.
fn matrices(model: &Model) -> Vec<GpuMatrix> {
    let mut all = vec![model.embedding, model.head];
    for layer in &model.layers {
        match &layer.mixer {
            LayerMixer::Delta(mixer) => all.extend(mixer.projections),
            LayerMixer::Attention(mixer) => all.extend(mixer.projections),
        }
        all.extend([layer.mixer.out(), layer.router, layer.shared_route, layer.shared_gate, layer.shared_up, layer.shared_down]);
    }
    all
}
