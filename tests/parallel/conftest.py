"""Fixtures for tests of processes and sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from ding_lite.parallel.link import drain
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.in_process import InprocTransport
from ding_lite.testing import Cluster
from tests.parallel.tcp import Job, Recorder, hub_spec, ipc_specs, leaf_spec

if TYPE_CHECKING:
    from ding_lite.parallel.transport.base import Link
    from tests.parallel.contract import End

pytest.register_assert_rewrite("tests.parallel.contract")


@pytest.fixture(scope="session", autouse=True)
def _zero_copy() -> None:
    """Start the permanent thread that pyzmq starts at its first zero-copy message.

    Otherwise its descriptors would count as the leak of whatever test sends the first one.
    """
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://zero-copy")
        two.connect("inproc://zero-copy")
        one.send(bytes(zmq.COPY_THRESHOLD + 1), copy=False)
        two.recv()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return a star of three nodes, of which node 1 answers calls; no node waits for a lost one."""
    monkeypatch.setattr(drain, "FAREWELL_TIMEOUT_S", 0.0)
    with Cluster(3, "star") as cluster:
        cluster.routers[1].register("double", lambda number: 2 * number)
        yield cluster


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[NodeRouter]]]:
    """Return a function that starts the routers of a job; they are closed after the test."""
    with ExitStack() as stack:

        def start(num_nodes: int, topology: str = "mesh") -> list[NodeRouter]:
            specs = ipc_specs(tmp_path, num_nodes, topology)
            routers = [NodeRouter(spec) for spec in specs]
            for router in routers:
                stack.callback(router.close, good_bye=False)
            for router in routers:
                router.wait_ready(10.0)
            return routers

        yield start


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Run nodes 0 and 1 of three with a key; node 2 has not come."""
    key = str(make_key(tmp_path / "job.key"))
    with ExitStack() as stack:
        hub = stack.enter_context(closing(NodeRouter(hub_spec(key_file=key))))
        leaf = stack.enter_context(closing(NodeRouter(leaf_spec(1, hub.address, key_file=key))))
        leaf.wait_ready(5.0)
        hub.register("caught up", lambda: None)
        yield Job(hub, leaf, Recorder(hub), key)


@pytest.fixture
def rogue(cluster: Cluster) -> Iterator[tuple[End, Link]]:
    """Take the place of node 2."""
    from tests.parallel.contract import End  # once its asserts are rewritten

    cluster.network.remove(2)
    with closing(InprocTransport(cluster.network, 2)) as transport:
        transport.dial(0, "inproc://0")
        end = End(transport).start()
        end.wait(lambda: bool(end.ups))
        yield end, end.ups[0][0]
