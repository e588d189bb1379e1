"""Programs of users are typed: right programs pass mypy --strict, and wrong ones do not.

The files of tests/typing/ are never run. A line that must be refused ends with `# error: <code>`,
and optionally a part of the message: `# error: arg-type: expected "int"`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "tests" / "typing").glob("*.py"))
_WANTED = re.compile(r"# error: (?P<code>[a-z-]+)(?:: (?P<text>.+))?$")
_FOUND = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)  \[(?P<code>[a-z-]+)\]$")

# mypy without a cache first reads torch; that takes a minute or two.
pytestmark = pytest.mark.deadline(300)


class Refusal(NamedTuple):
    file: str
    line: int
    code: str
    text: str


WRONG_MARKS = """\
a: int = 1  # error: assignment
b: int = "1"
c: int = "1"  # error: arg-type
d: int = "1"  # error: assignment: variable has type "str"
e: int = "1"  # error: assignment: variable has type "int"
"""


@pytest.fixture(scope="module")
def wrongly_marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("marks") / "wrongly_marked.py"
    file.write_text(WRONG_MARKS)
    return file


@pytest.fixture(scope="module")
def found(wrongly_marked: Path) -> list[Refusal]:
    """Check all files at once: mypy takes most of its time to start."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "setup.cfg")]
    command += ["--no-error-summary", "--no-pretty", *map(str, FILES), str(wrongly_marked)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert output.returncode == 1, output.stdout + output.stderr
    return [
        Refusal(Path(m["file"]).name, int(m["line"]), m["code"], m["text"])
        for m in map(_FOUND.match, output.stdout.splitlines())
        if m
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_mypy_refuses_exactly_the_marked_lines(found: list[Refusal], file: Path) -> None:
    said = complaints(file, found)
    assert not said, "\n".join(said)


def test_a_wrong_mark_is_caught(found: list[Refusal], wrongly_marked: Path) -> None:
    first, second, third, fourth = complaints(wrongly_marked, found)
    assert first.startswith("wrongly_marked.py:1: should be refused")
    assert second.startswith("wrongly_marked.py:2: is refused")
    assert third.startswith("wrongly_marked.py:3: refused with [assignment]")
    assert fourth.startswith("wrongly_marked.py:4: refused with [assignment]")


def complaints(file: Path, found: list[Refusal]) -> list[str]:
    """Compare the marks of a file with the errors that mypy found in it."""
    said = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        wanted = _WANTED.search(line)
        here = [r for r in found if (r.file, r.line) == (file.name, number)]
        place = f"{file.name}:{number}"
        heard = "; ".join(f"[{refusal.code}] {refusal.text}" for refusal in here)
        if wanted is None:
            said += [f"{place}: is refused with {heard}"] * bool(here)
        elif not here:
            said.append(f"{place}: should be refused with [{wanted['code']}], and passes")
        elif not any(r.code == wanted["code"] and (wanted["text"] or "") in r.text for r in here):
            said.append(f"{place}: refused with {heard}")
    return said
