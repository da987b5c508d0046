"""Checks Metal sources with stock clang, without Apple's compiler.

    python3 tools/metal_check/check.py [-I DIR] [-D NAME[=VALUE]] FILE.metal ...

Needs clang 19 (CLANG names another one) and nothing beyond Python's own library. Prints `ok` or the errors of every
file; the exit status is 1 if any file has one. What it knows and what it cannot know is in README.md.

Four steps a file, each in a module of its own: preprocess (`compiler`); check the kernels' signatures on tokens and
rewrite what clang cannot read (`signature`, `rewrite`); clang's type check (`compiler`); rules on clang's syntax tree
(`tree`).
"""

import argparse
import pathlib
import sys
import tempfile

from compiler import PROLOGUE, Compiler, is_error
from rewrite import rewrite
from signature import check_kernels
from tokens import Tokens
from tree import check_tree


def check(compiler, path):
    """Errors of one file, in the order of the steps, and clang's warnings."""
    text, failure = compiler.preprocess(path)
    if failure:
        return [failure], []
    tokens = Tokens(text)
    kernels = check_kernels(tokens)
    code = PROLOGUE + rewrite(tokens)
    messages = compiler.type_check(code, path)
    errors = tokens.errors + [each for each in messages if is_error(each)]
    warnings = [each for each in messages if not is_error(each)]
    # Without a sound type check the tree may lack what its rules look for.
    if len(errors) == len(tokens.errors):
        errors += check_tree(compiler.tree(code), code, kernels)
    return errors, warnings


def main():
    parser = argparse.ArgumentParser(description="Checks Metal sources with stock clang.")
    parser.add_argument("-I", dest="includes", action="append", default=[], metavar="DIR")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(folder, options.includes, options.defines)
        for path in options.files:
            errors, warnings = check(compiler, path)
            failed += bool(errors)
            print("FAIL" if errors else "ok  ", path)
            for message in [*errors, *warnings]:
                print(message.rstrip())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
