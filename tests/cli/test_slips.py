"""Typed mistakes: one sentence, exit code 2, and nothing begun."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ding_lite.cli.main import main
from tests.cli import slips
from tests.warm import Output, Warm

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
    folder = tmp_path_factory.mktemp("folder")
    run = tmp_path_factory.mktemp("runs") / "run"
    made = process.call(slips.words_of(f"{slips.TRAIN} --out {run}"), folder)
    assert made.code == 0, made.err
    slips.make_folder(folder, run)
    return folder


def look(folder: Path) -> dict[str, bytes | None]:
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def assert_one_sentence(output: Output) -> None:
    assert output.code == 2, (output.code, output.err[-2_000:])
    assert output.out == ""
    assert "Traceback" not in output.err
    first, *others = [line for line in output.err.splitlines() if not LOG_LINE.match(line)]
    assert re.match(r"ding-lite( [a-z]+)?: .", first), output.err
    assert len(first) < 1_200, first
    hints = ("For example: ding-lite ", "All that is possible: ding-lite")
    assert all(line.startswith(hints) for line in others), output.err


def typed_here(line: str, capsys: pytest.CaptureFixture[str]) -> Output:
    """Type a line in this process: nothing that it begins would need one of its own."""
    try:
        code: object = main(slips.words_of(line))
    except SystemExit as end:
        code = end.code
    return Output(code if isinstance(code, int) else None, *capsys.readouterr(), seconds=0.0)


@pytest.mark.parametrize("kind", TABLES)
def test_a_typed_mistake_ends_with_a_sentence_and_2(
    process: Warm,
    folder: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, found = look(folder), []
    for line, expected in TABLES[kind]:
        # What would take all memory, were it not refused, does so in a process with a limit.
        is_large = kind == "size"
        words = slips.words_of(line)
        output = process.call(words, folder) if is_large else typed_here(line, capsys)
        try:
            assert_one_sentence(output)
            assert expected in output.err
        except AssertionError as error:
            found.append(f"{line[:200]}\n{error}")
    for name in [n for n in ("program", "no_main", "my-train") if n in sys.modules]:
        del sys.modules[name]
    assert not found, f"{len(found)} of {len(TABLES[kind])}:\n" + "\n".join(found)
    assert look(folder) == before
