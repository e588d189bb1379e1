"""The trace file that all nodes of a machine write together: its beginning and its end."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from ding_lite.runtime.trace.file import TraceFile


def writer(path: Path, since_ns: int, name: str, times: int, count: int) -> subprocess.Popen[str]:
    words = map(str, (path, since_ns, name, times, count))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.programs.trace_writer", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def records(path: Path) -> list[Any]:
    """Read what was written, without the head."""
    head, *rest = list(json.loads(path.read_text()))
    assert head["name"] == "trace_began"
    return rest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_a_file_of_the_same_job_is_gone_on_with(path: Path) -> None:
    since_ns = monotonic_ns()
    for number in range(3):
        file = TraceFile(path, since_ns)
        file.write({"number": number})
        file.close()
    assert [record["number"] for record in records(path)] == [0, 1, 2]


@pytest.mark.parametrize("old", ["", "[]", "[\n", "no json", '[\n{"name": "trace_began"}\n]\n'])
def test_what_is_no_trace_of_ours_is_replaced(path: Path, old: str) -> None:
    path.write_text(old * 3)
    file = TraceFile(path, 0)
    file.write({"number": 1})
    file.close()
    assert records(path) == [{"number": 1}]


@pytest.mark.parametrize("how", ["closed", "killed", "before a boot"])
def test_a_trace_of_an_earlier_job_is_replaced(path: Path, how: str) -> None:
    old = TraceFile(path, monotonic_ns())
    old.write({"old": True})
    old.close()
    text, since_ns = path.read_text(), monotonic_ns()
    if how == "killed":  # its last writer was
        path.write_text(text.removesuffix("\n]\n"))
    if how == "before a boot":  # the clock began anew since then
        path.write_text(text.replace(json.loads(text)[0]["args"]["boot"], "another-boot"))
        since_ns = 0
    file = TraceFile(path, since_ns)
    file.write({"new": True})
    file.close()
    assert records(path) == [{"new": True}]


def test_a_file_with_another_writer_is_joined_whenever_it_was_begun(path: Path) -> None:
    one = TraceFile(path, monotonic_ns())
    one.write({"by": "one"})
    other = TraceFile(path, monotonic_ns())  # as a node that is started again by hand
    other.write({"by": "other"})
    one.close()
    assert not path.read_text().endswith("]\n")
    other.write({"by": "other"})
    other.close()
    assert [record["by"] for record in records(path)] == ["one", "other", "other"]


def test_the_last_of_many_processes_closes_what_all_have_written(path: Path) -> None:
    since_ns = monotonic_ns()
    children = [writer(path, since_ns, name, 6, 40) for name in "abc"]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    found = [(record["by"], record["time"], record["number"]) for record in records(path)]
    assert sorted(found) == [(n, t, k) for n in "abc" for t in range(6) for k in range(40)]
    for name in "abc":  # each in the order in which it wrote
        own = [record[1:] for record in found if record[0] == name]
        assert own == sorted(own)


@pytest.mark.parametrize("is_alone", [False, True])
def test_the_file_of_a_writer_that_was_killed_is_closed_by_another_one(path, is_alone) -> None:
    since_ns = monotonic_ns()
    file = None if is_alone else TraceFile(path, since_ns)
    with writer(path, since_ns, "killed", 0, 0) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        child.kill()
    assert json.loads(path.read_text() + "]")[1] == {"by": "killed"}  # it lacks the bracket
    file = file or TraceFile(path, since_ns)  # its next life
    file.write({"by": "survivor"})
    file.close()
    assert [record["by"] for record in records(path)] == ["killed", "survivor"]


def test_a_forked_child_does_not_keep_writers_out(path: Path) -> None:
    file = TraceFile(path, monotonic_ns())
    copy = os.dup(file._fd)  # what a fork leaves in the child
    file.close()
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(fd)
    finally:
        os.close(copy)
    assert records(path) == []


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file"):
        TraceFile(tmp_path / "file" / "trace.json", 0)
