"""Makes the tiny random checkpoints: weights of realistic scale in the raw layout, then mlx-lm's own quantiser."""

import json
import shutil

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_map_with_path
from mlx_lm.utils import load_model, quantize_model, save_model
from safetensors.torch import save_file
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

PREFIX = "model.language_model."


def random_state(shape):
    """A transformers state dict (float32) whose activations neither vanish nor explode, and whose norms, gates and
    decays all matter. The experts stay fused: save_pretrained would split them and mlx-lm could not read them."""
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**hf_fields(shape.text)))
    rng = np.random.default_rng(shape.seed)
    state = {}
    for name, parameter in sorted(model.state_dict().items()):
        state[name] = torch.from_numpy(draw(name, tuple(parameter.shape), rng).astype(np.float32))
    return state


def hf_fields(text):
    return {k: v for k, v in text.items() if k not in ("model_type", "full_attention_interval", "dtype")}


def draw(name, size, rng):
    normal = rng.standard_normal(size)
    if name.endswith("A_log"):
        return rng.uniform(np.log(0.02), np.log(4.0), size)
    if name.endswith("dt_bias"):
        return normal - 1.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.2 * normal
    if name.endswith("norm.weight"):  # gain is 1 + w
        return 0.2 * normal
    if name.endswith("conv1d.weight"):
        return 0.5 * normal
    if name.endswith("embed_tokens.weight"):
        return 0.5 * normal
    # A few input channels weigh more than the others, as in trained models; scales then differ from group to group.
    channels = np.exp(0.5 * rng.standard_normal(size[-1]))
    strength = {"mlp.gate.weight": 1.5, "lm_head.weight": 2.5}
    factor = next((f for ending, f in strength.items() if name.endswith(ending)), 1.0)
    return factor * normal * channels / np.sqrt(size[-1])


def write_raw(shape, directory):
    """The raw Hugging Face layout, in three shards with an index, with foreign tensors among them."""
    directory.mkdir(parents=True)
    tensors = {rename(k): as_stored(k, v, shape) for k, v in random_state(shape).items()}
    if not shape.quantised:
        tensors.update(foreign_tensors(shape))
    write_json(directory / "config.json", nested_config(shape))
    names = sorted(tensors)
    shards = 1 if shape.quantised else 3
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {}}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        save_file({n: tensors[n].contiguous() for n in part}, directory / file, metadata={"format": "pt"})
        index["weight_map"].update({n: file for n in part})
    write_json(directory / "model.safetensors.index.json", index)


def rename(name):
    return name.replace("model.", PREFIX, 1) if name.startswith("model.") else name


def as_stored(name, tensor, shape):
    return tensor if name.endswith(shape.float32) else tensor.to(torch.bfloat16)


def foreign_tensors(shape):
    """Tensors of the vision tower and of the multi-token-prediction head, which a text engine ignores."""
    generator = torch.Generator().manual_seed(shape.seed)
    hidden = shape.text["hidden_size"]
    sizes = {
        "model.visual.blocks.0.norm1.weight": (48,),
        "model.visual.patch_embed.proj.weight": (48, 3, 2, 4, 4),
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.norm.weight": (hidden,),
        "mtp.layers.0.input_layernorm.weight": (hidden,),
    }
    return {name: torch.randn(size, generator=generator).to(torch.bfloat16) for name, size in sizes.items()}


def nested_config(shape):
    eos = shape.text["eos_token_id"]
    return dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=shape.text,
        tie_word_embeddings=False, eos_token_id=eos, dtype="bfloat16",
    )


def quantise(shape, raw, directory):
    """mlx-lm's conversion of `raw`, without its tokenizer handling, then the config spelled as the shape asks."""
    directory.mkdir(parents=True)
    model, config = load_model(raw, lazy=True)
    dtype = getattr(mx, shape.dtype)

    def cast(path, value):
        return value if path.endswith(shape.float32) else value.astype(dtype)

    model.update(tree_map_with_path(cast, model.parameters()))
    model, config = quantize_model(
        model, config, shape.group, shape.bits, quant_predicate=lambda path, module: shape.quantisation_of(path)
    )
    save_model(directory, model, donate_model=True)
    (directory / "model.safetensors.index.json").unlink()
    write_json(directory / "config.json", spelled(shape, config))


def spelled(shape, config):
    quantization = {}
    for key, value in config["quantization"].items():
        same = value == {"group_size": shape.group, "bits": shape.bits}
        if not same:  # overrides that say nothing new only lengthen the file
            quantization[key.replace("language_model.model", shape.spelling)] = value
    quantization["mode"] = "affine"
    config = nested_config(shape)
    if not shape.nested:
        config = {**config.pop("text_config"), **config, "architectures": ["Qwen3_5MoeForCausalLM"]}
        config["model_type"] = "qwen3_5_moe"
    config["quantization"] = config["quantization_config"] = quantization
    return config


def make(shape, directory, scratch):
    """Writes the checkpoint of `shape` into `directory`."""
    raw = scratch / f"{shape.name}-raw"
    shutil.rmtree(raw, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    write_raw(shape, raw if shape.quantised else directory)
    if shape.quantised:
        quantise(shape, raw, directory)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")
