"""Metal's rules that clang's type check lacks, on clang's syntax tree. Start reading at `check_tree`.

Every pointer names its address space; variables at program scope are constant; nothing is recursive; `bfloat` comes
from other types by conversion only; threadgroup variables are declared in kernels and fit in 32 KiB.
"""

import bisect
import re

from rewrite import BYTES_SUFFIX, DEVICE

THREADGROUP_MAX = 32 * 1024
FUNCTIONS = ("FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXConversionDecl")
NO_SPACE = re.compile(r"__generic [^()]*[*&]|__generic [^()]*\([*&]")
LINE_MARKER = re.compile(r'[ \t]*# (\d+) "([^"]*)"')


def check_tree(tree, code, kernels):
    """Errors of a unit that clang accepted. `tree` is clang's JSON, `code` the text it read, `kernels` the names."""
    check = TreeCheck(code, kernels)
    check.walk(tree, None)
    check.threadgroup_memory()
    check.recursion()
    return list(check.errors)


class TreeCheck:
    def __init__(self, code, kernels):
        self.code, self.kernels = code, kernels
        self.starts, self.places = lines(code)
        # A dictionary for its order; instances of a template report the same error many times.
        self.errors = {}
        # Of a function's later declarations: the first one's id, which stands for it.
        self.first = {}
        # Function id: its node and the ids that its body names.
        self.calls = {}
        # Kernel id: its node and {variable: bytes}.
        self.shared = {}

    def error(self, node, message):
        file, line = self.places[bisect.bisect_right(self.starts, offset(node)) - 1]
        self.errors[f"{file}:{line}: error: {message}"] = True

    def walk(self, node, function):
        todo = [(node, function)]
        while todo:
            node, function = todo.pop()
            if node.get("kind", "").endswith(FUNCTIONS):
                function = node
            self.visit(node, function)
            todo.extend((child, function) for child in reversed(node.get("inner", [])))

    def visit(self, node, function):
        if node.get("previousDecl"):
            self.first[node["id"]] = self.first.get(node["previousDecl"], node["previousDecl"])
        if node.get("isImplicit") or function and function.get("isImplicit"):
            return
        kind, type_name = node.get("kind"), node.get("type", {}).get("qualType", "")
        if kind in ("VarDecl", "ParmVarDecl", "FieldDecl", "FunctionDecl", "CXXMethodDecl"):
            self.check_spaces(node, type_name.split("(")[0] if kind in ("FunctionDecl", "CXXMethodDecl") else type_name)
        if kind == "VarDecl":
            self.check_variable(node, function, type_name)
        if kind == "ImplicitCastExpr" and node.get("castKind") == "FloatingCast":
            self.check_bfloat(node, type_name)
        if function and kind in ("DeclRefExpr", "MemberExpr"):
            named = node.get("referencedDecl", {}).get("id") or node.get("referencedMemberDecl")
            if named:
                self.calls.setdefault(self.identity(function), (function, set()))[1].add(named)

    def identity(self, function):
        return self.first.get(function["id"], function["id"])

    def check_spaces(self, node, type_name):
        if NO_SPACE.search(type_name):
            self.error(node, f"pointer or reference '{node.get('name', '')}' has no address space")

    def check_variable(self, node, function, type_name):
        name = node.get("name", "")
        if function is None or node.get("storageClass") == "static":
            head = self.code[node["range"]["begin"]["offset"] : offset(node)]
            if "__global" not in head and DEVICE not in head:
                self.error(node, f"global or static variable '{name}' must be in the constant address space")
        if not name.endswith(BYTES_SUFFIX):
            return
        size = re.search(r"\[(\d+)\]", type_name)
        if function["name"] not in self.kernels:
            self.error(node, f"threadgroup variable '{name.removesuffix(BYTES_SUFFIX)}' outside a kernel")
        elif size:
            self.shared.setdefault(self.identity(function), (function, {}))[1][name, offset(node)] = int(size[1])

    def check_bfloat(self, node, type_name):
        to_bfloat = "__bf16" in node["type"].get("desugaredQualType", type_name)
        if to_bfloat and not node.get("isPartOfExplicitCast"):
            source = node["inner"][0].get("type", {}).get("qualType")
            self.error(node, f"implicit conversion from '{source}' to bfloat")

    def threadgroup_memory(self):
        for kernel, sizes in self.shared.values():
            total = sum(sizes.values())
            if total > THREADGROUP_MAX:
                self.error(kernel, f"kernel '{kernel['name']}' uses {total} bytes of threadgroup memory, over {THREADGROUP_MAX}")

    def recursion(self):
        graph = {caller: {self.first.get(each, each) for each in named} for caller, (_, named) in self.calls.items()}
        for caller in graph:
            seen, todo = set(), list(graph[caller])
            while todo:
                callee = todo.pop()
                if callee == caller:
                    function = self.calls[caller][0]
                    self.error(function, f"recursive function '{function.get('name')}'")
                    break
                if callee in graph and callee not in seen:
                    seen.add(callee)
                    todo.extend(graph[callee])


def offset(node):
    """Where a node starts in the code."""
    return node.get("loc", {}).get("offset") or node.get("range", {}).get("begin", {}).get("offset") or 0


def lines(code):
    """Offset of each line's start, and the file and line it came from."""
    starts, places, place = [], [], ("?", 0)
    for match in re.finditer(r"[^\n]*\n?", code):
        marker = LINE_MARKER.match(match[0])
        if marker:
            place = (marker[2], int(marker[1]) - 1)
        starts.append(match.start())
        places.append(place)
        place = (place[0], place[1] + 1)
    return starts, places
