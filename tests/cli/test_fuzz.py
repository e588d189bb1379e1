"""Command lines drawn at random: each ends in time, with exit code 0 or 2, and no traceback."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from random import Random

import pytest

from tests.cli import slips
from tests.cli.fuzz import command_line
from tests.warm import Warm

pytestmark = pytest.mark.procs
SECONDS = 45.0
"""A command line that takes longer is called hung; the slowest of them take 3 on an idle core."""


@pytest.fixture(scope="module")
def run(process: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    made = process.call(slips.words_of(f"{slips.TRAIN} --out run"), folder)
    assert made.code == 0, made.err
    return folder / "run"


def assert_nothing_breaks(process: Warm, folder: Path, run: Path, lines: list[list[str]]) -> None:
    """Type each line in a folder like new, and list all that went wrong."""
    found = []
    for words in lines:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        slips.make_folder(folder, run)
        done = process.call(words, folder, seconds=SECONDS)
        if done.code not in (0, 2) or "Traceback" in done.err or "Exception ignored" in done.err:
            typed = shlex.join(words).encode("ascii", "backslashreplace").decode()
            found.append(f"[{done.code}] {typed[:600]}\n{done.err[-600:]}")
    assert not found, f"{len(found)} of {len(lines)}:\n" + "\n".join(found)


def test_a_few_command_lines(process: Warm, run: Path, tmp_path: Path) -> None:
    rng = Random(1)
    lines = [command_line(rng) for _ in range(25)]
    assert_nothing_breaks(process, tmp_path / "folder", run, lines)


@pytest.mark.slow
@pytest.mark.deadline(1_800)
def test_a_thousand_command_lines(process: Warm, run: Path, tmp_path: Path) -> None:
    rng = Random(2)
    lines = [command_line(rng) for _ in range(1_000)]
    assert_nothing_breaks(process, tmp_path / "folder", run, lines)
