"""Turns Metal's words into ones that clang reads as C++ for OpenCL. Start reading at `rewrite`.

| Metal | becomes |
|---|---|
| `device` | numbered address space 1, so that it differs from `constant` |
| `constant` | `const __global` |
| `threadgroup` | `__local`; a variable becomes a reference of that type, beside a byte array of its size for the count |
| `thread` | `__private` |
| `kernel`, attributes | nothing: they are checked before |
| `[[function_constant(n)]]` | an `extern` without a value |
| `a ? b : c` | both arms are read to values, as different address spaces would not agree |
| `1.0`, `1.0bf` | `1.0f`, `bfloat(1.0f)`: there is no double |
"""

import re

from signature import SPACES
from tokens import split

DEVICE = "__attribute__((address_space(1)))"
PLAIN = {"device": DEVICE, "constant": "const __global", "threadgroup": "__local", "thread": "__private"}
# After a member function. Clang's unqualified `this` is generic, to which all but the numbered space convert.
METHOD = {**PLAIN, "device": "__generic"}
EXTERN = "extern constant"
BANNED = {
    "goto",
    "virtual",
    "new",
    "delete",
    "try",
    "catch",
    "throw",
    "dynamic_cast",
    "typeid",
    "register",
    "thread_local",
    "asm",
}
DOUBLE = re.compile(r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?|0[xX][\da-fA-F.]+[pP][+-]?\d+")
BFLOAT = re.compile(r"[\d.]+([eE][+-]?\d+)?(bf|BF)")
DROPPED_PRAGMA = re.compile(r"\s*#\s*pragma\s+(unroll|clang loop)")
# What may follow the address space of a member function.
AFTER_METHOD = ("{", ":", ";", "=", "->", ",", "noexcept")
# Suffix of the byte arrays that stand for threadgroup variables.
BYTES_SUFFIX = "_tgbytes_"


def rewrite(tokens):
    """Rewrites in place and returns the text. Words that Metal forbids are reported."""
    classes = {tokens.words[tokens.next(at)] for at, word in enumerate(tokens.words) if word in ("struct", "class")}
    for at in range(len(tokens.words)):
        rewrite_word(tokens, at)
    AddressSpaces(tokens, classes).rewrite()
    return tokens.joined()


def rewrite_word(tokens, at):
    words, word = tokens.words, tokens.words[at]
    if DROPPED_PRAGMA.match(word):
        words[at] = ""
    elif DOUBLE.fullmatch(word):
        words[at] += "f"
    elif BFLOAT.fullmatch(word):
        words[at] = f"bfloat({word[:-2]}f)"
    elif word in BANNED:
        if not (word == "delete" and words[tokens.previous(at)] == "="):
            tokens.error(at, f"'{word}' is not allowed in Metal")
    elif word == "kernel":
        words[at] = ""
    elif word.startswith("__metal_"):
        words[at] = "metal::intrinsic_"
    elif word == "template" and words[tokens.next(at)] == "<":
        refer_to_functions(tokens, tokens.next(at))
    elif word == "coherent" and words[tokens.next(at)] == "(":
        tokens.replace(at, tokens.matching(tokens.next(at)) + 1, "")
    elif word == "?":
        read_branches(tokens, at)
    elif tokens.opens_attribute(at):
        drop_attribute(tokens, at)


def refer_to_functions(tokens, at):
    """In a template's parameter list, pointers to functions become references: clang has no others."""
    depth = 0
    while tokens.words[at] not in (";", "{") and at < len(tokens.words) - 1:
        depth += (tokens.words[at] == "<") - (tokens.words[at] == ">")
        if depth == 0:
            return
        after = tokens.next(at)
        if tokens.words[at] == "(" and tokens.words[after] == "*" and tokens.words[tokens.next(tokens.matching(at))] == "(":
            tokens.words[after] = "&"
        at = after


def read_branches(tokens, at):
    """Marks both arms of `?:`, so that they are read to values (`metal::branch` in shim/lily_branch.h)."""
    tokens.words[at] = "? metal::branch ||"
    at, nested, colon = tokens.next(at), 1, at
    while at < len(tokens.words) - 1 and nested:
        nested += (tokens.words[at] == "?") - (tokens.words[at] == ":")
        colon = at
        at = tokens.skip(at)
    tokens.words[colon] = ": metal::branch ||"


def drop_attribute(tokens, at):
    end = tokens.matching(at)
    if "function_constant" in tokens.words[at:end] and tokens.words[tokens.next(end)] == ";":
        declare_extern(tokens, at)
    tokens.replace(at, end + 1, "")


def declare_extern(tokens, at):
    """A function constant at program scope is a declaration without a value."""
    while tokens.words[at] not in (";", "}", "{") and at:
        tokens.words[at] = {"constant": EXTERN, "static": "", "constexpr": ""}.get(tokens.words[at], tokens.words[at])
        at = tokens.previous(at)


class AddressSpaces:
    """Replaces the words of address spaces, by what they stand on: a member function, a variable, a pointer."""

    def __init__(self, tokens, classes):
        self.tokens, self.classes = tokens, classes
        # Where the last conversion operator that is `const thread` stands; 0 if there is none.
        self.thread_conversion = 0

    def rewrite(self):
        words = self.tokens.words
        for at in range(len(words)):
            if words[at] == EXTERN:
                words[at] = "extern const __global"
            elif words[at] in SPACES:
                paren = self.method_end(at)
                if paren:
                    words[at] = self.method(at, paren)
                elif not self.variable(at):
                    words[at] = PLAIN[words[at]]

    def method_end(self, at):
        """The parenthesis that ends a member function's parameters, if the word at `at` qualifies one."""
        before, after = self.tokens.previous(at), self.tokens.next(at)
        while self.tokens.words[before] in ("const", "volatile"):
            before = self.tokens.previous(before)
        while self.tokens.words[after] in ("const", "volatile"):
            after = self.tokens.next(after)
        return before if self.tokens.words[before] == ")" and self.tokens.words[after] in AFTER_METHOD else None

    def method(self, at, paren):
        tokens, words = self.tokens, self.tokens.words
        name = tokens.previous(tokens.matching(paren, -1))
        constructor = words[name] in self.classes and words[tokens.previous(name)] not in ("*", "&", "::", "operator")
        start = name
        while words[start] not in ("operator", ";", "{", "}") and start:
            start = tokens.previous(start)
        conversion = words[start] == "operator" and words[tokens.next(start)].isidentifier()
        if not constructor and not conversion:
            return METHOD[words[at]]
        # Clang gives temporaries no address space: what is `thread` in Metal must be unqualified here, and the others
        # must not collide with it.
        if words[at] == "thread" and words[tokens.previous(at)] == "const":
            self.thread_conversion = at
        unique = constructor or self.thread_conversion and "struct" not in words[self.thread_conversion : at]
        return {
            "device": "__constant" if unique else "__generic",
            "constant": "__global" if constructor else "const __global",
            "threadgroup": "__local",
            "thread": "",
        }[words[at]]

    def variable(self, at):
        """Binds the variables of a `threadgroup` declaration to references; says whether it was one."""
        tokens, words = self.tokens, self.tokens.words
        if words[at] != "threadgroup" or words[tokens.previous(at)] not in ("{", "}", ";"):
            return False
        end = tokens.find(at, (";",))
        parts = [re.sub(r" = (?=[^=]*$).*", "", part) for part in split(tokens.text(at + 1, end))]
        first = re.fullmatch(r"(?:alignas \( .*? \) )?(.*[\w>]) (\w+) ?((?:\[.*\])?)", parts[0].strip()) if parts else None
        if not first or re.search(r"[*&=]", re.sub(r"\[.*|<.*>", "", parts[0])):
            return False
        names = [(first[2], first[3])]
        for part in parts[1:]:
            name, bracket, size = part.partition("[")
            names.append((name.strip(), bracket + size))
        bound = " ".join(
            f"__local {first[1]} (&{name}){size} = metal::tg_any; char {name}{BYTES_SUFFIX}[sizeof({name})];" for name, size in names
        )
        # The last semicolon is the declaration's own.
        tokens.replace(at, end, bound[:-1])
        return True
