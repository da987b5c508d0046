"""Makes tests/goldens/{base,group32,group128,bits8,raw}: the tiny checkpoints and what other implementations compute on them."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import checkpoints
import hf
import mlx_f32
from document import save_document
from shapes import SHAPES

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "goldens"
TOKENS, CONTINUATION = 48, 64
POSITIONS = [0, 1, 2, 3, 7, 15, 16, 31, 47]  # around the convolution's start, a power of two and the end


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def make(shape, directory, scratch):
    checkpoints.make(shape, directory, scratch)
    rng = np.random.default_rng(100 + shape.seed)
    tokens = [int(t) for t in rng.integers(0, shape.text["vocab_size"], TOKENS)]
    tokens[20:24] = [tokens[19]] * 4  # repeated tokens: equal keys in attention and in the delta rule
    theirs, mlx = hf.load(directory), mlx_f32.load(directory)
    tensors = {
        "sequences.0.logits.transformers": hf.logits(theirs, tokens),
        "sequences.0.logits.mlx": mlx_f32.logits(mlx, tokens),
        **hf.layer_tensors(theirs, tokens, POSITIONS),
    }
    sequence = dict(
        tokens=tokens,
        mlx=mlx_f32.greedy(mlx, tokens, CONTINUATION),
        transformers=hf.greedy(theirs, tokens, CONTINUATION),
    )
    save_file({k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}, directory / "golden.safetensors")
    save_document(directory, dict(positions=POSITIONS, sequences=[sequence]))
    return report(shape, tensors, sequence)


def report(shape, tensors, sequence):
    a, b = tensors["sequences.0.logits.mlx"], tensors["sequences.0.logits.transformers"]
    same = sum(x == y for x, y in zip(sequence["mlx"]["tokens"], sequence["transformers"]["tokens"]))
    margin = min(sequence["mlx"]["margins"])
    return (
        f"{shape.name}: mlx-lm against transformers {distance(a, b):.1e}, greedy {same}/{CONTINUATION}, "
        f"least margin {margin:.1e}, standard deviation of the logits {b.std():.2f}"
    )


def main():
    torch.manual_seed(0)
    wanted = sys.argv[1:] or [shape.name for shape in SHAPES]
    with tempfile.TemporaryDirectory() as scratch:
        for shape in SHAPES:
            if shape.name in wanted:
                print(make(shape, GOLDENS / shape.name, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
