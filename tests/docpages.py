"""Read a documentation page: its programs, their expected output, and its links.

The ```python blocks of a page are one program, run in order in one process. A block marked
```python alone is a separate program, and a block marked ```python no-run is only parsed. A block
may end with its expected output::

    print(1 + 1)
    # prints: 2

or, over several lines, with `# prints:` alone and one comment line for each printed line. In an
expected line `...` stands for anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.warm import Warm

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>[^`\n]*)$")
_LINK = re.compile(
    r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)|<img[^>]*src=\"(?P<src>[^\"]+)\""
)
_HEADING = re.compile(r"^#+\s+(?P<title>.+?)\s*#*$")
_MARK = "\x1e"


@dataclass(frozen=True)
class Block:
    line: int
    """Of its first line of code, counted from 1."""
    language: str
    run: bool
    alone: bool
    code: str

    @property
    def prints(self) -> list[str] | None:
        """The expected output of the block, as lines; None without `# prints:`."""
        comments: list[str] = []
        for line in map(str.strip, reversed(self.code.rstrip().splitlines())):
            if not line.startswith("#"):
                return None
            comments.insert(0, line.removeprefix("#").removeprefix(" "))
            if line.startswith("# prints:"):
                first = line.removeprefix("# prints:").strip()
                return ([first] if first else []) + comments[1:]
        return None


def blocks(text: str) -> Iterator[Block]:
    """Find the fenced blocks of a page."""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        opening = _FENCE.match(line)
        if not opening:
            continue
        indent, code = len(opening["indent"]), []
        for _, inner in lines:
            if inner.strip() == opening["ticks"]:
                break
            code.append(inner[indent:] if inner[:indent].isspace() else inner)
        words = opening["info"].split()
        yield Block(
            number + 1,
            words[0] if words else "",
            "no-run" not in words,
            "alone" in words,
            "\n".join(code) + "\n",
        )


def program(running: Iterable[Block]) -> str:
    """Join blocks; lines keep their numbers, so a traceback points into the page."""
    lines: list[str] = []
    for block in running:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.splitlines()
        # On the line of the closing fence: end of this block's output. Nodes import the page.
        lines.append(f"if __name__ == '__main__': print({_MARK!r}, flush=True)")
    return "\n".join(lines) + "\n"


def faults_of_page(page: Path, folder: Path, process: Warm, *, seconds: float) -> list[str]:
    """Run the programs of a page in a folder; return the faults of the page.

    Args:
        page: The page's file.
        folder: Where its programs run, and leave their files.
        process: It forks a child for each program.
        seconds: After which a program is killed, and counts as hanging.
    """
    faults = [*_unparsable(page), *broken_links(page)]
    if faults:
        return faults
    running = [block for block in _python(page) if block.run]
    together = [block for block in running if not block.alone]
    programs = [together] if together else []
    programs += [[block] for block in running if block.alone]
    for blocks_of_one in programs:
        faults += _faults_of_program(page, blocks_of_one, folder, process, seconds)
    return faults


def _faults_of_program(
    page: Path, running: list[Block], folder: Path, process: Warm, seconds: float
) -> Iterator[str]:
    script = folder / "program.py"  # a name of its own could hide a package that it is about
    script.write_text(program(running))
    said = process.run(script, seconds=seconds, finalize=False)
    if said.code is None:
        yield f"{page.name}: still running after {seconds:g} s"
        return
    if said.code:
        end = "\n".join(said.err.splitlines()[-15:])
        yield f"{page.name}: ended with exit code {said.code}\n{end}"
        return
    yield from _wrong_output(page, running, said.out)


def broken_links(page: Path) -> Iterator[str]:
    text = _without_blocks(page.read_text())
    for match in _LINK.finditer(text):
        target = match["target"] or match["src"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            yield f"{page.name}: `{target}` does not exist"
        elif anchor and other.suffix == ".md" and anchor not in _anchors(other):
            yield f"{page.name}: no heading for `{target}`"


def _python(page: Path) -> list[Block]:
    return [block for block in blocks(page.read_text()) if block.language == "python"]


def _unparsable(page: Path) -> Iterator[str]:
    for block in _python(page):
        try:
            ast.parse(block.code)
        except SyntaxError as error:
            yield f"{page.name}:{block.line + (error.lineno or 1) - 1}: {error.msg}"
        if "# prints:" in block.code and block.prints is None:
            yield f"{page.name}:{block.line}: `# prints:` must start a line, and end its block"


def _wrong_output(page: Path, running: list[Block], output: str) -> Iterator[str]:
    for block, printed in zip(running, output.split(f"{_MARK}\n"), strict=False):
        expected = block.prints
        if expected is None:
            continue
        found = [line.rstrip() for line in printed.rstrip().splitlines()]
        if not _agree(expected, found):
            wanted, got = "\n  ".join(expected), "\n  ".join(found)
            yield f"{page.name}:{block.line}: says it prints\n  {wanted}\nbut prints\n  {got}"


def _agree(expected: list[str], found: list[str]) -> bool:
    pattern = "\n".join(re.escape(line.rstrip()).replace(r"\.\.\.", ".*") for line in expected)
    return re.fullmatch(pattern, "\n".join(found)) is not None


def _without_blocks(text: str) -> str:
    kept, ticks = [], ""
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence and not ticks:
            ticks = fence["ticks"]
        elif ticks and line.strip() == ticks:
            ticks = ""
        elif not ticks:
            kept.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(kept)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the headings: lower case, no punctuation, dashes."""
    found = set()
    inside = False
    for line in page.read_text().splitlines():
        inside ^= line.lstrip().startswith("```")
        if not inside and (heading := _HEADING.match(line)):
            title = re.sub(r"[^\w\- ]", "", heading["title"].lower())
            found.add(title.replace(" ", "-"))
    return found
