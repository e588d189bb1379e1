"""Nodes on several machines, each with a network of its own, over wires that are bad or cut."""

from __future__ import annotations

import select
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ding_lite.parallel.network.security import make_key
from tests.procs.conftest import Fork
from tests.procs.network import Machine, Network, why_not
from tests.procs.programs import Forked

ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
Start = Callable[[Fork, str], list[Forked]]
HUB = {"ADDRESS": ADDRESSES[0], "PORTS": "50515"}


@pytest.fixture
def network() -> Iterator[Network]:
    """Return a network without machines."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with Network() as network:
        yield network


@pytest.fixture
def machines(network: Network) -> list[Machine]:
    """Return three machines of the network."""
    return [network.machine(address) for address in ADDRESSES]


@pytest.fixture
def start(folder: Path, machines: list[Machine]) -> Iterator[Start]:
    """Return what forks a program as a job of three nodes, one on each machine."""
    make_key(folder / "job.key")
    with ExitStack() as stack:

        def start(fork: Fork, name: str) -> list[Forked]:
            each = enumerate(machines)
            nodes = [fork(name, variables=place(k, folder), machine=m.pid) for k, m in each]
            return [stack.enter_context(node) for node in nodes]

        yield start


def place(number: int, folder: Path) -> dict[str, str]:
    """Return the variables of a node."""
    where = {"ATTACH_TO": f"tcp://{ADDRESSES[0]}:50515"} if number else HUB
    named = {"NUM_NODES": "3", "NODE_ID": str(number), "KEY_FILE": str(folder / "job.key"), **where}
    return {f"DING_LITE_{name}": text for name, text in named.items()}


def test_a_star_outlives_loss_delay_a_cut_of_six_seconds_and_a_move(
    folder: Path, network: Network, machines: list[Machine], fork: Fork, start: Start
) -> None:
    hub, *others = start(fork, "hosts_talk")
    hub.line("under way")

    network.delay_s, network.loss = 0.05, 0.02
    with network.without(ADDRESSES[2]):
        hub.line("fate lost 2")
        select.select([], [], [], 3.0)  # it was silent for three seconds by then
    hub.line("fate joined 2")

    network.move(machines[1], ADDRESSES[1], "10.77.0.9")
    hub.line("fate lost 1")
    hub.line("fate joined 1")

    (folder / "go").touch()
    results = [literal_eval(shell.end()[1].splitlines()[-1]) for shell in (hub, *others)]
    assert results == [[{1: (True, True), 2: (True, True)}], [True], [True]], hub.seen


def test_learners_on_two_of_three_machines_average_their_gradients(
    fork_learner: Fork, start: Start
) -> None:
    ended = [node.end() for node in start(fork_learner, "hosts_learn")]
    assert [code for code, _ in ended] == [0, 0, 0], ended
    assert [output.splitlines()[-1] for _, output in ended] == ["[[0.5]]", "[[0.5]]", "[None]"]


def test_processes_of_accelerate_on_two_machines_tell_each_other_things(
    fork_learner: Fork, machines: list[Machine]
) -> None:
    source = """
from ding_lite.distributed import Processes
processes = Processes(timeout=60.0)
say("of all", processes.gather("ranks", [processes.rank]).tolist())
"""
    known = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}  # as torchrun sets them
    known |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "50600"}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                fork_learner(source=source, variables={**known, "RANK": str(k)}, machine=each.pid)
            )
            for k, each in enumerate(machines[:2])
        ]
        said = [each.result().splitlines()[-1] for each in processes]
    assert said == ["of all [[0.0], [1.0]]"] * 2
