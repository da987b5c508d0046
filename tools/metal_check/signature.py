"""Rules for kernels that C++ for OpenCL does not have: parameters, attributes, results, instances.

Works on tokens, before attributes are removed. Start reading at `check_kernels`.
"""

import re

from tokens import split

GRID = {
    "thread_position_in_grid",
    "threads_per_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "dispatch_threads_per_threadgroup",
    "grid_size",
    "grid_origin",
}
INDEX = {
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup",
}
# Attributes with an index, and how many indices there are.
SLOTS = {"buffer": 31, "threadgroup": 31, "texture": 128, "sampler": 16}
BUFFERS_MAX = 31
SPACES = ("device", "constant", "threadgroup", "thread")
ATTRIBUTE = re.compile(r"\[ \[(.*?)\] \]")
NOT_OF_TYPE = re.compile(r"\[ \[.*?\] \]|__attribute__ \( \(.*?\) \)|\b(kernel|inline|static)\b")


def check_kernels(tokens):
    """Checks every kernel; returns their names."""
    kernels, templates, instances = set(), {}, set()
    for at in [at for at in range(len(tokens.words)) if is_kernel_word(tokens, at)]:
        before = before_attributes(tokens, at)
        if tokens.words[before] == "template":
            instances.add(instance_name(tokens, at))
            continue
        paren = parameters(tokens, at)
        name = tokens.words[tokens.previous(paren)]
        kernels.add(name)
        if tokens.words[before] == ">":
            templates[name] = at
        result = NOT_OF_TYPE.sub("", tokens.text(at, tokens.previous(paren))).strip()
        if result != "void":
            tokens.error(at, f"kernel '{name}' must return void, not '{result}'")
        Kernel(tokens, at, name).check(tokens.text(paren + 1, tokens.matching(paren)))
    for name, at in templates.items():
        if name not in instances:
            tokens.error(at, f"kernel template '{name}' has no explicit instance: nothing checks its body and no entry exists")
    return kernels


def is_kernel_word(tokens, at):
    if tokens.words[at] == "kernel":
        return tokens.words[tokens.previous(at)] not in ("[", ",")
    return tokens.opens_attribute(at) and re.search(r"\bkernel\b", tokens.text(at, tokens.matching(at))) is not None


def before_attributes(tokens, at):
    """The token before a declaration's attributes."""
    at = tokens.previous(at)
    while tokens.words[at] == "]":
        at = tokens.previous(tokens.matching(at, -1))
    return at


def parameters(tokens, at):
    """The parenthesis that opens the parameter list of the kernel that is declared at `at`."""
    while tokens.words[at] != "(" and at < len(tokens.words) - 1:
        if tokens.words[at] == "__attribute__":
            at = tokens.skip(tokens.next(at))
        else:
            at = tokens.skip(at)
    return at


def instance_name(tokens, at):
    """Name of the template of which an explicit instantiation is declared at `at`."""
    named = re.search(r"(\w+) <", tokens.text(at, tokens.find(at, (";",))))
    return named[1] if named else ""


class Kernel:
    """One kernel while its parameters are checked."""

    def __init__(self, tokens, at, name):
        self.tokens, self.at, self.name = tokens, at, name
        self.used, self.dimensions = set(), {}

    def error(self, message):
        self.tokens.error(self.at, f"kernel '{self.name}': {message}")

    def check(self, text):
        parameters = split(text)
        for parameter in parameters:
            self.check_parameter(parameter)
        if sum(1 for parameter in parameters if re.search(r"\b(device|constant)\b", parameter)) > BUFFERS_MAX:
            self.error(f"more than {BUFFERS_MAX} buffers")
        if len(set(self.dimensions.values())) > 1:
            self.error("grid attributes differ in dimension: " + ", ".join(sorted(self.dimensions)))

    def check_parameter(self, parameter):
        attributes = [each for match in ATTRIBUTE.finditer(parameter) for each in split(match[1])]
        declared = ATTRIBUTE.sub("", parameter).strip()
        named = [(re.match(r"\s*([\w: ]+)", each)[1].strip(), argument(each)) for each in attributes]
        places = [each for each in named if each[0] not in ("function_constant", "raster_order_group")]
        for name, _ in places:
            if name not in GRID and name not in INDEX and name not in SLOTS:
                self.error(f"unknown attribute '{name}' on '{declared}'")
        if len(places) > 1:
            self.error(f"more than one attribute on '{declared}'")
        kind, index = places[0] if places else (None, "")
        if re.search(r"[*&[]", re.sub(r"<.*>", "", declared)):
            self.check_pointer(declared, kind)
        else:
            self.check_value(declared, kind)
        if kind in SLOTS and index.isdigit():
            self.check_slot(kind, index, optional="function_constant" in dict(named))

    def check_pointer(self, declared, kind):
        spaces = [word for word in re.findall(r"\w+", declared) if word in SPACES]
        if not spaces:
            self.error(f"no address space on '{declared}'")
        elif "thread" in spaces:
            self.error(f"a kernel argument cannot point to thread memory: '{declared}'")
        wanted = "threadgroup" if "threadgroup" in spaces else "buffer"
        if kind is None:
            self.error(f"no [[{wanted}(n)]] on '{declared}'")
        elif kind != wanted:
            self.error(f"'{declared}' needs [[{wanted}(n)]], not [[{kind}]]")

    def check_value(self, declared, kind):
        base = re.sub(r"\b(const|volatile|metal|restrict)\b|::", " ", declared.split("<")[0]).split()[0]
        if kind in GRID or kind in INDEX:
            match = re.fullmatch(r"(?:ushort|uint|uint16_t|uint32_t)([23]?)", base)
            if not match or kind in INDEX and match[1]:
                vectors = "" if kind in INDEX else ", or a 2- or 3-vector of one"
                self.error(f"[[{kind}]] must be ushort or uint{vectors}: '{declared}'")
            elif kind in GRID:
                self.dimensions[kind] = match[1]
        elif kind is None:
            self.error(f"'{declared}' is passed by value without an attribute")
        elif not is_object(base, kind):
            self.error(f"[[{kind}]] on '{declared}', which is passed by value")

    def check_slot(self, kind, index, optional):
        if int(index) >= SLOTS[kind]:
            self.error(f"{kind} index {index} is above {SLOTS[kind] - 1}")
        if (kind, index) in self.used and not optional:
            self.error(f"{kind}({index}) is used twice")
        self.used.add((kind, index))


def argument(attribute):
    """What stands in the parentheses of an attribute."""
    match = re.search(r"\((.*)\)", attribute)
    return match[1].strip() if match else ""


def is_object(base, kind):
    """Whether a type passed by value is one that stands for a resource of this kind."""
    wanted = {"texture": r"texture|depth", "sampler": r"sampler$", "buffer": r"tensor$"}
    return kind in wanted and re.match(wanted[kind], base) is not None
