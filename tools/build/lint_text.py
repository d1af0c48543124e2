"""Rules of tools/lint about comments and pages."""
import os
import re

from lint_structure import has_suffix, is_cxx

OPENING = re.compile(r"\b(Of|What|Who|Which|Whose)\b(?!\?)")
PRONOUNS = {"that", "those", "one", "ones", "none", "which", "what"}
PRONOUN_WORDS = 12  # at most one of PRONOUNS in so many words
PATH = re.compile(r"(?<![\w/.:-])(?:core|amp|comm|models|tools|tests|configs|docs|examples|third_party)/[\w./-]*\w")


def has_comments(name):
    if has_slashes(name) or name.endswith((".py", ".sh", ".bzl", ".yaml", ".md", "BUILD")):
        return True
    return not has_suffix(name)  # scripts


def has_slashes(name):
    """Says if comments begin with //, and not with #."""
    return is_cxx(name) or name.endswith(".js")


def comment_text(name, line):
    """The text of a line's comment, or of a line of a page; `None` without such a text."""
    if has_slashes(name):
        match = re.search(r"(?:^|\s)//+ ?(.*)$", line)
    elif name.endswith(".md"):
        return None if line.startswith(("    ", "|", "#")) else line
    else:
        match = re.match(r'\s*(?:#|""") ?(.*)$', line) or re.search(r"\s# (.*)$", line)
    return match[1] if match else None


def comments(name, lines):
    """Blocks of comments: lists of (line number, text)."""
    block, fenced = [], False
    marks = "//" if has_slashes(name) else "" if name.endswith(".md") else ("#", '"""')
    for number, line in enumerate(lines, 1):
        if name.endswith(".md") and line.startswith("```"):
            fenced = not fenced
        text = None if fenced else comment_text(name, line)
        beside_code = text is not None and not line.lstrip().startswith(marks)
        if block and (text is None or beside_code):
            yield block
            block = []
        if text is not None:
            block.append((number, text))
        if beside_code:
            yield block
            block = []
    if block:
        yield block


def check_openings(block):
    """Reports sentences that open with a bare relative or genitive."""
    previous = ""
    for number, text in block:
        text = text.strip().lstrip("-*_ ")
        for match in OPENING.finditer(text):
            before = (previous + " " + text[: match.start()]).rstrip(' *_"(')
            if before == "" or before[-1] in ".!?":
                yield number, "comment", f"a sentence opens with '{match[1]}': put its subject first"
        previous = text


def check_pronouns(block):
    """Reports sentences with two pronouns close to each other: they have nouns."""
    last = None  # words since the last pronoun, and that word
    for number, text in block:
        for word in re.findall(r"`[^`]*`|[.!?](?=\s|$)|[A-Za-z][\w'-]*", text):
            if word[0] in ".!?":
                last = None
            elif word.lower() in PRONOUNS:
                if last is not None and last[0] < PRONOUN_WORDS - 1:
                    yield number, "pronoun", f"'{last[1]}' and '{word}' within {PRONOUN_WORDS} words: name the noun"
                last = (0, word)
            elif last is not None:
                last = (last[0] + 1, last[1])


def check_paths(name, block, exists):
    """Reports paths that lead nowhere. A path may also begin in the folder of the file."""
    for number, text in block:
        for path in PATH.findall(text):
            if not exists(path) and not exists(os.path.join(os.path.dirname(name), path)):
                yield number, "dead-path", f"there is no {path}"


def check_comments(name, lines, exists):
    for block in comments(name, lines):
        yield from check_openings(block)
        if not name.endswith(".md"):
            yield from check_pronouns(block)
            yield from check_paths(name, block, exists)
    if name.endswith(".md"):  # also tables
        yield from check_paths(name, [(i, line) for i, line in enumerate(lines, 1) if line[:4].strip()], exists)
