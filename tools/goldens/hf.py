"""transformers in float32 on the dequantised weights of a checkpoint: logits, per-layer tensors, greedy text."""

import json

import numpy as np
import torch
from safetensors import safe_open
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from checkpoints import hf_fields

GAINS = ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")


def read(directory):
    """All tensors of a checkpoint, floats as float32, words as uint32, under transformers' names."""
    tensors = {}
    for file in sorted(directory.glob("model*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():
                plain = name.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
                plain = plain.replace("language_model.lm_head", "lm_head")
                if not plain.startswith(("mtp.", "model.visual.", "vision_tower.")):
                    tensor = opened.get_tensor(name)
                    tensors[plain] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def dense(tensors, name, inputs):
    """w = scale * code + bias; bits and group size follow from the shapes and the known width of the input."""
    words, scales, biases = (tensors[f"{name}.{part}"] for part in ("weight", "scales", "biases"))
    bits = words.shape[-1] * 32 // inputs
    group = inputs // scales.shape[-1]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words.numpy().view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
    codes = torch.from_numpy(codes.reshape(*words.shape[:-1], inputs).astype(np.float32))
    spread = lambda t: t.repeat_interleave(group, -1)
    return codes * spread(scales) + spread(biases)


def load(directory):
    """The transformers model of a checkpoint in either layout, in float32."""
    config = json.loads((directory / "config.json").read_text())
    text = config.get("text_config", config)
    allowed = Qwen3_5MoeTextConfig(**hf_fields({k: v for k, v in text.items() if not k.startswith("quantization")}))
    allowed._attn_implementation = "eager"
    model = Qwen3_5MoeForCausalLM(allowed).float().eval()
    state = state_dict(read(directory), model.state_dict())
    model.load_state_dict(state, strict=True)
    return model


def state_dict(tensors, wanted):
    stored_raw = any(k.endswith("conv1d.weight") and v.shape[-1] != 1 for k, v in tensors.items())
    state = {}
    for name, target in wanted.items():
        stem = name.removesuffix(".weight")
        if name.endswith("experts.gate_up_proj") and name not in tensors:
            at = name.replace("experts.gate_up_proj", "switch_mlp")
            value = torch.cat([dense(tensors, f"{at}.{p}_proj", target.shape[-1]) for p in ("gate", "up")], 1)
        elif name.endswith("experts.down_proj") and name not in tensors:
            value = dense(tensors, name.replace("experts.down_proj", "switch_mlp.down_proj"), target.shape[-1])
        elif f"{stem}.scales" in tensors:
            value = dense(tensors, stem, target.shape[-1])
        elif name.endswith("conv1d.weight") and not stored_raw:
            value = tensors[name].permute(0, 2, 1)
        elif name.endswith(GAINS) and not stored_raw:
            value = tensors[name] - 1.0  # transformers adds it back; exact, as stored gains have at most 11 bits
        else:
            value = tensors[name]
        assert value.shape == target.shape, (name, value.shape, target.shape)
        state[name] = value
    return state


@torch.no_grad()
def logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0].numpy()


@torch.no_grad()
def layer_tensors(model, tokens, positions):
    """Per layer: input_norm, mixer (its output), residual (after it), moe, output; rows at `positions`."""
    taken, handles = {}, []

    def keep(name, value):
        value = value[0] if isinstance(value, tuple) else value
        taken[name] = value.reshape(-1, value.shape[-1])[positions].numpy().copy()

    for i, layer in enumerate(model.model.layers):
        mixer = layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn
        for step, module in (("input_norm", layer.input_layernorm), ("mixer", mixer), ("moe", layer.mlp), ("output", layer)):
            hook = lambda m, args, out, name=f"layers.{i}.{step}": keep(name, out)
            handles.append(module.register_forward_hook(hook))
        before = lambda m, args, name=f"layers.{i}.residual": keep(name, args[0])
        handles.append(layer.post_attention_layernorm.register_forward_pre_hook(before))
    model(torch.tensor([tokens]))
    for handle in handles:
        handle.remove()
    return taken


def greedy(model, tokens, count):
    """Each token from a whole pass over all before it: no cache, so a check of everyone else's."""
    tokens, chosen, margins = list(tokens), [], []
    for _ in range(count):
        row = logits(model, tokens)[-1]
        best, second = np.sort(row)[::-1][:2]
        chosen.append(int(row.argmax()))
        margins.append(float(best - second))
        tokens.append(chosen[-1])
    return {"tokens": chosen, "margins": margins}
