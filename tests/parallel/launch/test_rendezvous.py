"""Rendezvous: the address book of node 0, and nodes that obtain addresses from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ding_lite.clock import Deadline
from ding_lite.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineExceeded,
    RemoteError,
    TransportError,
)
from ding_lite.parallel.launch.membership import Roster
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.launch.rendezvous import ANNOUNCE, AddressBook, RendezvousNode, checked
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.network.address import LOOPBACK, free_ports
from ding_lite.parallel.network.topology import NodeSpec, listeners, neighbours
from ding_lite.parallel.router.node_router import NodeRouter
from tests.parallel.tcp import Recorder, hub_spec, leaf_spec, wait_until
from tests.threads import together

A, B = "tcp://10.0.0.7:50515", "tcp://10.0.0.8:50516"


def test_a_request_is_answered_when_the_node_announces_itself() -> None:
    book = AddressBook(3)
    asked = book.announce(2, "", {1: ""})
    assert not asked.done()
    assert book.announce(1, A, {}).result(0) == {}
    assert asked.result(0) == {1: A}
    assert book.announce(2, "", {1: ""}).result(0) == {1: A}


def test_a_second_request_of_a_node_replaces_the_first() -> None:
    book = AddressBook(3)
    first, second = (book.announce(2, "", {1: ""}) for _ in range(2))
    book.announce(1, A, {})
    assert (first.done(), second.result(0)) == (False, {1: A})


def test_node_0_stays_until_all_nodes_have_the_addresses_that_they_need() -> None:
    book = AddressBook(4, asking={1, 2, 3})
    book.announce(1, A, {})
    book.announce(2, B, {1: ""})
    waits = Thread(target=book.wait_served, args=[Deadline.after(60.0)], daemon=True)
    waits.start()
    book.announce(2, B, {1: A})
    assert waits.is_alive()
    book.note(3, is_there=False)
    waits.join(10.0)
    assert not waits.is_alive()


nodes = st.integers(1, 4)
addresses = st.sampled_from(["", *(f"tcp://10.0.0.{k}:50515" for k in range(1, 5))])


@given(st.lists(st.tuples(nodes, addresses), max_size=30))
def test_repeated_requests_converge_to_all_current_addresses(moved: list[Any]) -> None:
    """A node without an address has gone."""
    book = AddressBook(6)
    there: dict[int, str] = {}
    known = dict.fromkeys(range(1, 5), "")
    asked: list[Future[dict[int, str]]] = [book.announce(5, "", known)]
    for node, address in moved:
        if address:
            there[node] = address
            book.announce(node, address, {})
        else:
            there.pop(node, None)
            book.note(node, is_there=False)
        while asked[-1].done():
            news = asked[-1].result()
            assert news
            assert all(known[k] != at for k, at in news.items())  # so it comes to an end
            known |= news
            asked.append(book.announce(5, "", known))
        assert {node: known[node] for node in there} == there


WRONG = 50515, "ipc:///run/x", "tcp://10.0.0.7:0", "tcp://0.0.0.0:7", f"tcp://{'x' * 300}:7"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ([A], "a dict was expected"),
        *(({node: A}, "a number from 1 to 2 was expected") for node in (0, 3, True, "1")),
        *(({1: address}, "as the address of node 1") for address in WRONG),
        *(({1: text}, "one such as tcp") for text in ("10.0.0.7:50515", "tcp://a b; rm:x")),
    ],
)
def test_malformed_addresses_are_refused_on_both_sides(message: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        checked(message, 3)
    with pytest.raises(ConfigError, match=expected):
        AddressBook(3).announce(2, "", message)


DEEP = [(0, 1), (1, 2), (2, 3), (1, 3)]
"""Edges with two nodes that are no peers of node 0."""


class Nodes:
    """The nodes of a job on this machine that know only the address of node 0."""

    def __init__(self, topology: Any, num_nodes: int, **more: Any) -> None:
        more |= {"protocol": "tcp", "startup_timeout": 10.0}
        self.plan = JobPlan(num_nodes=num_nodes, topology=topology, **more)
        self.edges = self.plan.edges
        self.nodes: dict[int, RendezvousNode] = {}
        [port] = free_ports(LOOPBACK, 1)
        self.rendezvous = f"tcp://{LOOPBACK}:{port}"
        self._incarnation = 2**40

    def spec(self, node: int) -> NodeSpec:
        self._incarnation += 1
        is_heard = node in listeners(self.edges)
        return self.plan.spec(
            node,
            frozenset({f"node.{node}"}),
            lambda peer: self.rendezvous if peer == 0 else "",
            incarnation=self._incarnation,
            listen=self.rendezvous if node == 0 else f"tcp://{LOOPBACK}:0" if is_heard else None,
            rendezvous=self.rendezvous,
            growth=self.plan.growth(first_id=1),
        )

    def enter(self, *nodes: int) -> list[NodeRouter]:
        """Create nodes without waiting for the others."""
        for node in nodes:
            self.nodes[node] = RendezvousNode(self.spec(node))
        return [self.nodes[node].router for node in nodes]

    def meet(self) -> None:
        together(*(node.wait_ready for node in self.nodes.values()))

    def leave(self, *nodes: int, good_bye: bool = True) -> None:
        gone = [self.nodes.pop(node) for node in nodes]
        together(*(partial(node.router.close, good_bye=good_bye) for node in gone))


@pytest.fixture
def make_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Return a factory of jobs that are closed after the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    jobs: list[Nodes] = []

    def make(topology: Any, num_nodes: int, **more: Any) -> Nodes:
        jobs.append(Nodes(topology, num_nodes, **more))
        return jobs[-1]

    yield make
    for job in jobs:
        if job.nodes:
            job.leave(*job.nodes)


@pytest.mark.parametrize(
    ("topology", "order"),
    [
        *((topology, (3, 2, 1, 0)) for topology in ("mesh", "star", "tree:1", DEEP)),
        *((topology, (2, 0, 3, 1)) for topology in ("mesh", "tree:2", [(1, 2), (2, 3)])),
    ],
)
def test_all_nodes_connect_in_any_start_order(make_nodes, topology, order) -> None:
    here = make_nodes(topology, 4)
    here.enter(*order)
    here.meet()
    for node, presence in here.nodes.items():
        assert set(presence.router.peers) >= neighbours(here.edges, node)


@pytest.mark.parametrize(
    ("topology", "good_bye"),
    # A hub of a tree says good-bye when all below it have gone.
    [("mesh", False), (DEEP, True), ("tree:2", False)],
)
def test_a_node_that_restarts_at_another_address_is_dialled_there(
    make_nodes: Any, topology: Any, good_bye: bool
) -> None:
    here = make_nodes(topology, 4)
    routers = here.enter(0, 1, 2, 3)
    here.meet()
    recorder = {node: Recorder(routers[node]) for node in (0, 3)}
    before = routers[1].address
    here.leave(1, good_bye=good_bye)
    [again] = here.enter(1)
    here.nodes[1].wait_ready()
    assert again.address != before
    assert set(again.peers) >= neighbours(here.edges, 1)
    again.emit("here", "again")
    for node, ear in recorder.items():
        ear.wait(lambda ear=ear: ear.of(1, "here") == ["again"])  # type: ignore[misc]
        assert 1 in here.nodes[node].router.peers


def test_a_node_of_an_elastic_mesh_is_dialled_once_though_the_roster_has_its_address_too(
    make_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, roster = _calls(monkeypatch, Links, "redial"), _calls(monkeypatch, Roster, "_learn")
    here = make_nodes("mesh", 3, elastic=True)
    here.enter(0, 1, 2)
    here.meet()
    address = here.nodes[1].router.address
    assert address is not None
    wait_until(lambda: any(node == 1 and at == address for node, _, at in roster))
    assert links == [(1, address)]


def _calls(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> list[Any]:
    """Return the arguments of the calls of a method that have ended."""
    calls, method = list[Any](), getattr(of, name)

    def call(self: Any, *args: Any) -> None:
        method(self, *args)
        calls.append(args)

    monkeypatch.setattr(of, name, call)
    return calls


@pytest.mark.parametrize("topology", ["mesh", DEEP])
def test_a_restarted_node_0_receives_all_announcements_again(make_nodes, topology: Any) -> None:
    here = make_nodes(topology, 4)
    here.enter(0, 1, 2, 3)
    here.meet()
    here.leave(0, good_bye=False)
    here.enter(0)
    here.nodes[0].wait_ready()
    here.leave(2, good_bye=False)
    here.enter(2)
    here.nodes[2].wait_ready()
    assert set(here.nodes[2].router.peers) == neighbours(here.edges, 2)


@pytest.mark.parametrize(("topology", "who"), [("mesh", 2), (DEEP, 3)])
def test_a_duplicate_node_id_is_refused_with_the_reason(make_nodes, topology, who) -> None:
    here = make_nodes(topology, 4)
    here.enter(0, 1, 2, 3)
    here.meet()
    double = RendezvousNode(here.spec(who))
    with pytest.raises(AuthenticationError, match=f"there is a node {who} already"):
        double.wait_ready()
    double.router.close(good_bye=False)
    for node, presence in here.nodes.items():
        assert set(presence.router.peers) >= neighbours(here.edges, node)


def test_events_on_a_rendezvous_link_are_not_delivered(make_nodes: Any) -> None:
    here = make_nodes(DEEP, 4)
    hub, one, _, three = here.enter(0, 1, 2, 3)
    here.meet()
    recorder = Recorder(hub)
    three.emit("not", "for node 0")
    one.emit("for", "node 0")
    recorder.wait(lambda: (1, "for", ("node 0",)) in recorder.events)
    assert [event for _, event, _ in recorder.events] == ["for"]
    assert hub.peers == (1,)


def test_a_node_0_with_a_taken_port_releases_all_resources(make_nodes: Any) -> None:
    here = make_nodes(DEEP, 4)
    here.enter(0)
    with pytest.raises(TransportError, match="cannot listen on"):
        here.enter(0)


def test_a_malformed_answer_of_node_0_is_logged_and_ignored(make_nodes, caplog) -> None:
    here = make_nodes("mesh", 3)
    answers = {ANNOUNCE: lambda *_: {1: "tcp://0.0.0.0:7"}}
    hub = NodeRouter(here.spec(0), services=answers)
    here.nodes[2] = RendezvousNode(replace(here.spec(2), startup_timeout=0.5))
    with pytest.raises(DeadlineExceeded, match="for node 1 of 3"):
        here.nodes[2].wait_ready()
    hub.close()
    assert "node 2 cannot get the addresses of its peers from node 0: 'tcp://0.0" in caplog.text


def test_a_malformed_announcement_fails_only_its_sender(make_nodes: Any) -> None:
    here = make_nodes("star", 3)
    here.nodes[0] = RendezvousNode(hub_spec(listen=here.rendezvous, rendezvous=here.rendezvous))
    liar = NodeRouter(leaf_spec(1, here.rendezvous))
    liar.wait_ready(10.0)
    with pytest.raises(RemoteError, match="a dict was expected"):
        liar.call(0, ANNOUNCE, A, "everybody")
    assert liar.call(0, ANNOUNCE, A, {}) == {}
    liar.close()
