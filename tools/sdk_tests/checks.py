"""What the scripts of this folder share: their flags, and running checks one by one."""

import argparse
import sys
import traceback


def arguments(description):
    """The flags of a script: where the server is, its key, and which checks to run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where lily serves, such as http://127.0.0.1:8080")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--only", default="", help="run the checks whose name contains this")
    return parser.parse_args()


def run(checks, only, *subject):
    """Calls each check with `subject`, prints a line for each, and ends the program: 1 if any failed."""
    failed = 0
    for check in checks:
        if only not in check.__name__:
            continue
        try:
            check(*subject)
            print(f"ok      {check.__name__}")
        except Exception:
            failed += 1
            print(f"FAILED  {check.__name__}")
            traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)
