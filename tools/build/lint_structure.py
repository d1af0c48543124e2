"""Rules of tools/lint about the structure of the tree: floors, circles, vendors, sizes and budgets."""
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
# Files with one purpose; production lines are those of these below PRODUCTION.
SIZED = (".h", ".cc", ".js", ".css", ".html", ".py", ".sh", ".bzl")
PRODUCTION = ("core/", "amp/", "comm/", "models/", "tools/")
BUDGETS = "tools/build/budgets"

INCLUDE = re.compile(r'\s*#\s*include\s+(["<])([^">]+)[">]')


def is_cxx(name):
    return name.endswith((".h", ".cc"))


def floor_of(folder):
    while folder and folder not in FLOORS:
        folder = folder.rpartition("/")[0]
    return folder, FLOORS.get(folder)


def check_includes(name, lines):
    part, floor = floor_of(os.path.dirname(name))
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match[2]
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
    """Folders that include each other, at each depth of the tree, as sorted lists. Tests have no folders of their own."""
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

CONTROL = re.compile(r"\s*(?:namespace|struct|class|enum|union|extern|if|for|while|switch|else|do|try|catch|return|case)\b")
TOKEN = re.compile(
    r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|[{};]',
    re.S | re.M,
)


MACROS = re.compile(r"^(?:\s*[A-Z][A-Z0-9_]+(?:\([^()]*\))?\n)+")


def functions(text):
    """(first line, lines) of each function that is defined at the level of a namespace or class."""
    stack = []  # of each open brace: the first line of the function that it begins, or None
    head, line, at, in_function = "", 1, 0, 0
    for token in TOKEN.finditer(text):
        head += text[at : token.start()]
        line += text.count("\n", at, token.start())
        at = token.end()
        if token[0] == "{":
            head = MACROS.sub("", head).lstrip()
            begins = not in_function and is_function(head)
            stack.append(line - head.count("\n") if begins else None)
            in_function += begins
        elif token[0] == "}" and stack:
            first = stack.pop()
            if first is not None:
                in_function -= 1
                yield first, line - first + 1
        line += token[0].count("\n")
        head = "" if token[0] in "{};" or token[0].lstrip().startswith("#") else head + '""' * (token[0][0] in "\"'R")


def is_function(head):
    head = re.sub(r"^\s*(?:template\s*<[^{};]*?>\s*(?=[\w\[]))*", "", head)
    while re.search(r"\([^()]*\)", head):
        head = re.sub(r"\([^()]*\)", "§", head)
    return "§" in head and not CONTROL.match(head) and not re.search(r"(?<!operator)=(?!=)", head) and "(" not in head


def check_size(name, lines):
    count = len(lines) - 1
    if name.endswith(SIZED) and count > MAX_LINES:
        yield count, "file-size", f"{count} lines; split it by purpose (at most {MAX_LINES})"
    if is_cxx(name):
        for first, length in functions("\n".join(lines)):
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
    table = [(number, line.split()) for number, line in enumerate(read(BUDGETS), 1) if line[:1].strip(" #")]
    rooms = {words[0] for _, words in table}
    sizes = {n: len(read(n)) - 1 for n in names if n.startswith(PRODUCTION) and n.endswith(SIZED)}
    lines, files = collections.Counter(), collections.Counter()
    for name, size in sizes.items():
        lines[room_of(name, rooms)] += size
        files[room_of(name, rooms)] += 1

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
    for room in sorted(set(lines) - rooms):
        yield 1, "budget", f"{room}: {lines[room]} lines in a room without a budget"
