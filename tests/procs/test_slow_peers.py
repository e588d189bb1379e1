"""Nodes that cannot keep up: nothing is lost, and their senders need no more memory."""

from __future__ import annotations

import os
import signal
import tempfile
from ast import literal_eval
from collections import Counter
from pathlib import Path

import pytest

from ding_lite.parallel import Parallel
from ding_lite.parallel.launch import launch
from tests.procs import mains
from tests.procs.conftest import Fork

# -- a reader that stalls ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "size"),
    [("ipc", 50), pytest.param("ipc", 200, marks=pytest.mark.slow), ("tcp", 50)],
)
def test_a_stalled_reader_of_a_large_state_costs_a_few_copies_and_ends_with_the_newest(
    fork: Fork, folder: Path, protocol: str, size: int
) -> None:
    os.mkfifo(folder / "go")
    with fork("large_states", protocol=protocol, size=size) as program:
        pid = program.pids(2)[1]
        os.kill(pid, signal.SIGSTOP)
        (folder / "go").write_text("")
        program.line("published")
        os.kill(pid, signal.SIGCONT)
        output = program.result()
        numbers = [line.split()[1:] for line in output.splitlines() if line.startswith("read")]
        assert numbers[-1] == ["10", "10.0"]
        assert all(float(seen) == int(number) for number, seen in numbers)
        copies = literal_eval(output.splitlines()[-1])[0]
        assert max(copies) < 5.0, copies


@pytest.mark.parametrize("protocol", [pytest.param("ipc", marks=pytest.mark.slow), "tcp"])
def test_events_wait_for_a_stalled_node_within_a_window_and_all_arrive(
    fork, folder, protocol
) -> None:
    os.mkfifo(folder / "go")
    given = {"topology": "star", "num_nodes": 2, "num_events": 200, "size": 2**20}
    with fork("stopped_listener", protocol=protocol, **given) as program:
        pid = program.pids(2)[1]
        os.kill(pid, signal.SIGSTOP)
        (folder / "go").write_text("")
        program.line("lost 1")  # by then all are emitted for which there is room
        assert "emitted 50\n" in program.seen
        assert "emitted 199\n" not in program.seen
        os.kill(pid, signal.SIGCONT)
        output = program.result()
        (megabytes, _), (_, all_heard) = literal_eval(output.splitlines()[-1])
        assert all_heard
        assert megabytes < 150  # the window is 64; 200 were emitted


@pytest.mark.parametrize("protocol", ["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def test_items_of_takers_that_are_killed_are_taken_by_the_others(fork, protocol) -> None:
    with fork("stream", protocol=protocol) as program:
        pids = program.pids(4)
        for victim, number in ((1, 50), (2, 150)):
            program.line(f"given {number}")
            os.kill(pids[victim], signal.SIGKILL)
        output = program.result()
        taken = Counter(literal_eval(output.splitlines()[-1])[0])
        assert {*taken} <= {*range(400)}
        # Or it may have said that it took an item, and not yet have told the giver.
        assert sum(count - 1 for count in taken.values()) <= 2


def test_jobs_in_a_row_leave_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check for descriptors, threads, processes and segments comes after each test."""
    monkeypatch.setattr(launch, "slow_to_import", tuple)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for number in range(3):
        protocol = ("ipc", "tcp")[number % 2]
        results = Parallel.runner(2, protocol=protocol)(mains.arguments, number)
        assert [result[2] for result in results] == [(number,)] * 2
        assert not list(folder.iterdir())
