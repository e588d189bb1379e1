"""Output that is closed, full, narrow, or in an encoding without the signs: no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.slips import TRAIN, words_of
from tests.recipes.runs.test_results import leave
from tests.warm import Warm

pytestmark = pytest.mark.procs
PRINTING = ["--help", "train --help", "env", "plot r", "train dqn CartPole-v1 --settings"]
"""Commands that print many lines, and change nothing."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    leave("r/1")
    leave("r/2", seed=1)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        *((line, {}) for line in PRINTING),
        *((line, {"PYTHONUNBUFFERED": "1"}) for line in ("env", PRINTING[-1])),
    ],
)
def test_a_full_disk_behind_standard_output_is_reported(process, folder, line, variables) -> None:
    printed = process.call(line.split(), folder, streams={1: "/dev/full"}, variables=variables)
    assert printed.code == 1
    [last] = printed.err.splitlines()
    assert last.startswith("ding-lite")
    assert last.endswith(": standard output: No space left on device.")


def test_a_full_disk_behind_standard_error_does_not_end_a_run(process, folder) -> None:
    printed = process.call(words_of(f"{TRAIN} --out new"), folder, streams={2: "/dev/full"})
    assert printed.code == 0
    assert json.loads(printed.out)["env_steps"] > 0


@pytest.mark.parametrize(
    ("line", "closed"),
    [
        *((line, closed) for line in PRINTING for closed in ((1,), (0, 1, 2))),
        *((f"{TRAIN} --out new", closed) for closed in ((0,), (1,), (2,), (0, 1, 2))),
    ],
)
def test_closed_streams_are_no_error(process, folder, line, closed) -> None:
    printed = process.call(words_of(line), folder, closed=closed)
    assert printed.code == 0
    assert "Traceback" not in printed.err
    assert bool(printed.out) == (1 not in closed)


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_mistake_has_its_exit_code_where_streams_are_closed(process, folder, closed) -> None:
    for line in ("train dqn CartPol-v1", "watch nowhere", "plot nowhere", "trainn"):
        assert process.call(line.split(), folder, closed=closed).code == 2


@pytest.mark.parametrize("line", PRINTING)
def test_a_reader_that_has_left_is_no_error(process: Warm, folder: Path, line: str) -> None:
    printed = process.call(line.split(), folder, streams={1: "|"})
    assert (printed.code, printed.err) == (1, "")


@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({"PYTHONIOENCODING": "ascii"}, ["plot r", "env", f"{TRAIN} --out new", "train --help"]),
        ({"COLUMNS": "1", "LINES": "1"}, ["plot r", "env", "train --help"]),
        ({"COLUMNS": "0"}, ["plot r", "env"]),
        ({"TERM": "dumb"}, ["env", f"{TRAIN} --out new"]),
        ({"TERM": "", "NO_COLOR": "1"}, ["env"]),
    ],
    ids=str,
)
def test_any_encoding_and_width_will_do(process, folder, variables, lines) -> None:
    for line in lines:
        printed = process.call(words_of(line), folder, variables=variables)
        assert printed.code == 0, printed.err
        assert "Traceback" not in printed.err
        assert printed.out
