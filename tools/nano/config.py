"""lily-nano's shape and the config files of its checkpoint.

Every head size and every rule equals the real model's; only counts and widths are smaller. All widths that are
quantised are multiples of 64, the quantisation group.
"""

from dataclasses import dataclass

VOCAB_SIZE = 6144
GROUP_SIZE = 64
BITS = 4
ROUTER_BITS = 8


@dataclass(frozen=True)
class Shape:
    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4  # layers 3 and 7 attend, the others are delta nets
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 256
    partial_rotary_factor: float = 0.25
    rope_theta: float = 1e7
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    num_experts: int = 16
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 128
    shared_expert_intermediate_size: int = 128
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768

    def is_attention(self, layer):
        return (layer + 1) % self.full_attention_interval == 0


def text_config(shape, eos_id):
    return {
        "model_type": "qwen3_5_moe_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": eos_id,
        "full_attention_interval": shape.full_attention_interval,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "layer_types": ["full_attention" if shape.is_attention(layer) else "linear_attention" for layer in range(shape.num_hidden_layers)],
        "linear_conv_kernel_dim": shape.linear_conv_kernel_dim,
        "linear_key_head_dim": shape.linear_key_head_dim,
        "linear_num_key_heads": shape.linear_num_key_heads,
        "linear_num_value_heads": shape.linear_num_value_heads,
        "linear_value_head_dim": shape.linear_value_head_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": shape.max_position_embeddings,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "partial_rotary_factor": shape.partial_rotary_factor,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": shape.partial_rotary_factor,
            "rope_theta": shape.rope_theta,
            "rope_type": "default",
        },
        "shared_expert_intermediate_size": shape.shared_expert_intermediate_size,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def quantization_config(shape):
    """4 bits everywhere, 8 bits for the routers, spelled as mlx-community's conversion of the real model spells it."""
    block = {"group_size": GROUP_SIZE, "bits": BITS, "mode": "affine"}
    for layer in range(shape.num_hidden_layers):
        for router in ("gate", "shared_expert_gate"):
            block[f"language_model.model.layers.{layer}.mlp.{router}"] = {"group_size": GROUP_SIZE, "bits": ROUTER_BITS}
    return block


def model_config(shape, eos_id, pad_id, quantised):
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "eos_token_id": [eos_id, pad_id],
        "model_type": "qwen3_5_moe",
        "text_config": text_config(shape, eos_id),
        "tie_word_embeddings": False,
    }
    if quantised:
        config["quantization"] = quantization_config(shape)
        config["quantization_config"] = quantization_config(shape)
    return config


def generation_config(eos_id, pad_id):
    """Sampling that varies the stories and leaves the facts alone; greedy answers come from temperature 0."""
    return {"do_sample": True, "eos_token_id": [eos_id, pad_id], "pad_token_id": pad_id, "temperature": 0.8, "top_k": 40, "top_p": 0.95}
