"""Writes the file that `lily eval --reference` compares with: what another engine predicts of a text, in float32.

    python reference.py --model DIR --text FILE --out FILE.safetensors
    python reference.py --model DIR --engine transformers --tokens FILE --logits 192 --type f32 --out FILE.safetensors

The text is fed window by window, each from an empty state. Of every position the file gets the most probable token and the
log-probability of the token that follows, of the first `--logits` positions all logits: `--type f16` (the default) takes
2 bytes for each token of the vocabulary, 95 MB for 192 positions of the full model.

mlx-lm computes with the quantised weights; transformers with the same weights expanded to float32, four bytes each.
"""

import argparse
import importlib
import re
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {"mlx": ("mlx_f32", "mlx-lm"), "transformers": ("hf", "transformers")}


def read_tokens(options):
    if options.tokens:
        ids = [int(word) for word in re.findall(r"\d+", options.tokens.read_text())]
    else:
        tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
        ids = tokenizer.encode(options.text.read_text(), add_special_tokens=False).ids
    return ids[: options.limit]


def predictions(rows, following):
    """Most probable tokens, and log-probabilities of those that follow (one row more than these)."""
    rows = rows.astype(np.float64)
    top = rows.max(-1, keepdims=True)
    norm = top[:, 0] + np.log(np.exp(rows - top).sum(-1))
    logprobs = np.zeros(len(rows), np.float32)
    scored = np.arange(len(following))
    logprobs[scored] = rows[scored, following] - norm[scored]
    return rows.argmax(-1).astype(np.int32), logprobs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "lily-nano")
    parser.add_argument("--engine", choices=ENGINES, default="mlx")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path)
    source.add_argument("--tokens", type=Path, help="token ids, however separated")
    parser.add_argument("--limit", type=int, help="only so many tokens, from the beginning")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--logits", type=int, default=192, help="positions whose logits are kept whole")
    parser.add_argument("--type", choices=["f16", "f32"], default="f16", help="of these logits")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    module, package = ENGINES[options.engine]
    engine = importlib.import_module(module)
    tokens = read_tokens(options)
    model, started = engine.load(options.model), time.monotonic()
    top1, logprobs, kept = [], [], []
    for at in range(0, len(tokens), options.window):
        window = tokens[at : at + options.window]
        rows = engine.logits(model, window)
        best, probable = predictions(rows, window[1:])
        top1.append(best)
        logprobs.append(probable)
        if at < options.logits:
            kept.append(rows[: options.logits - at].astype(np.float16 if options.type == "f16" else np.float32))
        done = at + len(window)
        left = (time.monotonic() - started) / done * (len(tokens) - done)
        print(f"\r{done} of {len(tokens)} tokens, {left:.0f} s left ", end="", flush=True)
    scored = len(tokens) - len(top1)
    tensors = {"tokens": np.array(tokens, np.int32), "top1": np.concatenate(top1), "logprobs": np.concatenate(logprobs)}
    if kept:
        tensors["logits"] = np.ascontiguousarray(np.concatenate(kept))
    metadata = {"window": str(options.window), "made_by": f"{package} {version(package)} in f32"}
    save_file(tensors, options.out, metadata)
    print(f"\nperplexity {np.exp(-tensors['logprobs'].astype(np.float64).sum() / scored):.6f} over {scored} tokens: {options.out}")


if __name__ == "__main__":
    main()
