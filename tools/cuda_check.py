"""Compiles every kernel with NVRTC, without a GPU, and shows what each entry takes.

    cargo build -p lily-gpu --example cuda_source
    python tools/cuda_check.py [--arch sm_90a] [FILE.metal ...]

Needs the packages nvidia-cuda-nvrtc and nvidia-cuda-nvcc (for ptxas; without it there is no table). Translates
kernels/*.metal and kernels/cuda/*.metal, or the given files, and compiles each as the engine does. Exits with 1 if one does not compile.
"""

import argparse
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "target/debug/examples/cuda_source"
OPTIONS = ["--std=c++17", "--ftz=true"]
FIGURES = [
    (r"Used (\d+) registers", "registers"),
    (r"(\d+) bytes smem", "bytes shared"),
    (r"(\d+) bytes stack frame", "stack"),
    (r"(\d+) bytes spill stores", "spilled"),
]


def installed(pattern: str) -> pathlib.Path | None:
    """The first file of NVIDIA's packages that matches."""
    for folder in map(pathlib.Path, sys.path):
        for found in sorted(folder.glob(f"nvidia/{pattern}")):
            return found
    return None


class Nvrtc:
    """The few calls that a compilation needs."""

    def __init__(self) -> None:
        path = installed("*/lib/libnvrtc.so.1?")
        if path is None:
            sys.exit("NVRTC not found: install nvidia-cuda-nvrtc")
        self.library = ctypes.CDLL(str(path))

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, out)
        return out.raw.rstrip(b"\0")

    def ptx(self, name: str, source: bytes, arch: str) -> tuple[bytes | None, str]:
        """PTX, or none; and the log."""
        program = ctypes.c_void_p()
        made = self.library.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None)
        assert made == 0, made
        options = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", *OPTIONS]
        pointers = (ctypes.c_char_p * len(options))(*[one.encode() for one in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), pointers)
        log = self.text(program, "ProgramLog").decode()
        ptx = None if failed else self.text(program, "PTX")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return ptx, log


def number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def table(ptx: bytes, arch: str, assembler: pathlib.Path) -> tuple[bool, str]:
    """Registers, threadgroup memory and spills of each entry, by ptxas."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        run = subprocess.run([assembler, "-v", f"-arch={arch}", file.name, "-o", "/dev/null"], capture_output=True, text=True)
    if run.returncode:
        return False, run.stderr
    rows = []
    for block in run.stderr.split("Compiling entry function '")[1:]:
        entry = block.split("'")[0]
        figures = [(number(block, pattern), unit) for pattern, unit in FIGURES]
        rows.append(f"  {entry:40}" + "".join(f"{value:7} {unit}" for value, unit in figures))
    return True, "\n".join(sorted(rows))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--arch", action="append", help="sm_80, sm_90a ...; may be given again (default: both)")
    arguments.add_argument("--translator", default=SOURCE, help="the built example cuda_source")
    arguments.add_argument("--quiet", action="store_true", help="no table")
    arguments.add_argument("files", nargs="*")
    given = arguments.parse_args()
    kernels = ROOT / "kernels"
    every = sorted(str(path.relative_to(kernels)) for pattern in ("*.metal", "cuda/*.metal") for path in kernels.glob(pattern))
    files = [str(pathlib.Path(file).resolve()) for file in given.files] or every
    nvrtc, assembler, bad = Nvrtc(), installed("*/bin/ptxas"), 0
    for file in files:
        translated = subprocess.run([given.translator, file], capture_output=True)
        if translated.returncode:
            bad += 1
            print(f"FAILED {file}: {translated.stderr.decode()}")
            continue
        for arch in given.arch or ["sm_90a", "sm_80"]:
            ptx, log = nvrtc.ptx(pathlib.Path(file).name, translated.stdout, arch)
            ok, rows = (False, log) if ptx is None else (True, "") if assembler is None else table(ptx, arch, assembler)
            bad += not ok
            print(f"{'ok' if ok else 'FAILED'} {pathlib.Path(file).name} {arch}" + (f"\n{log.rstrip()}" if ok and log.strip() else ""))
            if rows and not (ok and given.quiet):
                print(rows)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
