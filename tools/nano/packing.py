"""Turn generated samples into batches: choose tasks by their share of tokens, tokenise, pack into rows.

Start reading at `batches`. A row holds whole samples one after the other, separated by `<|endoftext|>`; the first starts
at the row's beginning, the last may be cut.
"""

import json
import multiprocessing
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from . import tasks

IGNORE = -100
WHOLE_SAMPLE_SHARE = 0.1  # samples of which prompts are trained too


def make_world(texts, seed):
    """`texts` is the folder written by nano.texts."""
    folder = Path(texts)
    plain = {name: (folder / f"{name}.txt").read_text() for name in ("web", "wordnet", "factbook")}
    countries = json.loads((folder / "countries.json").read_text())
    topics = [line.split(" (noun)")[0] for line in plain["wordnet"].splitlines() if " (noun): " in line]
    topics = sorted({topic for topic in topics if topic.islower() and topic.isascii() and len(topic) > 3})
    return tasks.World(random.Random(seed), countries, topics, plain)


class Mixer:
    """An endless stream of tokenised samples whose tasks take their given shares of the tokens."""

    def __init__(self, world, tokenizer, shares):
        self.world, self.tokenizer, self.shares = world, tokenizer, shares
        self.separator = tokenizer.token_to_id("<|endoftext|>")
        self.tokens = {task: 0 for task in shares}
        self.ready = []

    def refill(self, count=64):
        """Generate `count` samples, each of the task that is furthest behind its share."""
        picked = []
        mean = {task: self.tokens[task] / max(1, self.drawn.get(task, 0)) for task in self.shares} if hasattr(self, "drawn") else None
        if mean is None:
            self.drawn = {}
            picked = [task for task in self.shares for _ in range(4)]
        else:
            planned = dict(self.tokens)
            for _ in range(count):
                task = min(self.shares, key=lambda each: planned[each] / self.shares[each])
                planned[task] += mean[task]
                picked.append(task)
        samples = [tasks.sample(task, self.world) for task in picked]
        encoded = iter(self.tokenizer.encode_batch([text for sample in samples for text, _ in sample.segments], add_special_tokens=False))
        for task, sample in zip(picked, samples):
            whole = self.world.random.random() < WHOLE_SAMPLE_SHARE
            ids, trained = [], []
            for _, counts in sample.segments:
                piece = next(encoded).ids
                ids += piece
                trained += [counts or whole] * len(piece)
            if ids[-1] != self.separator:
                ids.append(self.separator)
                trained.append(whole)
            self.tokens[task] += len(ids)
            self.drawn[task] = self.drawn.get(task, 0) + 1
            self.ready.append((ids, trained))
        self.world.random.shuffle(self.ready)

    def row(self, length):
        """Token ids and trained flags [length]."""
        ids, trained = [], []
        while len(ids) < length:
            if not self.ready:
                self.refill()
            more_ids, more_trained = self.ready.pop()
            ids += more_ids
            trained += more_trained
        return ids[:length], trained[:length]

    def batch(self, rows, length):
        """Inputs [rows, length] and targets [rows, length]; targets that do not count are IGNORE. Both int16."""
        inputs = np.empty((rows, length), np.int16)
        targets = np.empty((rows, length), np.int16)
        for index in range(rows):
            ids, trained = (np.array(part) for part in self.row(length + 1))
            inputs[index] = ids[:-1]
            targets[index] = np.where(trained[1:], ids[1:], IGNORE)
        return inputs, targets


def work(queue, texts, tokenizer_file, shares, rows, length, seed):
    mixer = Mixer(make_world(texts, seed), Tokenizer.from_file(tokenizer_file), shares)
    while True:
        queue.put(mixer.batch(rows, length))


def batches(texts, tokenizer_file, shares, rows, length, workers, seed):
    """Start `workers` processes; returns a queue of (inputs, targets). The processes end with this one."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=4 * workers)
    for worker in range(workers):
        arguments = (queue, str(texts), str(tokenizer_file), shares, rows, length, seed * 1000 + worker)
        context.Process(target=work, args=arguments, daemon=True).start()
    return queue
