"""Connect a node, run it, and close it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ding_lite.distributed import ModelServer, World
from ding_lite.errors import AuthenticationError, ConfigError
from ding_lite.parallel import Parallel
from ding_lite.parallel.launch.connect import connected, probe
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import LOOPBACK, free_ports
from ding_lite.parallel.network.security import make_key
from ding_lite.parallel.network.topology import NodeSpec
from tests.parallel.launch.test_place import spec_of
from tests.threads import together


def on_nodes(specs: list[NodeSpec], main: Callable[[World], object]) -> list[Any]:
    """Run `main(world)` on each node in a thread; return results and exceptions."""
    all_done = threading.Barrier(len(specs))

    def run(spec: NodeSpec) -> object:
        with connected(spec):
            try:
                return main(World.current())
            except ConfigError as error:
                return str(error)
            finally:
                all_done.wait(15.0)

    return together(*(partial(run, spec) for spec in specs))


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Return free ports, and give the nodes a key of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return free_ports(LOOPBACK, 3)


def job(num_nodes: int, topology: str, ports: list[int], **plan: Any) -> list[NodeSpec]:
    places = [f"tcp://{LOOPBACK}:{port}" for port in ports]

    def spec(node: int) -> NodeSpec:
        dials = tuple(places[: min(node, 1 if topology == "star" else node)])
        more = {"topology": topology, "environ": {"ports": (ports[node],)}, **plan}
        return spec_of(node, num_nodes, dials=dials, **more)

    return [spec(node) for node in range(num_nodes)]


@pytest.mark.parametrize(("num_nodes", "topology"), [(2, "star"), (2, "mesh"), (3, "mesh")])
def test_labels_of_peers_arrive_in_the_handshake(ports, num_nodes: int, topology: str) -> None:
    specs = job(num_nodes, topology, ports, roles=["learner", "player", "player"][:num_nodes])

    def main(world: World) -> object:
        everybody = world.group(["learner", "player"])
        return world.num_nodes, everybody.members, everybody.all_gather(world.node_id)

    nodes = list(range(num_nodes))
    assert on_nodes(specs, main) == [(num_nodes, tuple(nodes), nodes)] * num_nodes


def test_threads_that_answer_wait_half_a_millisecond_for_a_busy_main() -> None:
    before = sys.getswitchinterval()
    with connected(NodeSpec(node_id=0, num_nodes=1, labels=frozenset())):
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == before


def test_a_leaf_of_a_star_fetches_weights_and_names_the_nodes_with_unknown_labels(ports) -> None:
    specs = job(3, "star", ports)

    def main(world: World) -> object:
        assert world.group(range(world.num_nodes)).all_gather(world.node_id) == [0, 1, 2]
        server = ModelServer(world)
        if world.node_id == 0:
            server.publish({"w": torch.ones(2)})
        model = server.wait(timeout=10.0)
        assert model
        assert model.version == 1
        return world.group("node.*").members

    hub, leaf, other = on_nodes(specs, main)
    assert hub == (0, 1, 2)
    assert leaf.startswith("Node 1 does not know the labels of the nodes [2]: it is not")
    assert other.startswith("Node 2 does not know the labels of the nodes [1]")


def test_a_leaf_of_a_star_knows_the_roles_of_the_call_and_more_labels_of_peers(ports) -> None:
    roles = ["server", "agent", "agent"]
    hub, *leaves = job(3, "star", ports, roles=roles)
    hub = replace(hub, labels=hub.labels | {"gpu"}, world=())  # as by DING_LITE_LABELS

    def main(world: World) -> object:
        world.group(range(world.num_nodes)).barrier()
        return [world.group(pattern).members for pattern in ("server", "agent", "gpu")]

    assert on_nodes([hub, *leaves], main) == [[(0,), (1, 2), (0,)]] * 3


def test_a_key_file_is_read_before_anything_is_bound(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Parallel.runner(2, protocol="tcp", key_file=tmp_path / "missing")
    key = str(make_key(tmp_path / "key"))
    JobPlan(num_nodes=2, protocol="tcp", address="0.0.0.0", key_file=key)


def test_the_error_reports_what_listens_at_the_address_of_a_missing_peer(ports: list[int]) -> None:
    [_, alone] = job(2, "star", ports)
    impatient = replace(alone, startup_timeout=0.1)
    message = r"for node 0 .* Nothing can be reached at tcp://127.*\(Connection refused\)\. Look"
    with pytest.raises(TimeoutError, match=message), connected(impatient, advice="Look elsewhere."):
        raise AssertionError("nobody is there")


def test_a_program_that_a_node_starts_is_told_of_the_variables_of_the_launcher(ports) -> None:
    hub, leaf = job(2, "star", ports)

    def start_again() -> list[str]:
        with (
            pytest.raises(AuthenticationError, match="there is a node 1 already") as refused,
            connected(leaf, advice="DING_LITE_ENGINE=local starts nodes."),
        ):
            raise AssertionError("it has no place")
        return refused.value.__notes__

    [_, [note]] = on_nodes([hub, leaf], lambda world: start_again() if world.node_id else [])
    assert note.startswith("DING_LITE_ENGINE=local starts nodes. Has a node started this program?")


def test_the_result_of_a_test_connection_is_a_sentence(ports: list[int]) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        message = probe(f"tcp://{LOOPBACK}:{server.getsockname()[1]}")
    assert message.startswith("Something listens on tcp://127.0.0.1:")
    assert "(Connection refused)" in probe(f"tcp://{LOOPBACK}:{ports[0]}")
    no_name = "x" * 64
    assert probe(f"tcp://{no_name}:1").startswith(f"The host `{no_name}` cannot be looked up")
