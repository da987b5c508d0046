"""The shapes of the tiny checkpoints: together they touch every choice that a checkpoint of this architecture leaves open.

Each differs from `base` where it says so. All dimensions that are quantised along are multiples of the group size.
"""

from dataclasses import dataclass, field


@dataclass
class Shape:
    """One tiny checkpoint and how it is stored."""

    name: str
    text: dict  # fields of text_config
    bits: int = 4
    group: int = 64
    dtype: str = "bfloat16"  # of scales, biases and unquantised tensors
    nested: bool = True  # fields under text_config, or flat
    overrides: dict = field(default_factory=dict)  # path ending -> quantisation
    spelling: str = "language_model.model"  # how overrides are spelled in config.json
    quantised: bool = True  # or the raw Hugging Face layout
    float32: tuple = ()  # endings of tensors stored as float32
    seed: int = 0

    def quantisation_of(self, path):
        for ending, chosen in self.overrides.items():
            if path.endswith(ending):
                return chosen
        return {"group_size": self.group, "bits": self.bits}


def text_config(attention_every=4, rotary=0.25, section=(3, 3, 2), **changes):
    """A text_config with the fields that the real model's has."""
    text = dict(
        model_type="qwen3_5_moe_text", hidden_size=128, num_hidden_layers=4, vocab_size=512,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
        shared_expert_intermediate_size=128, rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False,
        attention_dropout=0.0, attn_output_gate=True, tie_word_embeddings=False, max_position_embeddings=4096,
        full_attention_interval=attention_every, mamba_ssm_dtype="float32", dtype="bfloat16", eos_token_id=511,
    )
    text.update(changes)
    layers = range(1, text["num_hidden_layers"] + 1)
    text["layer_types"] = ["linear_attention" if i % attention_every else "full_attention" for i in layers]
    text["rope_parameters"] = dict(
        rope_type="default", rope_theta=1e7, partial_rotary_factor=rotary,
        mrope_section=list(section), mrope_interleaved=True,
    )
    return text


def eight(group):
    """The overrides that mlx-lm writes for this architecture: router and shared expert's gate in 8 bits."""
    chosen = {"group_size": group, "bits": 8}
    return {"mlp.gate": chosen, "mlp.shared_expert_gate": chosen}


SHAPES = [
    Shape("base", text_config(), overrides=eight(64), float32=("A_log",), seed=1),
    # Flat config; three query heads a key/value head, three value heads a key head, head dimensions apart, no power
    # of two among experts or widths.
    Shape(
        "group32",
        text_config(
            hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=32, rotary=0.5,
            linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=32, linear_value_head_dim=48,
            num_experts=10, num_experts_per_tok=3, moe_intermediate_size=96, shared_expert_intermediate_size=64,
            vocab_size=500, eos_token_id=499,
        ),
        group=32, nested=False, overrides=eight(32), float32=("A_log", "linear_attn.norm.weight"), seed=2,
    ),
    # F16 scales, a one-to-one query/key head ratio, overrides under the other spelling and for one projection more.
    Shape(
        "group128",
        text_config(
            hidden_size=256, num_attention_heads=2, num_key_value_heads=2, head_dim=128, section=(6, 5, 5),
            linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=64,
            num_experts=6, num_experts_per_tok=4, moe_intermediate_size=128, shared_expert_intermediate_size=128,
            vocab_size=384, eos_token_id=383,
        ),
        group=128, dtype="float16", spelling="model.language_model", seed=3,
        overrides={**eight(64), "layers.0.linear_attn.out_proj": {"group_size": 128, "bits": 8}},
    ),
    # All in 8 bits; attention in every second layer; one key/value head for all; a single chosen expert.
    Shape(
        "bits8",
        text_config(
            attention_every=2, num_attention_heads=4, num_key_value_heads=1, head_dim=32, rotary=1.0, section=(6, 5, 5),
            linear_num_key_heads=1, linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=32,
            num_experts=4, num_experts_per_tok=1, shared_expert_intermediate_size=64,
        ),
        bits=8, seed=4,
    ),
    # The raw layout: bf16, fused experts, norms without the one, shards with an index, vision and mtp tensors.
    Shape(
        "raw",
        text_config(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rotary=0.5,
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
            num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40, shared_expert_intermediate_size=48,
        ),
        quantised=False, float32=("A_log",), seed=5,
    ),
]
