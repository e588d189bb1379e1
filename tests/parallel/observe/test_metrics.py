"""Metrics of a node: the record on disk, and the reporter that makes it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.observe.metrics import (
    PREFIX,
    Counts,
    MetricsFile,
    NodeMetrics,
    PeerMetrics,
    own_directory,
    read_metrics,
)
from ding_lite.parallel.observe.metrics_reporter import Reporter, where_is
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.in_process import InprocTransport, Network
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster
from tests.cli.calls import ROOT
from tests.parallel.tcp import hub_spec, wait_until

RECORD = NodeMetrics(
    node_id=1,
    num_nodes=2,
    labels=("collector", "node.1"),
    pid=os.getpid(),
    program="train.py",
    addresses=("tcp://127.0.0.1:50515",),
    restarts=3,
    began=10.0,
    at=12.5,
    state="waiting",
    where="train.py:14 train",
    total=Counts(total_step=7, env_step=56, events_out=3),
    per_second=Counts(total_step=3.5),
    inbox=1,
    items=2,
    calls=4,
    peers=(PeerMetrics(node_id=0, labels=("learner",), is_connected=True, unacknowledged=9),),
)


def written(folder: Path, record: NodeMetrics) -> NodeMetrics | None:
    """Write a record, and read it again."""
    file = MetricsFile(folder, record.node_id)
    file.write(record)
    file.close()
    return read_metrics(folder / f"{PREFIX}{record.node_id}")


def test_a_record_is_read_as_it_was_written_and_by_its_owner_only(tmp_path: Path) -> None:
    assert written(tmp_path, RECORD) == RECORD
    assert stat.S_IMODE((tmp_path / "metrics-1").stat().st_mode) == 0o600


def test_a_record_that_is_too_long_leaves_the_labels_of_peers_out(tmp_path: Path) -> None:
    labels = tuple("a" * 1020 + f"{number:04d}" for number in range(600))
    peers = tuple(PeerMetrics(node_id=number, labels=labels) for number in (1, 2))
    read: Any = written(tmp_path, replace(RECORD, peers=peers))
    assert [(peer.node_id, peer.labels) for peer in read.peers] == [(1, ()), (2, ())]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "changed": lambda path: path.write_bytes(path.read_bytes().replace(b"train.py", b"evil..py")),
    "an empty object": lambda path: path.write_bytes(b"\x02\x00\x00\x00\x43\xbf\xa6\xa3{}"),
    "missing": lambda path: path.unlink(),
    "fifo": lambda path: (path.unlink(), os.mkfifo(path)),
    "link": lambda path: path.symlink_to(path.rename(path.parent / "elsewhere")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_incomplete_records_are_ignored(tmp_path: Path, damage: str) -> None:
    written(tmp_path, RECORD)
    DAMAGES[damage](tmp_path / "metrics-1")
    assert read_metrics(tmp_path / "metrics-1") is None


def test_no_reader_sees_half_of_a_record(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, 1)
    file.write(replace(RECORD, inbox=0, where=""))
    is_over, seen = threading.Event(), set[int]()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            file.write(replace(RECORD, inbox=number, where=f"{number} " * (number % 200)))
        file.close()

    def read() -> None:
        while len(seen) < 30:
            record = read_metrics(tmp_path / "metrics-1")
            if record is not None:  # and not five times in a row in the middle of a write
                seen.add(record.inbox)
                assert record.where == f"{record.inbox} " * (record.inbox % 200)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        try:
            read()
        finally:
            is_over.set()


def test_a_rate_is_over_the_time_between_two_looks_and_never_below_nothing() -> None:
    before = Counts(total_step=10, events_out=100, ctx_in=5)
    now = Counts(total_step=30, env_step=8, events_out=40, ctx_in=6)
    assert now.rate(before, 2.0) == Counts(total_step=10.0, events_out=0.0, ctx_in=0.5)


def test_a_node_without_a_launcher_has_a_directory_for_its_lifetime(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ding_lite.parallel.network.address._base", lambda: tmp_path)
    with own_directory() as directory:
        assert directory is not None
        assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_room_for_metrics_goes_on(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("ding_lite.parallel.network.address._base", lambda: tmp_path / "missing")
    with own_directory() as directory:
        assert directory is None
    assert "`ding-lite top` will not see this node" in caplog.text


Pair = tuple[NodeRouter, NodeRouter]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return the routers of two connected nodes in this process."""

    class Observed(Cluster):
        def _make(self, spec: NodeSpec) -> NodeRouter:
            return super()._make(replace(spec, directory=str(tmp_path)))

    with Observed(2, "star", roles=["a", "b"]) as cluster:
        yield cluster.routers[0], cluster.routers[1]


def sample(router: NodeRouter) -> NodeMetrics:
    return router._reporter.sample(router._clock.now())


def wait_for(router: NodeRouter, ready: Callable[[NodeMetrics], bool]) -> NodeMetrics:
    # Without the lock of the links, which is taken within others that a sample takes.
    wait_until(lambda: ready(sample(router)), "the expected metrics")
    return sample(router)


def test_a_record_has_the_node_and_its_peers(pair: Pair) -> None:
    metrics = sample(pair[1])
    assert (metrics.node_id, metrics.num_nodes, metrics.pid) == (1, 2, os.getpid())
    assert metrics.labels == ("b", "b.0", "distributed", "node.1")
    assert metrics.addresses == ("inproc://0",)
    assert (metrics.state, metrics.restarts, metrics.total.total_step) == ("no task", 0, None)
    [peer] = metrics.peers
    assert (peer.node_id, peer.is_connected) == (0, True)
    assert peer.labels == ("a", "a.0", "distributed", "node.0")
    assert peer.heard_s is not None
    assert peer.ctx_s is None


def test_a_record_counts_sent_and_received_messages(pair: Pair) -> None:
    one, other = pair
    for number in range(5):
        one.emit("n", number)
    one.publish_ctx({"train_iter": 1})
    metrics = wait_for(other, lambda m: m.total.ctx_in == 1 and m.total.events_in == 5)
    assert metrics.inbox == 5  # there is no task to listen
    assert metrics.lag_s is not None
    sent = wait_for(one, lambda metrics: metrics.unacknowledged == 0)
    assert (sent.total.events_out, sent.total.ctx_out) == (5, 1)
    assert (sent.total.events_in, sent.total.ctx_in, sent.lag_s) == (0, 0, None)


def test_items_and_calls_that_wait_are_counted(pair: Pair) -> None:
    one, other = pair
    for number in range(2):
        one.send("items", number, to="b")
    metrics = wait_for(other, lambda metrics: metrics.items == 2)
    assert sample(one).total.items_out == 2
    assert sample(one).calls == 2  # an item is a call that is answered when it is taken
    for _ in range(2):
        other.receive("items")
    metrics = wait_for(one, lambda metrics: metrics.calls == 0)
    assert (sample(other).items, metrics.rejected) == (0, 0)


def run(task: Task, fn: Callable[[Context], Any]) -> None:
    with task:
        task.use(fn).run(max_step=1)


def test_a_task_is_seen_from_outside(pair: Pair) -> None:
    seen: list[NodeMetrics] = []
    with use_router(pair[0]):
        task = Task()

    def step(ctx: Context) -> None:
        seen.append(sample(pair[0]))
        ctx.env_step = np.int64(24)
        seen.append(sample(pair[0]))
        ctx.finish = True
        seen.append(sample(pair[0]))

    run(task, step)
    assert [metrics.state for metrics in seen] == ["running", "running", "finishing"]
    assert [metrics.total.env_step for metrics in seen] == [None, 24, 24]
    assert seen[0].total.total_step == 0
    assert seen[0].where.startswith("test_metrics.py:")
    assert seen[0].where.endswith(" sample")  # the innermost function that is the program's
    metrics = sample(pair[0])
    assert (metrics.state, metrics.total.total_step, metrics.total.env_step) == ("no task", 0, 24)


def test_an_env_step_that_is_not_kept_is_the_newest_that_was_seen(pair: Pair) -> None:
    seen: list[Any] = []
    with use_router(pair[0]), Task() as task:

        def step(ctx: Context) -> None:
            seen.append(sample(pair[0]).total.env_step)
            ctx.env_step = ["no number", 2.5, True][ctx.total_step]
            seen.append(sample(pair[0]).total.env_step)

        task.use(step).run(max_step=3)
    assert seen[:5] == [None, None, None, 2.5, 2.5]


def test_waiting_is_distinguished_from_work(pair: Pair) -> None:
    with use_router(pair[0]):
        task = Task()

    def watch() -> NodeMetrics:
        metrics = wait_for(pair[0], lambda metrics: metrics.state == "waiting")
        task.emit("go on", only_local=True)
        return metrics

    def wait_for_it(ctx: Context) -> None:
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            task.wait_for("go on")
            assert watching.result().where.endswith(" wait_for_it")

    run(task, wait_for_it)


def test_a_node_that_has_not_met_all_is_starting(tmp_path: Path) -> None:
    spec = replace(hub_spec(2), listen=None, incarnation=3)
    with closing(NodeRouter(spec, transport=InprocTransport(Network(), 0, peers={1}))) as router:
        metrics = sample(router)
        assert (metrics.state, metrics.restarts, metrics.peers[0].heard_s) == ("starting", 2, None)


def test_a_node_writes_once_a_second_and_last_of_all_how_it_has_ended(pair, tmp_path) -> None:
    first: Any = read_metrics(tmp_path / "metrics-0")
    pair[0].emit("wake up")
    wait_for(pair[0], lambda metrics: metrics.unacknowledged == 0)
    pair[0].close()
    last: Any = read_metrics(tmp_path / "metrics-0")
    assert (last.state, last.total.events_out, last.at > first.at) == ("ended", 1, True)
    pair[1].close(good_bye=False)
    other: Any = read_metrics(tmp_path / "metrics-1")
    assert other.state == "failed"


def test_a_tick_writes_nothing_until_a_second_has_passed(tmp_path: Path, clock: Any) -> None:
    spec = NodeSpec(node_id=0, num_nodes=1, labels=frozenset({"a"}))
    transport = InprocTransport(Network(), 0, peers=(), clock=clock)
    with closing(NodeRouter(spec, transport=transport, clock=clock)) as router:
        spec = replace(spec, directory=str(tmp_path))  # the router's own reporter writes elsewhere
        reporter = Reporter(spec, router.links, router._inbox, router._streams, int, clock)
        times = []
        for _ in range(4):
            reporter.turn()
            record: Any = read_metrics(tmp_path / "metrics-0")
            times.append(record.at)
            clock.advance(0.5)
        reporter.close("ended")
        assert times == [times[0], times[0], times[0] + 1.0, times[0] + 1.0]


def test_a_full_disk_does_not_stop_the_node(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    file = pair[0]._reporter._file
    assert file is not None
    with open("/dev/full", "r+b", buffering=0) as full:
        os.dup2(full.fileno(), file._fd)
    for _ in range(3):
        pair[0]._reporter._due = 0.0
        pair[0]._reporter.turn()
    pair[0].emit("still here")
    assert wait_for(pair[1], lambda metrics: metrics.total.events_in == 1)
    assert caplog.text.count("its metrics cannot be written ([Errno 28] No space left") == 1


def test_a_removed_directory_does_not_stop_the_node(tmp_path, caplog) -> None:
    spec = NodeSpec(node_id=0, num_nodes=1, labels=frozenset(), directory=str(tmp_path / "gone"))
    NodeRouter(spec, transport=InprocTransport(Network(), 0, peers=())).close()
    assert "its metrics cannot be written ([Errno 2]" in caplog.text


def test_the_position_of_a_thread_skips_library_code() -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait()  # in the standard library

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    where, waits = where_is(thread.ident or 0)
    over.set()
    thread.join()
    assert where.startswith("test_metrics.py:")
    assert where.endswith(" work")
    assert not waits  # it is no wait of ours
    assert where_is(-1) == ("", False)


COLLECTED_MEANWHILE = """
import gc, threading
from ding_lite.parallel.observe.metrics_reporter import where_is

class Cycle: pass

gc.set_threshold(1)
for _ in range(1000):
    cycle = Cycle()
    cycle.itself, cycle.local = cycle, threading.local()
    cycle.local.value = 1
    del cycle
    where_is(threading.get_ident())
print(gc.isenabled())
"""


def test_a_garbage_collection_never_blocks_the_look_at_a_thread() -> None:
    command = [sys.executable, "-c", COLLECTED_MEANWHILE]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60.0)
    assert (ended.stdout, ended.stderr) == ("True\n", "")
