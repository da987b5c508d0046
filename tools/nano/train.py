"""Train lily-nano within a wall-clock limit, on one GPU (or, for trying the code paths, on a CPU).

    python -m nano.train --texts DIR --tokenizer models/lily-nano/tokenizer.json --out DIR --minutes 7.1

Start reading at `Plan`: everything in the schedule is a function of the share of the time that has passed, so the run ends
well whatever the speed. Three overlapping phases: short rows, then also long rows, then the same computed with the
quantised weights while the learning rate falls to zero. The last state is written at the end and every minute.
"""

import argparse
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tokenizers import Tokenizer

from . import evaluate, packing, tasks
from .config import Shape
from .model import Nano
from .quantise import Quantised

BALANCE_WEIGHT = 0.01


@dataclass(frozen=True)
class Plan:
    """When what happens, as shares of the whole time."""

    peak_rate: float = 2e-3
    warm_up_steps: int = 200
    decay_from: float = 0.60
    long_from: float = 0.70  # from here, one step in `long_every` uses long rows
    long_every: int = 4
    quantised_from: float = 0.82

    def learning_rate(self, step, progress):
        warm_up = min(1.0, (step + 1) / self.warm_up_steps)
        decay = min(1.0, max(0.0, (1.0 - progress) / (1.0 - self.decay_from)))
        return self.peak_rate * warm_up * decay

    def uses_long_rows(self, step, progress):
        return progress >= self.long_from and step % self.long_every == 0


class Feeder:
    """Batches of one row length, from worker processes, on the device."""

    def __init__(self, args, shares, rows, length, workers, seed):
        self.device = args.device
        self.queue = packing.batches(args.texts, args.tokenizer, shares, rows, length, workers, seed)

    def next(self):
        return [torch.from_numpy(part).to(self.device, torch.long, non_blocking=True) for part in self.queue.get()]


class Trainer:
    def __init__(self, args, shape=Shape()):
        self.args, self.plan = args, Plan(peak_rate=args.rate)
        args.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("highest")  # TF32 breaks the block inverse of the delta rule
        cuda = args.device == "cuda"
        self.short = Feeder(args, tasks.TASKS, args.rows, args.length, args.workers, args.seed)
        self.long = Feeder(args, tasks.LONG_TASKS, max(1, args.rows * args.length // args.long_length), args.long_length, max(1, args.workers // 3), args.seed + 1)
        self.model = Nano(shape).to(args.device)
        matrices = [parameter for parameter in self.model.parameters() if parameter.dim() >= 2]
        vectors = [parameter for parameter in self.model.parameters() if parameter.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95), fused=cuda)
        layers = self.model.model.layers
        self.fast_layers = [torch.compile(layer, dynamic=False) for layer in layers] if args.compile else None
        self.step, self.tokens, self.elapsed = 0, 0, 0.0
        if args.resume:
            self.load(args.resume)

    def load(self, path):
        state = torch.load(path, map_location=self.args.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.elapsed = state["step"], state["tokens"], state["elapsed"]
        print(f"resumed at step {self.step}, {self.elapsed:.0f} s", flush=True)

    def save(self, name="state.pt", optimizer=True):
        state = {"model": self.model.state_dict(), "step": self.step, "tokens": self.tokens, "elapsed": self.elapsed}
        if optimizer:
            state["optimizer"] = self.optimizer.state_dict()
        path = self.args.out / name
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def train_step(self, progress):
        """One update; returns the loss before it, the balance loss and the gradient norm."""
        long = self.plan.uses_long_rows(self.step, progress)
        inputs, targets = (self.long if long else self.short).next()
        rate = self.plan.learning_rate(self.step, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        quantised = Quantised(self.model) if progress >= self.plan.quantised_from else contextlib.nullcontext()
        with quantised:
            with torch.autocast(self.args.device, dtype=torch.bfloat16, enabled=self.args.device == "cuda"):
                loss, balance = self.model.loss(inputs, targets, None if long else self.fast_layers)
            (loss + BALANCE_WEIGHT * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += inputs.numel()
        return loss.detach(), balance.detach(), norm, rate, long

    def run(self):
        limit = self.args.minutes * 60
        started = time.monotonic() - self.elapsed
        last_save = last_show = last_log = time.monotonic()
        logged_tokens, progress = self.tokens, 0.0
        while progress < 1.0 and self.step < self.args.steps:
            loss, balance, norm, rate, long = self.train_step(progress)
            self.elapsed = time.monotonic() - started
            progress = self.elapsed / limit
            if self.step % self.args.log_every == 0 or self.step == 1:
                values = f"loss {loss.item():.3f} balance {balance.item():.3f} norm {norm.item():.2f}"
                now = time.monotonic()
                speed = (self.tokens - logged_tokens) / (now - last_log)
                last_log, logged_tokens = now, self.tokens
                mode = ("long " if long else "") + ("4-bit " if progress >= self.plan.quantised_from else "")
                print(f"{self.elapsed:6.0f} s step {self.step} {mode}{values} rate {rate:.1e} {self.tokens / 1e6:.1f} M tokens {speed:.0f}/s", flush=True)
            if time.monotonic() - last_show > self.args.show_every:
                self.show()
                last_show = last_log = time.monotonic()
                logged_tokens = self.tokens
            if time.monotonic() - last_save > 60:
                self.save()
                last_save = time.monotonic()
        self.save()
        self.save("final.pt", optimizer=False)
        print(f"finished: {self.step} steps, {self.tokens / 1e6:.1f} M tokens, {self.elapsed:.0f} s", flush=True)

    def rehearse(self):
        """One step of every kind, a save and a load, with time and memory: run it before the real thing."""
        for progress in (0.0, 0.0, self.plan.long_from, self.plan.quantised_from, 0.999):
            if progress > 0:
                self.step = self.plan.long_every
            started = time.monotonic()
            loss, balance, norm, _, long = self.train_step(progress)
            values = f"loss {loss.item():.3f} balance {balance.item():.3f} norm {norm.item():.2f}"
            memory = torch.cuda.max_memory_allocated() / 1e9 if self.args.device == "cuda" else 0.0
            print(f"rehearsal at {progress}: {'long' if long else 'short'} {values}, {time.monotonic() - started:.2f} s, {memory:.1f} GB", flush=True)
        self.save("rehearsal.pt")
        self.load(self.args.out / "rehearsal.pt")
        self.show()

    def show(self):
        """Print greedy answers to a few fixed prompts."""
        tokenizer = Tokenizer.from_file(str(self.args.tokenizer))
        backend = evaluate.TorchBackend(self.model, self.args.device)
        prompts = [evaluate.chat_prompt(question, thinking) for question, thinking in evaluate.SHOWN]
        answers = backend.generate([tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts], 48, evaluate.stop_ids(tokenizer))
        for (question, _), answer in zip(evaluate.SHOWN, answers):
            print(f"    {question!r} -> {tokenizer.decode(answer, skip_special_tokens=False)!r}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, help="folder written by nano.texts")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder for state.pt and final.pt")
    parser.add_argument("--minutes", type=float, required=True, help="wall-clock limit of the training loop")
    parser.add_argument("--steps", type=int, default=10**9, help="stop after this many steps")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--long-length", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=Plan.peak_rate)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--show-every", type=float, default=150, help="seconds between sample answers")
    parser.add_argument("--resume", type=Path, help="state.pt of an earlier run")
    parser.add_argument("--rehearse", action="store_true", help="one step of every kind, then stop")
    args = parser.parse_args()
    trainer = Trainer(args)
    if args.rehearse:
        trainer.rehearse()
    else:
        trainer.run()


if __name__ == "__main__":
    main()
