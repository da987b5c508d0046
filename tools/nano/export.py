"""Write a checkpoint of lily-nano: 4-bit in MLX's layout, or raw bf16 in Hugging Face's layout.

    python -m nano.export --weights state.pt --model-dir models/lily-nano          # 4-bit, beside the tokenizer
    python -m nano.export --random --model-dir DIR --tokenizer models/lily-nano    # random weights, for tests
    python -m nano.export --weights state.pt --model-dir DIR --raw                 # raw bf16

Start reading at `mlx_tensors`.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .config import Shape, generation_config, model_config
from .model import Nano
from .quantise import bits_of, quantise

COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def pack_words(q, bits):
    """Integers [..., inputs] -> 32-bit words [..., inputs * bits / 32], low bits first."""
    per_word = 32 // bits
    shifts = torch.arange(per_word) * bits
    words = (q.to(torch.int64).flatten(-2).unflatten(-1, (-1, per_word)) << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).view(torch.uint32)


def mlx_parameters(name, parameter):
    """Split and rename one trained parameter as MLX stores it: (name without `.weight`, values)."""
    if name.startswith("lm_head"):
        return [("language_model.lm_head", parameter)]
    name = "language_model." + name
    if name.endswith("experts.gate_up_proj"):
        gate, up = parameter.chunk(2, 1)
        base = name.replace("experts.gate_up_proj", "switch_mlp.")
        return [(base + "gate_proj", gate), (base + "up_proj", up)]
    if name.endswith("experts.down_proj"):
        return [(name.replace("experts.down_proj", "switch_mlp.down_proj"), parameter)]
    return [(name.removesuffix(".weight"), parameter)]


def mlx_tensors(model):
    tensors = {}
    for name, parameter in model.state_dict().items():
        bits = bits_of(name, parameter)
        for base, values in mlx_parameters(name, parameter):
            if bits:
                q, scale, bias = quantise(values, bits)
                tensors[base + ".weight"] = pack_words(q, bits)
                tensors[base + ".scales"] = scale.bfloat16()
                tensors[base + ".biases"] = bias.bfloat16()
            elif name.endswith("A_log"):
                tensors[base] = values.float()
            elif name.endswith("dt_bias"):
                tensors[base] = values.bfloat16()
            elif "conv1d" in name:
                tensors[base + ".weight"] = values.bfloat16().transpose(1, 2)  # [channels, taps, 1]
            elif "linear_attn.norm" in name:
                tensors[base + ".weight"] = values.bfloat16()
            else:
                tensors[base + ".weight"] = (1 + values).bfloat16()
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def raw_tensors(model):
    """Hugging Face's layout: fused experts, norms as w, conv1d [channels, 1, taps]."""
    tensors = {}
    for name, parameter in model.state_dict().items():
        name = name if name.startswith("lm_head") else name.replace("model.", "model.language_model.", 1)
        tensors[name] = (parameter.float() if name.endswith("A_log") else parameter.bfloat16()).contiguous()
    return tensors


def write_checkpoint(model, folder, companions, raw=False):
    """Write weights and config files to `folder`; the tokenizer and the template come from `companions`."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != companions.resolve():
        for file in COMPANIONS:
            shutil.copy(companions / file, folder / file)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    eos_id, pad_id = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    tensors = raw_tensors(model) if raw else mlx_tensors(model)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt" if raw else "mlx"})
    for file, config in (
        ("config.json", model_config(model.shape, eos_id, pad_id, quantised=not raw)),
        ("generation_config.json", generation_config(eos_id, pad_id)),
    ):
        (folder / file).write_text(json.dumps(config, indent=2) + "\n")


def load_model(weights):
    """A model from a state file of `nano.train`."""
    model = Nano(Shape())
    state = torch.load(weights, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"] if "model" in state else state)
    return model.float().eval()


def random_model(seed=0):
    """Random weights with every gain, bias and gate away from its neutral value, so that a wrong term shows."""
    torch.manual_seed(seed)
    model = Nano(Shape())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "A_log" not in name:
                parameter += 0.1 * torch.randn_like(parameter)
            elif name.endswith("mlp.gate.weight"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", type=Path, help="state file of nano.train")
    source.add_argument("--random", action="store_true", help="random weights")
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="folder with the tokenizer and the template (default: the model folder)")
    parser.add_argument("--raw", action="store_true", help="bf16 in Hugging Face's layout")
    args = parser.parse_args()
    model = random_model() if args.random else load_model(args.weights)
    write_checkpoint(model, args.model_dir, args.tokenizer or args.model_dir, args.raw)
    for file in sorted(args.model_dir.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
