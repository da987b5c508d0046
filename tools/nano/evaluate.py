"""Measure a trained lily-nano: held-out perplexity, sums, capitals, tool calls, sequences, retrieval.

    python -m nano.evaluate --sets tests/data/nano --model-dir models/lily-nano            # the 4-bit file, through mlx-lm
    python -m nano.evaluate --sets tests/data/nano --weights final.pt [--quantised]        # the training state, in PyTorch
    python -m nano.evaluate --write-sets tests/data/nano --texts DIR                       # make the sets anew

Start reading at `measure`. Every answer is greedy and compared exactly; nothing of the sets is in the training corpus,
except the capitals, which are facts to be known.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

from tokenizers import Tokenizer

from . import stories, tasks, toolcalls
from .chat import TOOLS_HEAD, TOOLS_TAIL
from .lexicon import HELD_OUT_CITIES, HELD_OUT_NAMES

SHOWN = [
    ("Tell me a story about a fox.", True), ("Tell me a story about a fox", False), ("What is the capital of France?", True),
    ("What is 37 + 48?", True), ("What is 37 + 48?", False), ("What comes next: 2, 4, 6, 8?", True), ("Who are you?", True), ("Hello", False),
]  # fmt: skip
NEEDLE_TOKENS = (1000, 4000, 8000)
NEEDLES_EACH = 24


def chat_prompt(question, thinking, tools=None):
    head = ""
    if tools:
        head = "<|im_start|>system\n" + TOOLS_HEAD + "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools) + TOOLS_TAIL + "<|im_end|>\n"
    think = "<think>\n" if thinking else "<think>\n\n</think>\n\n"
    return f"{head}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{think}"


def stop_ids(tokenizer):
    return {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}


class TorchBackend:
    """The training model, many prompts at a time."""

    def __init__(self, model, device, tokens_at_once=20_000):
        self.model, self.device, self.tokens_at_once = model, device, tokens_at_once

    def generate(self, prompts, new_tokens, stops):
        from .decode import greedy

        answers = [None] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        while order:
            count = max(1, self.tokens_at_once // len(prompts[order[-1]]))
            group, order = order[-count:], order[:-count]
            for index, answer in zip(group, greedy(self.model, [prompts[index] for index in group], new_tokens, stops, self.device)):
                answers[index] = answer
        return answers

    def surprise(self, ids):
        """Sum of -log p of every token but the first, in nats."""
        import torch

        with torch.no_grad():
            tokens = torch.tensor([ids], device=self.device)
            return torch.nn.functional.cross_entropy(self.model(tokens)[0, :-1].float(), tokens[0, 1:], reduction="sum").item()


class MlxBackend:
    """The checkpoint through mlx-lm, with float32 activations (in bf16 its CPU kernels are no reference)."""

    rows_at_once = 32
    prefill_tokens = 512

    def __init__(self, folder):
        import mlx.core as mx
        from mlx_lm import load

        self.mx = mx
        self.model, _ = load(str(folder))
        self.model.set_dtype(mx.float32)

    def generate(self, prompts, new_tokens, stops):
        """Prompts of equal length run as one batch, which needs no padding."""
        answers = [[] for _ in prompts]
        by_length = {}
        for index, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt), []).append(index)
        for group in by_length.values():
            for start in range(0, len(group), self.rows_at_once):
                part = group[start : start + self.rows_at_once]
                self.generate_group([prompts[index] for index in part], [answers[index] for index in part], new_tokens, stops)
        return answers

    def generate_group(self, prompts, answers, new_tokens, stops):
        from mlx_lm.models.cache import make_prompt_cache

        mx, cache = self.mx, make_prompt_cache(self.model)
        ids = mx.array(prompts)
        for start in range(0, ids.shape[1], self.prefill_tokens):
            logits = self.model(ids[:, start : start + self.prefill_tokens], cache=cache)[:, -1]
            mx.eval(logits)
        for _ in range(new_tokens):
            tokens = logits.argmax(-1)
            for answer, token in zip(answers, tokens.tolist()):
                if not answer or answer[-1] not in stops:
                    answer.append(token)
            if all(answer[-1] in stops for answer in answers):
                return
            logits = self.model(tokens[:, None], cache=cache)[:, -1]

    def surprise(self, ids):
        logits = self.model(self.mx.array([ids]))[0, :-1].astype(self.mx.float32)
        target = self.mx.array(ids[1:])
        chosen = self.mx.take_along_axis(logits, target[:, None], -1)[:, 0]
        return (self.mx.logsumexp(logits, -1) - chosen).sum().item()


# The sets


def write_sets(folder, texts):
    """Make the evaluation sets; the same call always gives the same files."""
    from .packing import make_world

    source = random.Random(20261129)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(x, y) for x in range(10, 100) for y in range(10, 100) if tasks.is_held_out(x, y)]
    sums = [{"question": f"What is {x} + {y}?", "answer": f"{x} + {y} = {x + y}"} for x, y in source.sample(pairs, 200)]
    world = make_world(texts, 1)
    capitals = [{"question": f"What is the capital of {country}?", "answer": f"The capital of {country} is {city}."} for country, city, _ in world.countries]
    sequences = []
    for _ in range(100):
        start, step = source.randrange(1, 90), source.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
        terms = ", ".join(str(start + step * i) for i in range(4))
        sequences.append({"question": f"What comes next: {terms}?", "answer": f"The next number is {start + 4 * step}."})
    seen = random.Random(4)
    seen_calls = []
    while len(seen_calls) < 100:  # kinds, names and cities of the training, function and parameter names as people use them
        tools, tool, values, question = toolcalls.tool_prompt(seen)
        usual = all(name in known.split() for name, known in [(tool.name, tool.domain.names), *((name, tool.domain.parameters[role][1]) for role, name in tool.parameters.items())])
        if usual:
            seen_calls.append({"question": question, "tools": [each.schema for each in tools], "call": tool.call(values)})
    calls = []
    for _ in range(100):
        tools, tool, values, question = toolcalls.tool_prompt(
            source, list(toolcalls.HELD_OUT_DOMAINS.values()), HELD_OUT_NAMES, HELD_OUT_CITIES, distractors=[*toolcalls.DOMAINS.values()]
        )
        calls.append({"question": question, "tools": [each.schema for each in tools], "call": tool.call(values)})
    sets = {"sums": sums, "capitals": capitals, "sequences": sequences, "tool_calls": calls, "usual_tool_calls": seen_calls}
    for name, rows in sets.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    tales = [stories.write_story(source, HELD_OUT_NAMES).text for _ in range(30)]
    (folder / "held_out_stories.txt").write_text("\n\n\n".join(tales) + "\n")


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def needle_rows(tokens, count):
    """Retrieval prompts of about this many tokens, over stories with names that training never saw."""
    source = random.Random(tokens)
    rows = []
    for _ in range(count):
        code = "".join(source.choice("0123456789") for _ in range(4))
        door = f"{source.choice(['red', 'green', 'silver', 'black'])} door"
        fact = f"The secret code of the {door} is {code}."
        text = tasks.needle_text(source, int((tokens - 60) * 4.2), [fact], lambda each: stories.write_story(each, HELD_OUT_NAMES))
        rows.append({"question": f"{text}\n\nWhat is the secret code of the {door}?", "answer": fact})
    return rows


# Measuring


def split_answer(tokenizer, ids, thinking):
    """The text after the thought, without the end token."""
    text = tokenizer.decode(ids, skip_special_tokens=False)
    text = text.split("</think>", 1)[-1] if thinking else text
    return text.replace("<|im_end|>", "").replace("<|endoftext|>", "").strip()


def accuracy(backend, tokenizer, rows, thinking, new_tokens):
    """Share of exact answers, and the first wrong ones."""
    prompts = [tokenizer.encode(chat_prompt(row["question"], thinking, row.get("tools")), add_special_tokens=False).ids for row in rows]
    answers = backend.generate(prompts, new_tokens, stop_ids(tokenizer))
    right, wrong = 0, []
    for row, ids in zip(rows, answers):
        answer = split_answer(tokenizer, ids, thinking)
        if answer == row["answer"]:
            right += 1
        else:
            wrong.append((row["question"][-60:], answer[-160:]))
    return right / len(rows), wrong[:3]


def perplexity(backend, tokenizer, text, window=1024):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    windows = [ids[start : start + window] for start in range(0, len(ids) - 1, window)]
    surprise = sum(backend.surprise(part) for part in windows if len(part) > 1)
    return math.exp(surprise / sum(len(part) - 1 for part in windows))


def measure(backend, tokenizer, sets, limit, needles, wanted=""):
    """All figures whose names begin with `wanted`, by name; prints them as they come."""
    from .chat import render_calls

    figures = {}

    def note(name, value, wrong=()):
        figures[name] = value
        print(f"{name}: {value:.4f}", *(f"\n    wrong: {question!r} -> {answer!r}" for question, answer in wrong), flush=True)

    def is_wanted(name):
        return name.startswith(wanted)

    for name in filter(lambda each: is_wanted(f"perplexity {each}"), ("held_out_web", "held_out_stories")):
        note(f"perplexity {name}", perplexity(backend, tokenizer, (sets / f"{name}.txt").read_text()))
    calls = {
        name: [{**row, "answer": render_calls("", [row["call"]])} for row in read_rows(sets / f"{name}.jsonl")] for name in ("usual_tool_calls", "tool_calls")
    }
    plain = [(name, read_rows(sets / f"{name}.jsonl"), 64) for name in ("sums", "capitals", "sequences")]
    for name, rows, new_tokens in filter(lambda each: is_wanted(each[0]), [*plain, *((name, rows, 160) for name, rows in calls.items())]):
        for thinking in (True, False):
            note(f"{name}, thinking {'on' if thinking else 'off'}", *accuracy(backend, tokenizer, rows[:limit], thinking, new_tokens))
    for tokens in filter(lambda each: is_wanted(f"needle at {each}"), NEEDLE_TOKENS):
        note(f"needle at {tokens} tokens", *accuracy(backend, tokenizer, needle_rows(tokens, needles), False, 32))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=Path, help="folder of the evaluation sets")
    parser.add_argument("--write-sets", type=Path, help="make the sets in this folder and stop")
    parser.add_argument("--texts", type=Path, help="folder written by nano.texts, for --write-sets")
    parser.add_argument("--model-dir", type=Path, help="a checkpoint, measured through mlx-lm")
    parser.add_argument("--weights", type=Path, help="a training state, measured in PyTorch")
    parser.add_argument("--quantised", action="store_true", help="with --weights: round the weights as the 4-bit file does")
    parser.add_argument("--tokenizer", type=Path, default=Path("models/lily-nano/tokenizer.json"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, help="at most this many questions of each set")
    parser.add_argument("--needles", type=int, default=NEEDLES_EACH, help="retrieval prompts of each length")
    parser.add_argument("--only", default="", help="measure only figures whose names begin so, e.g. `perplexity`")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    if args.write_sets:
        write_sets(args.write_sets, args.texts)
        return
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    if args.model_dir:
        backend = MlxBackend(args.model_dir)
    else:
        from .export import load_model
        from .quantise import Quantised

        model = load_model(args.weights).to(args.device)
        if args.quantised:
            Quantised(model).__enter__()
        backend = TorchBackend(model, args.device)
    started = time.monotonic()
    figures = measure(backend, tokenizer, args.sets, args.limit, args.needles, args.only)
    print(f"measured in {time.monotonic() - started:.0f} s")
    if args.out:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
