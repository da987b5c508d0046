"""Makes tests/goldens/lily-nano: what mlx-lm in float32 computes with the bundled model.

Logits at every position of three prompts, 64 greedy tokens after each, and the perplexity of the held-out texts.
The prompts are encoded by the model's tokenizer from literal text, so that no chat template is involved.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

import mlx_f32
from document import save_document

ROOT = Path(__file__).resolve().parents[2]
CONTINUATION = 64
WINDOW = 512  # tokens; each window starts from an empty state, so that the figure does not depend on long contexts

PROMPTS = [
    "Once upon a time there was a fox named Milo who lived near a quiet river. One morning,",
    "<|im_start|>user\nWhat is 37 + 48?<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
]


def sequences(model, tokenizer):
    """The prompts with their continuations, and the logits by tensor name."""
    found, tensors = [], {}
    for index, text in enumerate(PROMPTS):
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        tensors[f"sequences.{index}.logits.mlx"] = mlx_f32.logits(model, tokens)
        greedy = mlx_f32.greedy(model, tokens, CONTINUATION)
        found.append(dict(text=text, tokens=tokens, mlx=greedy))
        print(f"{text!r}\n  continues {tokenizer.decode(greedy['tokens'])!r}\n  least margin {min(greedy['margins']):.1e}")
    return found, tensors


def perplexity(model, tokenizer, text):
    """Over the whole text, window by window."""
    ids = tokenizer.encode(text.read_text(), add_special_tokens=False).ids
    windows = [ids[at : at + WINDOW] for at in range(0, len(ids) - 1, WINDOW)]
    nll = [mlx_f32.negative_log_likelihood(model, window) for window in windows]
    scored = sum(len(window) - 1 for window in windows)
    figure = float(np.exp(sum(nll) / scored))
    print(f"{text.name}: perplexity {figure:.6f} over {scored} tokens")
    file = str(text.relative_to(ROOT)) if text.is_relative_to(ROOT) else text.name
    return dict(file=file, window=WINDOW, scored=scored, nll=nll, perplexity=figure, tokens=ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "lily-nano")
    parser.add_argument("--texts", type=Path, nargs="+", default=sorted((ROOT / "tests" / "data" / "nano").glob("held_out*.txt")))
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "goldens" / "lily-nano")
    options = parser.parse_args()
    start = time.time()
    model, tokenizer = mlx_f32.load(options.model), Tokenizer.from_file(str(options.model / "tokenizer.json"))
    found, tensors = sequences(model, tokenizer)
    figures = [perplexity(model, tokenizer, text) for text in options.texts]
    options.out.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v, np.float32) for k, v in tensors.items()}, options.out / "golden.safetensors")
    save_document(options.out, dict(sequences=found, perplexities=figures))
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
