"""Typed mistakes: one sentence, exit code 2, and nothing begun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli import slips
from tests.warm import Said, Warm

pytestmark = pytest.mark.procs
TABLES = {
    "number": slips.NUMBERS,
    "size": slips.TOO_LARGE,
    "path": slips.PATHS,
    "run": slips.BROKEN_RUNS,
    "name": slips.NAMES,
    "combination": slips.COMBINATIONS,
}
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")


@pytest.fixture(scope="module")
def folder(process: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that can be mistaken for something else."""
    folder = tmp_path_factory.mktemp("folder")
    run = tmp_path_factory.mktemp("runs") / "run"
    made = process.call(slips.words_of(f"{slips.TRAIN} --out {run}"), folder)
    assert made.code == 0, made.err
    slips.make_folder(folder, run)
    return folder


def look(folder: Path) -> dict[str, bytes | None]:
    """Return what lies in a folder."""
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def assert_one_sentence(said: Said) -> None:
    assert said.code == 2, (said.code, said.err[-2_000:])
    assert said.out == ""
    assert "Traceback" not in said.err
    first, *others = [line for line in said.err.splitlines() if not LOG_LINE.match(line)]
    assert re.match(r"ding-lite( [a-z]+)?: .", first), said.err
    assert len(first) < 1_200, first
    hints = ("For example: ding-lite ", "All that is possible: ding-lite")
    assert all(line.startswith(hints) for line in others), said.err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(line, expected, id=f"{kind}-{index}")
        for kind, table in TABLES.items()
        for index, (line, expected) in enumerate(table)
    ],
)
def test_a_typed_mistake_ends_with_a_sentence_and_2(process, folder, line, expected) -> None:
    before = look(folder)
    said = process.call(slips.words_of(line), folder)
    assert_one_sentence(said)
    assert expected in said.err
    assert look(folder) == before
