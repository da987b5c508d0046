"""mlx-lm in float32 on the CPU: logits, greedy text, log-likelihood.

In bf16 mlx on the CPU accumulates in bf16 and is no reference; hence set_dtype on the quantised model.
"""

import shutil
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from safetensors import safe_open
from safetensors.torch import save_file

mx.set_default_device(mx.cpu)


def load(directory):
    """The model of a checkpoint in either layout, computing in float32."""
    with safe_open(sorted(directory.glob("model*.safetensors"))[0], "pt") as opened:
        raw = any(".experts.gate_up_proj" in name or name.startswith("model.") for name in opened.keys())
    if raw:
        return load_raw(directory)
    model, _ = load_model(directory)
    model.set_dtype(mx.float32)
    return model


def load_raw(directory):
    """Raw checkpoints are read from a float32 copy: mlx-lm would round 1 + w of the norms to bf16."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in directory.glob("model*.safetensors"):
            with safe_open(file, "pt") as opened:
                save_file({n: opened.get_tensor(n).float() for n in opened.keys()}, Path(scratch) / file.name)
        shutil.copy(directory / "config.json", scratch)
        model, _ = load_model(Path(scratch))
    model.set_dtype(mx.float32)
    return model


def logits(model, tokens):
    return np.array(model(mx.array([tokens]))[0])


def greedy(model, tokens, count):
    """Prompt in one pass, then one token at a time through the cache."""
    cache, chosen, margins = make_prompt_cache(model), [], []
    row = np.array(model(mx.array([tokens]), cache=cache)[0, -1])
    for _ in range(count):
        best, second = np.sort(row)[::-1][:2]
        chosen.append(int(row.argmax()))
        margins.append(float(best - second))
        row = np.array(model(mx.array([[chosen[-1]]]), cache=cache)[0, -1])
    return {"tokens": chosen, "margins": margins}


def negative_log_likelihood(model, window):
    """Of all tokens but the first, in nats, from an empty state."""
    rows = logits(model, window)[:-1].astype(np.float64)
    top = rows.max(-1, keepdims=True)
    norm = top[:, 0] + np.log(np.exp(rows - top).sum(-1))
    return float((norm - rows[np.arange(len(rows)), window[1:]]).sum())
