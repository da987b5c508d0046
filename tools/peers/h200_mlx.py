"""mlx-lm on the default device: prefill and greedy decode of one checkpoint, one line of JSON a length.

    python h200_mlx.py MODEL DECODED LENGTH...
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

CHUNK = 2048


def prompt(length, vocab):
    """That of Lily's bench."""
    return mx.array([[i * 2654435761 % 2**32 % vocab for i in range(length)]])


def measure(model, tokens, decoded):
    """Seconds of the prompt, until its first token is here, and of the tokens after it."""
    cache, started = make_prompt_cache(model), time.perf_counter()
    for at in range(0, tokens.shape[1], CHUNK):
        logits = model(tokens[:, at : at + CHUNK], cache=cache)[:, -1]
        mx.eval([layer.state for layer in cache])
    token = mx.argmax(logits, -1)[:, None]
    token.item()
    prefilled = time.perf_counter()
    for _ in range(decoded):
        following = mx.argmax(model(token, cache=cache)[:, -1], -1)[:, None]
        mx.async_eval(following)
        token.item()  # one step behind, as a generator does
        token = following
    token.item()
    return prefilled - started, time.perf_counter() - prefilled


def main():
    directory, decoded, *lengths = sys.argv[1:]
    model, config = load_model(Path(directory))
    vocab = config.get("text_config", config)["vocab_size"]
    for length in map(int, lengths):
        tokens = prompt(length, vocab)
        measure(model, tokens, int(decoded))  # warms up
        prefill, decode = measure(model, tokens, int(decoded))
        print(json.dumps(dict(length=length, prefill_tok_s=length / prefill, decode_tok_s=int(decoded) / decode)), flush=True)


if __name__ == "__main__":
    main()
