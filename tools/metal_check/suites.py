"""The checker's own tests: every file of valid/ passes, every file of faults/ is rejected for the reason it states.

    python3 tools/metal_check/suites.py

The first line of a fault is `// expect: WORDS`; its first error must contain them. Exit status 1 if any does not hold.
"""

import pathlib
import sys
import tempfile

from check import check
from compiler import Compiler

HERE = pathlib.Path(__file__).parent
EXPECT = "// expect: "


def fault_of_valid(errors):
    return f"rejected: {errors[0]}" if errors else None


def fault_of_planted(path, errors):
    """What is wrong with the answer to a planted fault."""
    first = path.read_text().split("\n", 1)[0]
    if not first.startswith(EXPECT) or not first[len(EXPECT) :].strip():
        return f"its first line must be `{EXPECT}WORDS`"
    if not errors:
        return "accepted"
    wanted, found = first[len(EXPECT) :], errors[0].split("\n")
    return None if any(wanted in line for line in found if "error: " in line) else f"expected `{wanted}`, found: {errors[0]}"


def main():
    valid, faults = sorted((HERE / "valid").glob("*.metal")), sorted((HERE / "faults").glob("*.metal"))
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        compiler = Compiler(folder, [], [])
        for path in valid + faults:
            errors, _ = check(compiler, path)
            message = fault_of_valid(errors) if path in valid else fault_of_planted(path, errors)
            if message:
                wrong.append(f"{path.relative_to(HERE)}: {message}")
    for each in wrong:
        print(each)
    print(f"{len(valid)} valid files, {len(faults)} planted faults: {len(wrong)} not as expected")
    sys.exit(1 if wrong or not valid or not faults else 0)


if __name__ == "__main__":
    main()
