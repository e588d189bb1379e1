"""Nodes in shells that no launcher watches over, as the wire between them breaks."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.parallel.proxy import Proxy
from tests.procs.programs import Program
from tests.procs.shells import Type
from tests.procs.test_environment import NODE_0, NODE_1


def reported(shell: Program, error: str, within_s: float) -> str:
    """Wait for the end of a node by an error; return its output."""
    began = time.monotonic()
    printed = shell.refusal()
    assert error in printed
    assert time.monotonic() - began < within_s
    return printed


@pytest.mark.parametrize("down_s", [0.0, 4.0])
def test_a_job_ends_on_both_nodes_though_the_link_is_down_as_one_leaves(
    fork_line, down_s, port
) -> None:
    with Proxy(f"tcp://127.0.0.1:{port}") as wire:
        learner = fork_line(NODE_0, program="cut_talk")
        learner.line("listens on")
        collector = fork_line(NODE_1, int(wire.address.rpartition(":")[2]), program="cut_talk")
        collector.line("up")
        pid = int(learner.line("up ")[1])
        wire.blackhole()
        wire.cut()
        os.kill(pid, signal.SIGUSR1)
        learner.line("ended")
        assert not threading.Event().wait(down_s)
        wire.heal()
        assert [shell.end()[0] for shell in (learner, collector)] == [0, 0]
        assert collector.seen.endswith("\n[50]\n"), collector.seen


def test_a_node_ends_with_an_error_when_its_only_peer_is_killed(fork_line: Type) -> None:
    limited = "DING_LITE_PEER_TIMEOUT=2 "
    shells = [fork_line(limited + line, program="cut_work") for line in (NODE_0, NODE_1)]
    for shell in shells:
        shell.line("up")
    shells[0].kill()
    printed = reported(shells[1], "PeerLost: Node 1 is connected to no other node any more", 8.0)
    assert "lost 0" in printed


def test_a_node_ends_with_an_error_if_its_place_was_taken_while_it_was_cut_off(
    fork_line, port
) -> None:
    with Proxy(f"tcp://127.0.0.1:{port}") as wire:
        hub = fork_line(NODE_0, program="cut_work")
        hub.line("listens on")
        first = fork_line(NODE_1, int(wire.address.rpartition(":")[2]), program="cut_work")
        for shell in (hub, first):
            shell.line("up")
        wire.blackhole()
        hub.line("lost 1")
        second = fork_line(NODE_1, program="cut_work")
        second.line("up")
        wire.heal()
        reported(first, "NodeReplaced: Node 1 was cut off, and has lost its place", 8.0)
        assert hub.process.poll() is None
        assert second.process.poll() is None
