"""Lily's and llama.cpp's CPU engines by turns on one machine: prefill and decode, medians and ratios.

    python tools/peers/paired.py --lily BIN --model DIR --llama BIN --gguf FILE [--lengths 512,4096] [--rounds 3]

Every arm is a fresh process. Before it, both engines' weights leave the page cache and its own are read until they are in
it: where they lie in memory decides much, and what stays there for long is split into small pages on some machines
(bench/results/cpu-xeon-amx.md). Decode is measured after a prompt of each length. Beside each figure stands the share of the processor that other work took meanwhile; a
round with more than --noise of it is dropped and repeated, at most --rounds times more.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

DECODED = 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lily", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--llama", type=pathlib.Path, required=True)
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=[512, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--noise", type=float, default=0.05, help="share of the processor that others may take")
    parser.add_argument("--lily-flags", type=shlex.split, default=[])
    parser.add_argument("--llama-flags", type=shlex.split, default=[])
    parser.add_argument("--wrap", type=shlex.split, default=[], help="a command to run every arm under, such as a lock")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def busy_seconds() -> float:
    """Seconds that all processors of the machine have worked."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cached(file: pathlib.Path) -> float:
    """The share of a file's pages that are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size, page = file.stat().st_size, mmap.PAGESIZE
    pages = (ctypes.c_ubyte * -(-size // page))()
    with file.open("rb") as opened:
        at = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, opened.fileno(), ctypes.c_long(0))
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(bytes(pages)) / len(pages)


def load(files: list[pathlib.Path], others: list[pathlib.Path]) -> None:
    """Brings files into the page cache anew, for which others leave it."""
    for file in files + others:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in range(4):
        for file in files:
            subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)
        share = min(map(cached, files))
        if share > 0.999:
            return
    print(f"    only {share:.1%} of the weights stay in the page cache", flush=True)


def run(wrap: list[str], files: list[pathlib.Path], others: list[pathlib.Path], command: list[str]) -> tuple[str, float]:
    """A process's output after its files were read, and the share of the processor that others took meanwhile."""
    load(files, others)
    script = 'touch "$STAMP"; exec ' + shlex.join(command)
    with tempfile.NamedTemporaryFile() as stamp:
        environment = dict(os.environ, STAMP=stamp.name)
        os.utime(stamp.name, (0, 0))
        arm = subprocess.Popen(
            wrap + ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        while arm.poll() is None and os.stat(stamp.name).st_mtime == 0:
            time.sleep(0.05)  # a lock is waited for, perhaps
        begin, machine, own = time.monotonic(), busy_seconds(), children_seconds()
        output, errors = arm.communicate()
    if arm.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{errors}")
    elapsed = time.monotonic() - begin
    others = (busy_seconds() - machine) - (children_seconds() - own)
    return output, max(0.0, others / (elapsed * (os.cpu_count() or 1)))


def weights(options: argparse.Namespace) -> list[pathlib.Path]:
    return sorted(options.model.glob("*.safetensors"))


def lily(options: argparse.Namespace, length: int) -> tuple[dict[str, float], float]:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [options.lily, "bench", "--device", "cpu", "--model", options.model, "--threads", options.threads]
        command += ["--lengths", length, "--decode", DECODED, "--rounds", 1, "--json", report.name, *options.lily_flags]
        _, others = run(options.wrap, weights(options), [options.gguf], [str(part) for part in command])
        figures = json.load(open(report.name))["arms"][0]["figures"][0]
    return {"prefill": figures["prefill_tok_s"], "decode": figures["decode_tok_s"]}, others


def llama(options: argparse.Namespace, length: int) -> tuple[dict[str, float], float]:
    command = [options.llama, "-m", options.gguf, "-t", options.threads, "-r", 1, "-o", "json"]
    command += ["-p", length, "-n", 0, *options.llama_flags]
    decode = [options.llama, "-m", options.gguf, "-t", options.threads, "-r", 1, "-o", "json"]
    decode += ["-p", 0, "-n", DECODED, "-d", length, *options.llama_flags]
    figures, noise = {}, 0.0
    for name, part in (("prefill", command), ("decode", decode)):
        output, others = run(options.wrap, [options.gguf], weights(options), [str(word) for word in part])
        (result,) = json.loads(output)
        figures[name], noise = result["avg_ts"], max(noise, others)
    return figures, noise


def processor() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def version(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1] if done.stdout or done.stderr else "?"


def main() -> None:
    options = arguments()
    print(f"{time.strftime('%Y-%m-%d')}, {processor()}, {options.threads} threads; {version([str(options.lily), '--version'])}", flush=True)
    rows = []
    for length in options.lengths:
        samples: dict[str, list[dict[str, float]]] = {"lily": [], "llama.cpp": []}
        for attempt in range(2 * options.rounds):
            if min(map(len, samples.values())) >= options.rounds:
                break
            for name, arm in (("lily", lily), ("llama.cpp", llama)):
                if len(samples[name]) >= options.rounds:
                    continue
                figures, others = arm(options, length)
                kept = others <= options.noise
                print(f"  {length} {name}: {figures}, others {others:.1%}{'' if kept else ', dropped'}", flush=True)
                if kept:
                    samples[name].append(figures)
        for stage in ("prefill", "decode"):
            medians = [statistics.median(sample[stage] for sample in samples[name]) if samples[name] else float("nan") for name in samples]
            rows.append({"tokens": length, "stage": stage, "lily": medians[0], "llama.cpp": medians[1], "ratio": medians[0] / medians[1]})
    print(f"\n| tokens | stage | Lily tok/s | llama.cpp tok/s | ratio |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['tokens']} | {row['stage']} | {row['lily']:.2f} | {row['llama.cpp']:.2f} | {row['ratio']:.2f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
