"""MLX's affine quantisation in PyTorch, and the quantisation-aware step.

Start reading at `quantise`: groups of 64 inputs share a scale and a bias, `w = scale * q + bias`; the scale may be
negative. `Quantised` swaps a model's weights for their quantised values during forward and backward; the gradient then
applies to the full-precision weights (straight-through).
"""

import torch

from .config import BITS, GROUP_SIZE, ROUTER_BITS


def bits_of(name, parameter):
    """Bits under which the checkpoint stores this parameter; None where it stays bf16 or fp32."""
    if parameter.dim() < 2 or "conv1d" in name:
        return None
    return ROUTER_BITS if name.endswith(("mlp.gate.weight", "mlp.shared_expert_gate.weight")) else BITS


def quantise(weight, bits):
    """Integers [rows, groups, 64], scales and biases [rows, groups]; the rule of mlx.core.quantize on a bf16 weight."""
    groups = weight.detach().to(torch.bfloat16).float().unflatten(-1, (-1, GROUP_SIZE))
    levels = 2**bits - 1
    low, high = groups.amin(-1), groups.amax(-1)
    low_is_edge = low.abs() > high.abs()  # the value furthest from zero is represented exactly
    scale = ((high - low) / levels).clamp_min(1e-7)
    scale = torch.where(low_is_edge, scale, -scale)
    edge = torch.where(low_is_edge, low, high)
    steps = (edge / scale).round()
    flat = steps == 0
    scale = torch.where(flat, scale, edge / torch.where(flat, torch.ones_like(steps), steps))
    bias = torch.where(flat, torch.zeros_like(edge), edge)
    scale, bias = scale.bfloat16().float(), bias.bfloat16().float()
    q = ((groups - bias.unsqueeze(-1)) / scale.unsqueeze(-1)).round().clamp(0, levels)
    return q, scale, bias


def dequantise(q, scale, bias):
    return (q * scale.unsqueeze(-1) + bias.unsqueeze(-1)).flatten(-2)


def stored(name, parameter):
    """The value that an engine reads back from the checkpoint for this parameter."""
    bits = bits_of(name, parameter)
    if bits:
        return dequantise(*quantise(parameter, bits)).to(parameter.dtype)
    if name.endswith("A_log"):
        return parameter.detach()
    if "norm" in name and "linear_attn" not in name:  # stored as bf16(1 + w)
        return ((1 + parameter.detach()).bfloat16().float() - 1).to(parameter.dtype)
    return parameter.detach().bfloat16().to(parameter.dtype)


class Quantised:
    """Context in which the model computes with its stored weights. `optimizer.step()` belongs outside."""

    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def __enter__(self):
        self.master = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            parameter.copy_(stored(name, parameter))

    @torch.no_grad()
    def __exit__(self, *error):
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.master[name])
