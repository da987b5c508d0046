"""A preprocessed source as tokens, each with the file and line it came from. Start reading at `Tokens`.

The passes that follow replace the text of single tokens and never their number, so that positions stay valid and
clang's messages still point at the right lines.
"""

import re

TOKEN = re.compile(
    r"(^[ \t]*#[^\n]*)"  # a preprocessor line: a line marker or a pragma
    r'|("(?:\\.|[^"\\])*"'
    r"|'(?:\\.|[^'\\])*'"
    r"|[A-Za-z_]\w*"
    r"|\.?\d(?:[eEpP][+-]|[\w.])*"
    r"|::|->|[=!<>+*/%&|^-]=|&&|\|\|"
    r"|\s+|.)",
    re.M,
)
LINE_MARKER = re.compile(r'[ \t]*# (\d+) "([^"]*)"((?: \d)*)')
# Flag of a line marker: what follows comes from a system header, here from shim/.
SYSTEM = "3"


class Tokens:
    """Words of the checked file and of what it includes, without the stand-in library's."""

    def __init__(self, text):
        self.words, self.places, self.errors = [], [], []
        file, line, in_shim = "?", 0, False
        for match in TOKEN.finditer(text):
            word = match[0]
            marker = LINE_MARKER.match(word) if match[1] else None
            if marker:
                file, line, in_shim = marker[2], int(marker[1]) - 1, SYSTEM in marker[3].split()
                word = f'# {marker[1]} "{file}"'
            if not in_shim:
                self.words.append(word)
                self.places.append((file, line))
            line += match[0].count("\n")

    def error(self, at, message):
        file, line = self.places[at]
        self.errors.append(f"{file}:{line}: error: {message}")

    def is_code(self, at):
        word = self.words[at]
        return bool(word.strip()) and not word.lstrip().startswith("#")

    def next(self, at, step=1):
        """The next token that is code; the previous one for step -1. The last or the first if there is none."""
        at += step
        while 0 <= at < len(self.words) and not self.is_code(at):
            at += step
        return min(max(at, 0), len(self.words) - 1)

    def previous(self, at):
        return self.next(at, -1)

    def matching(self, at, step=1):
        """The bracket that belongs to the one at `at`: forwards, or backwards for step -1."""
        depth = 0
        while 0 <= at < len(self.words):
            word = self.words[at]
            depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
            if depth == 0:
                return at
            at += step
        return len(self.words) - 1

    def skip(self, at):
        """The next token after the one at `at`, or after the whole bracket that opens there."""
        return self.next(self.matching(at)) if self.words[at] in ("(", "[", "{") else self.next(at)

    def find(self, at, ends):
        """The first token from `at` on that is one of `ends`, outside brackets."""
        while self.words[at] not in ends and at < len(self.words) - 1:
            at = self.skip(at)
        return at

    def opens_attribute(self, at):
        return self.words[at] == "[" and self.words[at + 1 : at + 2] == ["["]

    def text(self, start, end):
        """Code from `start` up to `end`, one space between tokens."""
        return " ".join(self.words[at] for at in range(start, end) if self.is_code(at))

    def replace(self, start, end, text):
        """Puts `text` in place of the tokens from `start` up to `end`; line ends stay."""
        blanks = ["\n" * word.count("\n") for word in self.words[start:end]]
        blanks[0] = text + blanks[0]
        self.words[start:end] = blanks

    def joined(self):
        return "".join(self.words)


def split(text):
    """Parts of a list, split at the commas outside brackets of any kind."""
    parts, depth, angles, part = [], 0, 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            angles += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0 and angles == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [each for each in [*parts, part] if each.strip()]
