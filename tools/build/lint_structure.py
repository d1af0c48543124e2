"""Rules of tools/lint about the structure of the tree: floors, circles, vendors, sizes and budgets."""
import ast
import collections
import fnmatch
import os
import re

# A file includes files of its own folder and of folders with a lower number; the longest matching prefix counts. Two of
# the same number stand beside each other: neither includes the other.
FLOORS = {
    "core/base": 0,
    "core/tensor": 1,
    "core/io": 2,
    "core/quant": 2,
    "core/data": 3,
    "core/profile": 3,
    "core/cpu": 4,
    "core/cuda": 4,
    "core/kernels": 5,
    "core/backend": 6,
    "core/autograd": 7,
    "core/optim": 7,
    "core/ops": 8,
    "amp": 9,
    "comm": 9,
    "models": 9,
    "tools/config": 10,
    "tools/probe": 11,
    "tools/text": 11,
    "tools/run": 12,
    "tools/model": 13,
    "tools/train": 14,
    "tools/bench": 15,
    "tools/lab": 16,
    "tools": 17,
    "tests": 18,
}

# Headers, a name for the message, and the files that may include them. Tests may include any.
VENDORS = [
    (
        r"cu(da|blas|dnn)\w*\.h|nvtx3/|driver_types\.h|curand",
        "CUDA",
        ["core/cuda/*", "core/kernels/*.cu.cc", "core/kernels/*_cublaslt.*", "core/kernels/*_cudnn.*"],
    ),
    (r"nccl\.h", "NCCL", ["comm/nccl/*"]),
    (r"mpi\.h", "MPI", ["comm/mpi/*"]),
    (r"dnnl\.hp?p?", "oneDNN", ["core/kernels/*_cpu.cc", "core/backend/cpu_backend.cc"]),
    (r"hwloc\.h", "hwloc", ["core/base/*"]),
]

MAX_LINES = 400
MAX_FILES = 40
MAX_FUNCTION_LINES = 60
# Files with one purpose. Their lines below PRODUCTION are production lines.
SIZED = (".h", ".cc", ".js", ".css", ".html", ".py", ".sh", ".bzl")
PRODUCTION = ("core/", "amp/", "comm/", "models/", "tools/")
KINDS = (*SIZED, ".yaml")  # suffixes below PRODUCTION; scripts, BUILD files and tables have none
FOREIGN = re.compile(r"\.(?:c|cpp|cxx|c\+\+|hh|hpp|hxx|h\+\+|inc|inl|ipp|tpp|cu|cuh|bazel)$")  # not in this repository
BUDGETS = "tools/build/budgets"
SCRIPTS = "scripts"  # the row of BUDGETS for all files without a suffix

INCLUDE = re.compile(r'\s*#\s*(?:include|import)\w*\s*(["<]?)([^">]*)')
OURS = PRODUCTION + ("tests/",)


def is_cxx(name):
    return name.endswith((".h", ".cc"))


def floor_of(folder):
    while folder and folder not in FLOORS:
        folder = folder.rpartition("/")[0]
    return folder, FLOORS.get(folder)


def has_suffix(name):
    return "." in os.path.basename(name)


def check_place(name):
    """Files that the other rules would not see."""
    if FOREIGN.search(name) or (name.startswith(PRODUCTION) and has_suffix(name) and not name.endswith(KINDS)):
        yield 1, "place", f"files of this project end in {' '.join(KINDS)}, or have no suffix"
    if is_cxx(name) and not name.startswith("examples/") and floor_of(os.path.dirname(name))[1] is None:
        yield 1, "place", "C++ in a folder without a floor (FLOORS in tools/build/lint_structure.py)"


def is_written_well(mark, header):
    """Says if an include names its header like all others do, so that the rules about arrows see it."""
    if mark == '"' and header.startswith(OURS):
        return header.endswith(".h") and header == os.path.normpath(header)
    return not header.startswith(OURS) if mark == "<" else header.startswith("hwy/")


def check_includes(name, lines):
    part, floor = floor_of(os.path.dirname(name))
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match[2]
        if not is_written_well(match[1], header):
            yield number, "layer", 'write "FOLDER/FILE.h" from the root for a header of ours, and <...> for others'
        for pattern, vendor, places in VENDORS:
            if re.match(pattern, header) and part != "tests" and not any(fnmatch.fnmatch(name, p) for p in places):
                yield number, "vendor", f"only {' and '.join(places)} may include {header} ({vendor})"
        if match[1] == "<" or "/" not in header or floor is None:
            continue
        other, height = floor_of(os.path.dirname(header))
        if height is not None and other != part and height >= floor:
            place = "above" if height > floor else "beside"
            yield number, "layer", f"{header}: {part} must not include {other}, which stands {place} it"


def circles(read, names):
    """Folders that include each other, at each depth of the tree, as sorted lists. Tests have no folders like these."""
    arrows = collections.defaultdict(set)
    for name in names:
        if not is_cxx(name) or not name.startswith(PRODUCTION):
            continue
        for line in read(name):
            match = INCLUDE.match(line)
            if match and match[1] == '"' and match[2].startswith(PRODUCTION):
                arrows[os.path.dirname(name)].add(os.path.dirname(match[2]))
    found = set()
    for depth in range(1, 1 + max((folder.count("/") + 1 for folder in arrows), default=0)):
        cut = lambda folder: "/".join(folder.split("/")[:depth])
        graph = collections.defaultdict(set)
        for folder, others in arrows.items():
            graph[cut(folder)] |= {cut(other) for other in others} - {cut(folder)}
        found |= {tuple(circle) for circle in strongly_connected(graph)}
    return sorted(found)


def reachable(graph, start):
    seen, open_ends = set(), [start]
    while open_ends:
        for other in graph.get(open_ends.pop(), ()):
            if other not in seen:
                seen.add(other)
                open_ends.append(other)
    return seen


def strongly_connected(graph):
    reach = {folder: reachable(graph, folder) for folder in graph}
    done = set()
    for folder in sorted(graph):
        if folder in reach[folder] and folder not in done:
            circle = sorted(other for other in reach[folder] if folder in reach.get(other, ()))
            done.update(circle)
            yield circle


# ---- Sizes

CONTROL = re.compile(r"(?:namespace|struct|class|enum|union|if|for|while|switch|else|do|try|catch|return|case)\b")
TOKEN = re.compile(
    r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|[{};]',
    re.S | re.M,
)

MACROS = re.compile(r"^(?:\s*[A-Z][A-Z0-9_]+(?:\([^()]*\))?\n)+")
# The rest are patterns of heads as plain_head() gives them.
ASSIGNMENT = re.compile(r"(?<![=!<>+\-*/%&|^])=(?!=)")
LAMBDA = re.compile(r"(?:^|[=(,?:])\s*\[[^\[\]]*\][\s\w§:*&]*$")
RETURNS_CLASS = re.compile(r"(?:struct|class|enum|union)\s+\w[\w:\s]*[\s*&]+(?!alignas|decltype|__att)[\w:~]+\s*§")
# Heads that go on after a pair of braces: `f(int a = {`, `A::A() : member{`, `void f() requires requires(T x) {`.
GOES_ON = re.compile(r"\(|§.*?(?<!:):(?!:).*\w\s*$|\brequires\s*§?\s*$", re.S)


def functions(text):
    """(first line, lines) of each macro, and of each function that is defined at the level of a namespace or class."""
    stack = []  # of each open brace: first line of the function that it begins or `None`, its line, the head after it
    head, line, at, in_function = "", 1, 0, 0
    for token in TOKEN.finditer(text):
        head += text[at : token.start()]
        line += text.count("\n", at, token.start())
        at = token.end()
        if token[0] == "{":
            head = MACROS.sub("", head).lstrip()
            plain = "" if in_function else plain_head(head)
            goes_on = GOES_ON.search(plain) and not CONTROL.match(plain)
            begins = bool(LAMBDA.search(plain)) or (not goes_on and is_function(plain))
            stack.append((line - head.count("\n") if begins else None, line, head + "()()" if goes_on else ""))
            in_function += begins
            head = ""
        elif token[0] == "}" and stack:
            first, opened, head = stack.pop()
            head += "\n" * (line - opened) if head else ""
            if first is not None:
                in_function -= 1
                yield first, line - first + 1
        elif token[0].lstrip().startswith("#"):
            head = ""
            yield line, 1 + token[0].count("\n")
        else:
            head = "" if token[0] in "};" else head + '""' * (token[0][0] in "\"'R")
        line += token[0].count("\n")


def plain_head(head):
    """The text before a brace, with `§` for each pair of parentheses and without templates' arguments."""
    head = re.sub(r"\boperator\s*[^\w\s(]+", "operator_", head).replace("->", " ")
    for pattern, short in ((r"\([^()]*\)", "§"), (r"<[^<>]*>", "")):
        while re.search(pattern, head):
            head = re.sub(pattern, short, head)
    return re.sub(r"^(?:template\b|(?:public|private|protected)\s*:(?!:)|\s)+", "", head)


def is_function(head):
    is_other = CONTROL.match(head) and not RETURNS_CLASS.match(head)
    return "§" in head and not is_other and not ASSIGNMENT.search(head)


def python_functions(text, name):
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def check_size(name, lines):
    count = len(lines) - 1
    if name.endswith(SIZED) and count > MAX_LINES:
        yield count, "file-size", f"{count} lines; split it by purpose (at most {MAX_LINES})"
    parts, text = (), "\n".join(lines)
    if is_cxx(name):
        parts = functions(text)
    elif name.endswith(".py") or (lines[0].startswith("#!") and "python" in lines[0]):
        parts = python_functions(text, name)
    for first, length in parts:
        if length > MAX_FUNCTION_LINES:
            yield first, "function-size", f"{length} lines; split it by purpose (at most {MAX_FUNCTION_LINES})"


def check_folders(names):
    counts = collections.Counter(os.path.dirname(name) for name in names)
    for folder, count in sorted(counts.items()):
        if folder and count > MAX_FILES:
            yield folder + "/", "folder-size", f"{count} files; merge some (at most {MAX_FILES})"


# ---- Budgets


def room_of(name, rooms):
    """The longest of `rooms` that holds the file, or else its folder."""
    folder = os.path.dirname(name)
    while folder and folder not in rooms:
        folder = folder.rpartition("/")[0]
    return folder or os.path.dirname(name)


def check_budgets(read, names):
    """The table of BUDGETS against the tree, as (line of the table, rule, text)."""
    text = read(BUDGETS) if os.path.isfile(BUDGETS) else []
    table = [(number, line.split()) for number, line in enumerate(text, 1) if line[:1].strip(" #")]
    rooms = {words[0] for _, words in table}
    for row in sorted({"sum", "BUILD", SCRIPTS} - rooms):
        yield 1, "budget", f"there is no row '{row}'"
    sizes = {n: len(read(n)) - 1 for n in names if n.startswith(PRODUCTION) and n.endswith(SIZED)}
    lines, files = collections.Counter(), collections.Counter()
    for name, size in sizes.items():
        lines[room_of(name, rooms)] += size
        files[room_of(name, rooms)] += 1
    scripts = [n for n in names if n.startswith(PRODUCTION) and not has_suffix(n) and os.path.basename(n) != "BUILD"]
    lines[SCRIPTS] = sum(len(read(name)) - 1 for name in scripts)
    files[SCRIPTS] = len(scripts)

    def above(number, what, count, most, unit):
        if count > int(most):
            yield number, "budget", f"{what}: {count} {unit}, at most {most}"

    for number, words in table:
        if words[0] == "BUILD":
            build = sum(len(read(name)) - 1 for name in names if os.path.basename(name) == "BUILD")
            yield from above(number, "BUILD files", build, words[1], "lines")
        elif words[0] == "sum":
            parts = tuple(part + "/" for part in words[2].split("+"))
            total = sum(size for name, size in sizes.items() if name.startswith(parts))
            yield from above(number, words[2], total, words[1], "lines")
        else:
            yield from above(number, words[0], lines[words[0]], words[1], "lines")
            yield from above(number, words[0], files[words[0]], words[2], "files")
    for room in sorted(set(lines) - rooms - {SCRIPTS}):
        yield 1, "budget", f"{room}: {lines[room]} lines in a room without a budget"
