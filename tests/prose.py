"""Find the words and first lines that the house style bans, in Python files and in pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_AREAS = (*("ding_lite", "tests", "docs"), *("README.md", "CHANGELOG.md"))

_PERSONS = r"\b(?i:who|who(?:m|se)|who(?:m|se)?ever|(?:no|some|any|every)body)\b"
_BE = "is|are|was|were|has|have|had|can|could|may|might|must|will|would|should"
_NOT_VERBS = "as|its|this|else|less|plus|unless|besides|thus|yes|need"
_VERB = rf"(?:{_BE}|do|did|(?!(?:{_NOT_VERBS})\b)[a-z]+(?:s|ed))\b"
_BANNED = re.compile(
    rf"{_PERSONS}|\b[Nn]o\s+one\s+{_VERB}"
    rf"|\bnone\s+(?:(?:else|of\s+(?:\w+\s+)?\w+)\s+)?{_VERB}"
    rf"|(?:^|[.!?:]\s+|\"\"\")None\s+(?:of|else|{_BE})\b"
)
"""With a capital, `None` is a value unless it begins a sentence."""
_SUSPECT = re.compile(
    rf"{_PERSONS}|\b[Nn]o\s+one\s+[a-z]"
    rf"|\bnone\s+(?:of|else|{_VERB})|(?<!\bis )(?<!\bnot )\bNone\s+(?:of|else|{_BE})\b"
)
"""Finds all that `_BANNED` finds, and more, in a text on one line without underscores."""
_RIDDLE = re.compile(r"(?:Who\w*|What\w*|Where\w*|How|When|Whether)\b")
_CODE_SPAN = re.compile(r"``[^`]*``|`[^`]*`")
_FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


class Place(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Text(NamedTuple):
    """Some lines of prose, and the line on which they begin."""

    line: int
    text: str


def areas() -> dict[str, list[Path]]:
    """Return the files of each area: a folder of the package or of the tests, or some pages."""
    found: dict[str, list[Path]] = {}
    for name in _AREAS:
        top = ROOT / name
        files = [top] if top.is_file() else [*top.rglob("*.py"), *top.rglob("*.md")]
        for file in sorted(files):
            parts = file.relative_to(ROOT).parts
            is_deep = len(parts) > 2 and name != "docs"
            found.setdefault("/".join(parts[: 1 + is_deep]), []).append(file)
    return found


def banned_words(file: Path) -> Iterator[Place]:
    """Find pronouns for persons, and `none` as a subject."""
    path = file.relative_to(ROOT).as_posix()
    source = file.read_text()
    if not _is_suspect(source):
        return
    is_page = file.suffix == ".md"
    for text in _page(source, path) if is_page else _python(source, path):
        plain = _CODE_SPAN.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text.text)
        for match in _BANNED.finditer(plain):
            start = plain.count("\n", 0, match.start())
            line = text.text.splitlines()[start].strip()
            yield Place(path, text.line + start, f"`{' '.join(match[0].split())}` in: {line}")


def riddles(file: Path) -> Iterator[Place]:
    """Find docstrings of public modules and classes that begin with a question word."""
    if file.suffix != ".py":
        return
    source = file.read_text()
    if not re.search(rf"[\"']\s*{_RIDDLE.pattern}", source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef) and not _is_private(node, file):
            first = (ast.get_docstring(node) or "").split("\n")[0]
            if _RIDDLE.match(first):
                line = node.body[0].lineno
                yield Place(file.relative_to(ROOT).as_posix(), line, first)


def _is_suspect(source: str) -> bool:
    return _SUSPECT.search(re.sub(r"\s*\n[\s#]*|_", " ", source)) is not None


def _is_private(node: ast.Module | ast.ClassDef, file: Path) -> bool:
    name = node.name if isinstance(node, ast.ClassDef) else file.stem
    return name.startswith("_") and not name.startswith("__")


def _page(source: str, path: str) -> Iterator[Text]:
    if path == "CHANGELOG.md":
        source = "\n## ".join(source.split("\n## ")[:2])
    yield Text(1, _FENCED.sub(lambda block: "\n" * block[0].count("\n"), source))


def _python(source: str, path: str) -> Iterator[Text]:
    """Yield docstrings, comments, names of tests, and the messages of the package."""
    tree = ast.parse(source)
    lines = source.splitlines()
    prose = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as string):
                prose.add(string)
                docstring = lines[node.lineno - 1 : node.end_lineno]
                yield Text(node.lineno, "\n".join(docstring).strip())
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                yield Text(node.lineno, name.replace("_", " "))
    if _is_suspect("\n".join(line for line in lines if "#" in line)):
        yield from _comments(source)
    if path.startswith("ding_lite/"):
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)) if node not in prose and " " in text.strip():
                    yield Text(node.lineno, text)


def _comments(source: str) -> Iterator[Text]:
    """Yield comments, those on adjacent lines as one."""
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if first + len(lines) != token.start[0] and lines:
                yield Text(first, "\n".join(lines))
                lines = []
            first = first if lines else token.start[0]
            lines.append(token.string.lstrip("# "))
    if lines:
        yield Text(first, "\n".join(lines))
