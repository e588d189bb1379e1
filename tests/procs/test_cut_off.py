"""Nodes in shells that no launcher watches over, as the wire between them breaks."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.parallel.proxy import Proxy
from tests.procs.test_environment import NODE_0, NODE_1


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
