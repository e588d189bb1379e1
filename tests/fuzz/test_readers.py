"""Any content of a file or frame is read, or refused with an error of this package.

`make test-slow` tries a million mutants; FUZZ_MUTANTS and FUZZ_FIRST in the environment choose how
many, and where to go on. `python -m tests.fuzz --help` tries some of one kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import TARGETS

MUTANTS = int(os.environ.get("FUZZ_MUTANTS", "1000000"))
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
NEVER_READ = {"outer manifests"}
"""A checksum holds these together, so that hardly any change of them goes unnoticed."""


def read_or_refused(folder: Path, mutants: int, *options: str) -> dict[str, dict[str, int]]:
    """Try mutants in a process of their own, which may crash; return what became of them."""
    command = [sys.executable, "-m", "tests.fuzz", str(folder / "mutants")]
    ended = subprocess.run(
        [*command, "--mutants", str(mutants), *options], capture_output=True, text=True, check=False
    )
    last = (folder / "mutants" / "at").read_text().splitlines()[0]
    assert ended.returncode == 0, f"exit {ended.returncode} at {last}:\n{ended.stderr[-5_000:]}"
    lines = map(json.loads, ended.stdout.splitlines())
    return {line.pop("target"): line for line in lines}


@pytest.mark.procs
def test_a_few_thousand_broken_files_and_frames_are_read_or_refused(tmp_path: Path) -> None:
    fates = read_or_refused(tmp_path, 3_000)
    assert fates.keys() == TARGETS.keys()
    assert all(fate.get("refused") for fate in fates.values()), fates
    assert all(fates[name].get("read") for name in fates.keys() - NEVER_READ), fates


@pytest.mark.slow
@pytest.mark.procs
@pytest.mark.deadline(600.0 + MUTANTS / 200)
@pytest.mark.parametrize("name", TARGETS)
def test_a_million_broken_files_and_frames_are_read_or_refused(tmp_path: Path, name: str) -> None:
    fates = read_or_refused(tmp_path, MUTANTS, "--first", str(FIRST), "--only", name)
    assert fates[name].get("refused")


def test_a_crash_is_named_with_the_mutant_that_was_read_last(tmp_path, monkeypatch) -> None:
    (tmp_path / "mutants").mkdir()
    (tmp_path / "mutants" / "at").write_text("manifests 17\n")
    crash = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **more: run(crash, **more))
    with pytest.raises(AssertionError, match="exit -11 at manifests 17"):
        read_or_refused(tmp_path, 1)
