"""Lily, llama.cpp and mlx-lm by turns on one NVIDIA GPU, without a network: prefill and decode, medians and ratios.

    python tools/peers/h200.py pack --carried CARRIED                     here: cuts llama.cpp's sources to what is built (6 MB)
    python tools/peers/h200.py prepare --carried CARRIED --work WORK      builds llama.cpp, writes the weights (40 GB, about 6 minutes)
    python tools/peers/h200.py run --carried CARRIED --work WORK          measures; prints a table, writes WORK/h200.json

The machine needs nvcc, cmake, a C++ compiler and Python 3.11. What else it needs is carried there, in a folder:

    lily                        target/release/lily, stripped
    llama.cpp.tar.xz            made by `pack` from llama_cpp_python-*.tar.gz in the same folder, which need not travel:
                                pip download --no-binary :all: --no-deps --no-build-isolation llama-cpp-python
    wheels/                     pip download gguf numpy; for mlx-lm also mlx-lm 'mlx[cuda13]'

Whatever is missing there is taken from the machine, or the engine is left out and the table says so. Both other engines
are asked for the same lengths as Lily. mlx-lm reads Lily's checkpoint itself; llama.cpp gets the same shapes at the same
bits in its own format, with random weights like ours (synthetic_gguf.py beside this file). Each arm is a fresh process and
warms up every shape before it is measured; arms take turns, odd rounds backwards.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DECODED = 64
UNUSED = ("docs/", "models/", "benches/", "tests/", "media/", "examples/", "tools/ui/", "tools/server/", ".github/")
BUILD = ["CMAKE_BUILD_TYPE=Release", "LLAMA_CURL=OFF", "LLAMA_BUILD_SERVER=OFF", "LLAMA_BUILD_APP=OFF", "LLAMA_BUILD_TESTS=OFF"]
BUILD += ["LLAMA_BUILD_EXAMPLES=OFF"]


def command(*words, **options):
    """Runs a program and returns what it printed; its errors go where ours go."""
    print("+", *words, file=sys.stderr, flush=True)
    return subprocess.run([str(word) for word in words], check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def install(carried, *packages):
    """Packages from the carried wheels, unless the machine has them."""
    missing = [name for name, module in packages if importlib.util.find_spec(module) is None]
    if missing:
        command(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", carried / "wheels", *missing)


def pack(options):
    """The archive's vendored llama.cpp without what building llama-bench does not touch, under its package's version."""
    archives = sorted(options.carried.glob("llama_cpp_python-*.tar.gz"))
    if not archives:
        sys.exit(f"{options.carried}: expected llama_cpp_python-*.tar.gz; get it with pip download")
    root = archives[-1].name.removesuffix(".tar.gz")
    inside = f"{root}/vendor/llama.cpp/"
    with tarfile.open(archives[-1]) as source, tarfile.open(options.carried / "llama.cpp.tar.xz", "w:xz") as packed:
        for member in source:
            if member.isfile() and member.name.startswith(inside) and not member.name.removeprefix(inside).startswith(UNUSED):
                content = source.extractfile(member)
                member.name = f"{root}/" + member.name.removeprefix(inside)
                member.pax_headers = {}  # would bring a long name back
                packed.addfile(member, content)
    print(options.carried / "llama.cpp.tar.xz", (options.carried / "llama.cpp.tar.xz").stat().st_size, "bytes")


def build_llama(carried, work):
    """llama-bench with CUDA for the card that is here."""
    if (work / "llama" / "bin" / "llama-bench").exists():
        return
    if not (carried / "llama.cpp.tar.xz").exists():
        print("llama.cpp: no llama.cpp.tar.xz was carried: left out", file=sys.stderr)
        return
    with tarfile.open(carried / "llama.cpp.tar.xz") as archive:
        archive.extractall(work, filter="data")
        version = archive.getnames()[0].split("/")[0]
    (work / "llama.version").write_text(version)
    card = command("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split()[0].replace(".", "")
    options = ["GGML_CUDA=ON", f"CMAKE_CUDA_ARCHITECTURES={card}a" if int(card) >= 90 else f"CMAKE_CUDA_ARCHITECTURES={card}"]
    command("cmake", "-S", work / version, "-B", work / "llama", *(f"-D{option}" for option in options + BUILD))
    command("cmake", "--build", work / "llama", "--target", "llama-bench", "-j", os.cpu_count())


def prepare(options):
    options.work.mkdir(parents=True, exist_ok=True)
    build_llama(options.carried, options.work)
    model = options.work / "full"
    if not (model / "config.json").exists():
        command(options.carried / "lily", "synth", model)
    file = options.work / "peer.gguf"
    if not file.exists() and (options.work / "llama" / "bin" / "llama-bench").exists():
        install(options.carried, ("numpy", "numpy"), ("gguf", "gguf"))
        command(sys.executable, HERE / "synthetic_gguf.py", file)


class Lily:
    name = "lily"

    def __init__(self, options):
        self.options = options
        self.version = command(options.carried / "lily", "--version").strip()

    def measure(self):
        out = self.options.work / "lily.json"
        lengths = ",".join(map(str, self.options.lengths))
        flags = ["--device", "cuda", "--chunk", 4096, "--rounds", 1, "--decode", DECODED, "--lengths", lengths, "--json", out]
        command(self.options.carried / "lily", "bench", "--model", self.options.work / "full", *flags)
        figures = json.loads(out.read_text())["arms"][0]["figures"]
        return {row["length"]: (row["prefill_tok_s"], row["decode_tok_s"]) for row in figures}


class Llama:
    name = "llama.cpp"

    def __init__(self, options):
        self.options, self.program = options, options.work / "llama" / "bin" / "llama-bench"
        self.version = (options.work / "llama.version").read_text() + ", Q4_K"

    @staticmethod
    def here(options):
        return (options.work / "llama" / "bin" / "llama-bench").exists() and (options.work / "peer.gguf").exists()

    def bench(self, *flags):
        file = self.options.work / "peer.gguf"
        shape = ["-ngl", 99, "-fa", 1, "-b", 2048, "-ub", 2048, "-r", 1, "-o", "json"]
        return json.loads(command(self.program, "-m", file, *shape, *flags))

    def measure(self):
        lengths = ",".join(map(str, self.options.lengths))
        prefill = {row["n_prompt"]: row["avg_ts"] for row in self.bench("-p", lengths, "-n", 0)}
        decode = {row["n_depth"]: row["avg_ts"] for row in self.bench("-p", 0, "-n", DECODED, "-d", lengths)}
        return {length: (prefill[length], decode[length]) for length in self.options.lengths}


class Mlx:
    name = "mlx-lm"

    def __init__(self, options):
        self.options = options
        self.version = "mlx-lm " + command(sys.executable, "-c", "import importlib.metadata as m; print(m.version('mlx-lm'), 'on mlx', m.version('mlx'))").strip()

    @staticmethod
    def here(options):
        try:
            install(options.carried, ("mlx-lm", "mlx_lm"), ("mlx[cuda13]", "mlx"))
        except subprocess.CalledProcessError:
            print("mlx-lm: neither installed nor carried: left out", file=sys.stderr)
            return False
        return True

    def measure(self):
        # It has no DeltaNet kernel for CUDA: a prompt is read token by token in every such layer.
        lengths = [length for length in self.options.lengths if length <= self.options.mlx_longest]
        out = command(sys.executable, HERE / "h200_mlx.py", self.options.work / "full", DECODED, *lengths)
        rows = [json.loads(line) for line in out.splitlines()]
        return {row["length"]: (row["prefill_tok_s"], row["decode_tok_s"]) for row in rows}


def run(options):
    engines = [Lily(options)] + [kind(options) for kind in (Llama, Mlx) if kind.here(options)]
    rounds = {engine.name: [] for engine in engines}
    for at in range(options.rounds):
        for engine in engines if at % 2 == 0 else engines[::-1]:
            rounds[engine.name].append(engine.measure())
            save(options, engines, rounds)
    print(table(options.lengths, rounds))


def save(options, engines, rounds):
    card = command("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").strip()
    about = dict(date=str(datetime.date.today()), card=card, host=platform.platform(), versions={e.name: e.version for e in engines})
    (options.work / "h200.json").write_text(json.dumps(dict(about, decoded=DECODED, rounds=rounds), indent=1))


def median(rounds, length, column):
    found = [row[length][column] for row in rounds if length in row]
    return statistics.median(found) if found else None


def table(lengths, rounds):
    """Medians, and in brackets how many times the others' rate Lily's is."""
    lines = ["| tokens | " + " | ".join(f"{name} {what}" for what in ("prefill", "decode") for name in rounds) + " |"]
    lines.append("|---" * (1 + 2 * len(rounds)) + "|")
    for length in lengths:
        cells = []
        for column in (0, 1):
            ours = median(rounds["lily"], length, column)
            for name, samples in rounds.items():
                rate = median(samples, length, column)
                times = "" if name == "lily" or not rate or not ours else f" ({ours / rate:.2f}x)"
                cells.append("-" if rate is None else f"{rate:,.1f}{times}")
        lines.append(f"| {length:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["pack", "prepare", "run"])
    parser.add_argument("--carried", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("work"))
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=[512, 2048, 4096, 16384, 32768])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mlx-longest", type=int, default=512, help="longest prompt for mlx-lm, which reads some 200 tokens a second")
    options = parser.parse_args()
    options.carried, options.work = options.carried.resolve(), options.work.resolve()
    if options.step != "pack" and shutil.which("nvidia-smi") is None:
        parser.error("no nvidia-smi: this is for a machine with an NVIDIA GPU")
    {"pack": pack, "prepare": prepare, "run": run}[options.step](options)


if __name__ == "__main__":
    main()
