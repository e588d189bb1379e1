"""The engine that starts nodes by a fork server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import pytest

from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.job import NodeRecord
from ding_lite.parallel.supervise.local_engine import LocalEngine, _Child
from ding_lite.parallel.supervise.node_process import RUNNING, SIGNALS, Entered, Returned


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(partial(os.getpid), PrivateDirectory(tmp_path))
    yield engine
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_fork_server_blocks_signals_from_its_start(engine: LocalEngine) -> None:
    engine.open()
    assert engine._process is not None
    status = Path(f"/proc/{engine._process.pid}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert all(blocked >> (number - 1) & 1 for number in SIGNALS)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & SIGNALS  # here they are not


def test_a_result_is_reported_with_all_that_other_nodes_have_sent_before(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for node_id in range(2):
        ours, theirs = Pipe()
        record = NodeRecord(NodeSpec(node_id=node_id, num_nodes=4, labels=frozenset()))
        engine._children[node_id] = _Child(record, ours)
        lines.append(theirs)
    lines[0].send(Returned("first"))
    lines[1].send(Entered(RUNNING))
    read = "ding_lite.parallel.supervise.local_engine.wait"
    monkeypatch.setattr(read, lambda sources, timeout: [sources[2]])  # it has seen that of node 0
    assert engine.wait(None) == [(0, Returned("first")), (1, Entered(RUNNING))]
    for line in lines:
        line.close()
