"""Tiny text grammar: `[one|other]` picks an alternative at random (nesting allowed), `{field}` is filled in afterwards."""

import re

INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def expand(text, random, fields=None):
    """Pick one alternative of every bracket, innermost first, then fill the fields."""
    while True:
        text, replaced = INNERMOST.subn(lambda match: random.choice(match.group(1).split("|")), text)
        if not replaced:
            return text.format(**fields) if fields is not None else text
