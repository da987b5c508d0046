//! The raw Hugging Face layout, made from an unquantised MLX one.

use half::bf16;
use safetensors::Dtype;

use super::{P, Tensors};

/// The raw Hugging Face layout of an unquantised MLX one. Gains become f32, so that taking the one away
/// and adding it again changes nothing; `fused` puts gate and up in one tensor, else each expert has its own.
pub fn make_raw(tensors: &mut Tensors, fused: bool) {
    for (name, (dtype, shape, bytes)) in std::mem::take(tensors) {
        let is_gain = name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
        let name = name.replace(P, "model.language_model.").replace("language_model.lm_head", "lm_head");
        if is_gain {
            let gains = bytes.as_chunks().0.iter().flat_map(|&gain| (bf16::from_le_bytes(gain).to_f32() - 1.0).to_le_bytes());
            tensors.insert(name, (Dtype::F32, shape, gains.collect()));
        } else if name.ends_with("conv1d.weight") {
            tensors.insert(name, (dtype, vec![shape[0], 1, shape[1]], bytes));
        } else {
            tensors.insert(name, (dtype, shape, bytes));
        }
    }
    let stacked: Vec<String> = tensors.keys().filter(|name| name.ends_with("switch_mlp.gate_proj.weight")).cloned().collect();
    for gate in stacked {
        let mlp = gate.strip_suffix("switch_mlp.gate_proj.weight").unwrap();
        let mut take = |name: &str| tensors.remove(&format!("{mlp}switch_mlp.{name}.weight")).unwrap();
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"].map(&mut take);
        let experts = gate.1[0];
        if fused {
            let size = gate.2.len() / experts;
            let both = gate.2.chunks(size).zip(up.2.chunks(size)).flat_map(|(gate, up)| [gate, up].concat()).collect();
            tensors.insert(format!("{mlp}experts.gate_up_proj"), (gate.0, vec![experts, 2 * gate.1[1], gate.1[2]], both));
            tensors.insert(format!("{mlp}experts.down_proj"), down);
        } else {
            for (name, (dtype, shape, bytes)) in [("gate_proj", gate), ("up_proj", up), ("down_proj", down)] {
                for (expert, part) in bytes.chunks(bytes.len() / experts).enumerate() {
                    tensors.insert(format!("{mlp}experts.{expert}.{name}.weight"), (dtype, shape[1..].to_vec(), part.to_vec()));
                }
            }
        }
    }
}
