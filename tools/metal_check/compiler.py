"""Clang as it is called here, and its messages. Start reading at `Compiler`."""

import json
import os
import pathlib
import re
import shutil
import subprocess

from rewrite import DEVICE

SHIM = pathlib.Path(__file__).parent / "shim"
# amdgcn is the target that has __bf16 of its own; without fp64 a double is an error.
LANGUAGE = ["-x", "cl", "-cl-std=clc++1.0", "--target=amdgcn-amd-amdhsa", "-Xclang", "-cl-ext=-cl_khr_fp64"]
LANGUAGE += ["-nostdinc", "-nogpulib", "-cl-no-stdinc", "-isystem", str(SHIM)]
WARNINGS = ["-Wall", "-Wno-unused", "-Wno-undefined-internal", "-Wno-undefined-inline", "-Wno-duplicate-decl-specifier"]
WARNINGS += ["-Wno-unknown-pragmas", "-Wno-pass-failed", "-Wno-missing-braces", "-Wno-sometimes-uninitialized"]
WARNINGS += ["-fshow-overloads=best", "-ferror-limit=20", "-ftemplate-backtrace-limit=3"]
# Functions as template arguments are used through references.
PROLOGUE = "#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable\n"
# Errors that are wrong for Metal, where temporaries and an unqualified `this` are `thread`, and half and bfloat convert
# into each other by a cast.
FALSE_ALARM = re.compile(
    r"error: ("
    r"reference of type '[^']*__private [^']*' cannot bind to a temporary object because of address space mismatch"
    r"|cannot initialize object parameter of type '[^']*__private [^']*' with an expression of type "
    r"'(?!__|device|const __|[^']*address_space)[^']*'"
    r"|binding reference of type '[^']*__private [^']*' to value of type '[^']*__generic [^']*' changes address space"
    r"|reinterpret_cast from '[^']*__generic [^']*' \(aka [^)]*\) to '[^']*__private [^']*'[^:]* is not allowed"
    r"|(static_cast|C-style cast|functional-style cast) from '[^']*'( \(aka '[^']*'\))? to '[^']*'( \(aka '[^']*'\))? is not allowed"
    r")"
)
MESSAGE = re.compile(r"(?m)^(?=\S+:\d+:\d+: (?:error|warning|fatal error):)")
METAL_WORDS = {
    "metal::branch || ": "",
    DEVICE: "device",
    "const __global": "constant",
    "__local": "threadgroup",
    "__private ": "thread ",
    "__bf16": "bfloat",
    "address space '1'": "address space 'device'",
}


class Compiler:
    """Clang with the stand-in library, which is read once. `folder` is for temporary files."""

    def __init__(self, folder, includes, defines):
        self.program = os.environ.get("CLANG", "clang-19")
        if shutil.which(self.program) is None:
            raise SystemExit(f"missing: {self.program} (Debian: apt-get install clang-19)")
        self.folder = pathlib.Path(folder)
        self.flags = [f"-I{path}" for path in includes] + [f"-D{each}" for each in defines]
        self.header = self.folder / "shim.pch"
        emit = ["-c", "-Xclang", "-emit-pch", "-Wno-pragma-once-outside-header", "-o", str(self.header)]
        made = self.run([*emit, str(SHIM / "metal_stdlib")])
        if made.returncode:
            raise SystemExit(f"the stand-in library does not compile:\n{made.stderr}")

    def run(self, arguments):
        return subprocess.run([self.program, *LANGUAGE, *arguments], capture_output=True, text=True)

    def preprocess(self, path):
        """The text with includes and macros resolved, and errors."""
        done = self.run(["-E", *self.flags, str(path)])
        return done.stdout, done.stderr if done.returncode else ""

    def type_check(self, code, path):
        """Clang's errors and warnings, in Metal's words; without those that are wrong for Metal."""
        unit = self.write(code)
        done = self.run(["-include-pch", str(self.header), "-fsyntax-only", *WARNINGS, str(unit)])
        blocks = [block for block in MESSAGE.split(done.stderr) if not FALSE_ALARM.search(block.split("\n")[0])]
        messages = [in_metal_words(block).replace(str(unit), str(path)) for block in blocks if MESSAGE.match(block)]
        # With an error of another form, such as a crash, nothing was checked.
        if done.returncode and not MESSAGE.search(done.stderr):
            messages.append(f"{path}: error: clang failed: {done.stderr}")
        return messages

    def tree(self, code):
        unit = self.write(code)
        done = self.run(["-include-pch", str(self.header), "-fsyntax-only", "-w", "-Xclang", "-ast-dump=json", str(unit)])
        return json.loads(done.stdout)

    def write(self, code):
        unit = self.folder / "unit.cl"
        unit.write_text(code)
        return unit


def is_error(message):
    return re.search(r": (fatal )?error: ", message.split("\n")[0]) is not None


def in_metal_words(message):
    for here, there in METAL_WORDS.items():
        message = message.replace(here, there)
    return message
