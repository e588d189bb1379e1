"""Faults of a node that lives on: it is stopped, it hangs, its disk is full, it raises."""

from __future__ import annotations

import os
import select
import signal
from ast import literal_eval
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ding_lite.rl.checkpoint.save_load import load_checkpoint
from tests.procs.conftest import Fork, RunForked
from tests.procs.programs import Program

SLOW = pytest.mark.slow

# -- nodes that are silent for a while -----------------------------------------------------


class Fates:
    """Pairs of nodes that have lost each other, and those that are connected again."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._said: list[tuple[int, str, int]] = []

    def wait_for(self, *fates: tuple[int, str, int]) -> None:
        while not {*fates} <= {*self._said}:
            _, node, fate, peer = self._program.line("fate ")
            self._said.append((int(node), fate, int(peer)))

    def all_are_well(self) -> None:
        """Read on until every node that was lost is back."""
        lost = [(node, peer) for node, fate, peer in self._said if fate == "lost"]
        self.wait_for(*((node, "joined", peer) for node, peer in lost))


def pairs(victim: int) -> list[tuple[int, int]]:
    """Name the peers of a node in the star, each with it."""
    return [(1, 0), (2, 0)] if victim == 0 else [(0, victim)]


def ends_right(program: Program) -> None:
    (program.folder / "go").touch()
    output = program.result()
    received = literal_eval(output.splitlines()[-1])
    assert received == [{1: True, 2: True}, {0: True}, {0: True}]


@pytest.mark.parametrize(("victim", "protocol"), [(0, "tcp"), (1, "ipc")])
def test_a_node_that_is_stopped_for_five_seconds_is_lost_and_joins_again(fork, victim, protocol):
    with fork("numbered", hangs=None, protocol=protocol) as program:
        pid, fates = program.pids(3)[victim], Fates(program)
        handle = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGSTOP)
            fates.wait_for(*((node, "lost", peer) for node, peer in pairs(victim)))
            ended, _, _ = select.select([handle], [], [], 2.0)  # it is not killed either
            assert not ended
        finally:
            os.close(handle)
        os.kill(pid, signal.SIGCONT)
        fates.wait_for(*((node, "joined", peer) for node, peer in pairs(victim)))
        fates.all_are_well()
        ends_right(program)


def test_a_node_that_hangs_with_pythons_lock_held_is_lost_and_joins_again(fork: Fork) -> None:
    with fork("numbered", hangs=2, protocol="ipc") as program:
        program.pids(3)
        fates = Fates(program)
        fates.wait_for((0, "lost", 2), (0, "joined", 2))
        fates.all_are_well()
        ends_right(program)


# -- a disk that is full -------------------------------------------------------------------


def test_a_full_disk_of_a_node_ends_the_job_with_its_last_checkpoint_whole(
    fork_learner: Fork, folder: Path
) -> None:
    with fork_learner("counting", fills_disk=True) as program:
        output = program.refusal()
    assert "NodeFailed: Node 1 failed while running `main`: SaveError" in output
    assert "File too large" in output
    saved = load_checkpoint(folder / "checkpoint-1")
    assert (saved.state["counter"]["values"] == 5).all()
    assert not list((folder / "checkpoint-1").glob("*.tmp"))


# -- a node that raises or is killed --------------------------------------------------------


def test_the_node_that_fails_before_a_barrier_is_named_and_not_those_that_wait_there(fork):
    with fork("ends", main="barrier", recover=False) as program:
        output = program.refusal()
        program.leaves_nothing()
    assert "NodeFailed: Node 2 failed while running `main`: ZeroDivisionError: on the way" in output


def test_with_auto_recover_all_pass_the_barrier_when_the_node_is_back(
    run_forked: RunForked,
) -> None:
    output = run_forked("ends", main="barrier", recover=True)
    assert output.splitlines()[-1] == f"[{', '.join(['[0, 1, 2]'] * 3)}]", output


@pytest.mark.parametrize("protocol", ["ipc", pytest.param("tcp", marks=SLOW)])
def test_items_of_takers_that_are_killed_are_taken_by_the_others(fork: Fork, protocol: str) -> None:
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


# -- Ctrl-C --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stage",
    [
        "-1 import",
        "2 main",
        *(pytest.param(stage, marks=SLOW) for stage in ("0 import", "2 import", "0 main")),
    ],
)
def test_ctrl_c_during_the_start_ends_all_nodes_at_any_stage(fork: Fork, stage: str) -> None:
    node, where = stage.split()
    with fork("stages") as program:
        pids: dict[str, Any] = {}
        while pids.get(node, (0, ""))[1] != where:
            _, who, pid, how_far = program.line("up ")
            pids[who] = int(pid), how_far
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to the whole group
        code, output = program.end()
        assert code == -signal.SIGINT, output
        for line in program.seen.splitlines():
            if line.startswith("up "):
                program.leaves_nothing(int(line.split()[2]))
