"""How nodes find each other through node 0: what it writes down, and who learns what when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import AuthenticationError, ConfigError, DeadlineExceeded, TransportError
from ding_lite.parallel.launch.rendezvous import ANNOUNCE, AddressBook, Presence, checked
from ding_lite.parallel.network.address import LOOPBACK, free_ports
from ding_lite.parallel.network.topology import NodeSpec, edges, fan_out, listeners, neighbours
from ding_lite.parallel.router.node_router import NodeRouter
from tests.parallel.tcp import Ears, hub_spec, leaf_spec

A, B = "tcp://10.0.0.7:50515", "tcp://10.0.0.8:50516"

# -- the book ------------------------------------------------------------------------------


def test_who_asks_hears_of_a_node_as_soon_as_that_one_has_announced_itself() -> None:
    book = AddressBook(3)
    asked = book.announce(2, "", {1: ""})
    assert not asked.done()
    assert book.announce(1, A, {}).result(0) == {}
    assert asked.result(0) == {1: A}
    assert book.announce(2, "", {1: ""}).result(0) == {1: A}


def test_who_knows_an_address_hears_of_the_next_one_only() -> None:
    book = AddressBook(3)
    book.announce(1, A, {})
    asked = book.announce(2, "", {1: A})
    book.announce(1, A, {})
    assert not asked.done()
    book.announce(1, B, {})
    assert asked.result(0) == {1: B}


def test_a_node_that_is_gone_is_told_to_nobody_since_its_port_may_be_another_ones() -> None:
    book = AddressBook(4)
    book.announce(1, A, {})
    book.note(1, is_there=False)
    asked = book.announce(2, "", {1: ""})
    assert not asked.done()
    book.announce(1, B, {})
    assert asked.result(0) == {1: B}


def test_of_two_questions_of_a_node_the_second_one_counts() -> None:
    book = AddressBook(3)
    first, second = (book.announce(2, "", {1: ""}) for _ in range(2))
    book.announce(1, A, {})
    assert (first.done(), second.result(0)) == (False, {1: A})


nodes = st.integers(1, 4)
addresses = st.sampled_from([f"tcp://10.0.0.{k}:50515" for k in range(1, 5)])
moves = st.one_of(
    st.tuples(st.just("comes"), nodes, addresses),
    st.tuples(st.just("goes"), nodes, st.just("")),
)


@given(st.lists(moves, max_size=30))
def test_whoever_goes_on_asking_knows_where_all_that_are_there_are(moved: list[Any]) -> None:
    book = AddressBook(6)
    there: dict[int, str] = {}
    known = dict.fromkeys(range(1, 5), "")
    asked: list[Future[dict[int, str]]] = [book.announce(5, "", known)]
    for what, node, address in moved:
        if what == "comes":
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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([A], "a dict was expected"),
        ({0: A}, "a number from 1 to 2 was expected"),
        ({3: A}, "a number from 1 to 2 was expected"),
        ({True: A}, "a number from 1 to 2"),
        ({"1": A}, "a number from 1 to 2"),
        ({1: 50515}, "as where node 1 listens"),
        ({1: "ipc:///run/x"}, "as where node 1 listens"),
        ({1: "tcp://10.0.0.7:0"}, "as where node 1 listens"),
        ({1: "tcp://0.0.0.0:7"}, "as where node 1 listens"),
        ({1: f"tcp://{'x' * 300}:7"}, "as where node 1 listens"),
        ({1: "10.0.0.7:50515"}, "is no address"),
        ({1: "tcp://a b; rm:x"}, "is no tcp address"),
    ],
)
def test_what_is_no_place_is_neither_written_down_nor_believed(said: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        checked(said, 3)
    with pytest.raises(ConfigError, match=expected):
        AddressBook(3).announce(2, "", said)


# -- nodes that only know node 0 -----------------------------------------------------------

DEEP = [(0, 1), (1, 2), (2, 3), (1, 3)]
"""Two of the nodes are no peers of node 0."""


class Town:
    """The nodes of a job on this machine, each of which knows where node 0 is and no more."""

    def __init__(self, topology: Any, num_nodes: int) -> None:
        self.edges, self.fan_out = edges(topology, num_nodes), fan_out(topology)
        self.num_nodes = num_nodes
        self.presences: dict[int, Presence] = {}
        [port] = free_ports(LOOPBACK, 1)
        self.desk = f"tcp://{LOOPBACK}:{port}"
        self._incarnation = 2**40

    def spec(self, node: int) -> NodeSpec:
        self._incarnation += 1
        near = neighbours(self.edges, node)
        is_heard = node in listeners(self.edges)
        return NodeSpec(
            node_id=node,
            num_nodes=self.num_nodes,
            labels=frozenset({f"node.{node}"}),
            incarnation=self._incarnation,
            listen=self.desk if node == 0 else f"tcp://{LOOPBACK}:0" if is_heard else None,
            dials={peer: self.desk if peer == 0 else "" for peer in sorted(near) if peer < node},
            desk=self.desk,
            peers=near,
            startup_timeout=10.0,
            edges=self.edges,
            fan_out=self.fan_out,
        )

    def enter(self, *nodes: int) -> list[NodeRouter]:
        """Let nodes take their places, without waiting for the others."""
        for node in nodes:
            self.presences[node] = Presence(self.spec(node))
        return [self.presences[node].router for node in nodes]

    def meet(self) -> None:
        together(presence.wait_ready for presence in self.presences.values())

    def leave(self, *nodes: int, good_bye: bool = True) -> None:
        gone = [self.presences.pop(node) for node in nodes]
        together(partial(presence.close, good_bye=good_bye) for presence in gone)


def together(functions: Iterable[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=fn) for fn in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Town]]:
    """Return what makes a town; its nodes leave with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    towns: list[Town] = []

    def found(topology: Any, num_nodes: int) -> Town:
        towns.append(Town(topology, num_nodes))
        return towns[-1]

    yield found
    for town in towns:
        town.leave(*town.presences)


@pytest.mark.parametrize("topology", ["mesh", "star", "tree:1", "tree:2", DEEP, [(1, 2), (2, 3)]])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_all_find_their_peers_in_whatever_order_they_come(
    town: Any, topology: Any, order: tuple[int, ...]
) -> None:
    here = town(topology, 4)
    here.enter(*order)
    here.meet()
    for node, presence in here.presences.items():
        assert set(presence.router.peers) >= neighbours(here.edges, node)


@pytest.mark.parametrize(
    ("topology", "good_bye"),
    # A hub of a tree says good-bye when all below it have gone.
    [("mesh", True), ("mesh", False), (DEEP, True), (DEEP, False), ("tree:2", False)],
)
def test_a_node_that_comes_back_elsewhere_is_followed(
    town: Any, topology: Any, good_bye: bool
) -> None:
    here = town(topology, 4)
    routers = here.enter(0, 1, 2, 3)
    here.meet()
    ears = {node: Ears(routers[node]) for node in (0, 3)}
    before = routers[1].address
    here.leave(1, good_bye=good_bye)
    [again] = here.enter(1)
    here.presences[1].wait_ready()
    assert again.address != before
    assert set(again.peers) >= neighbours(here.edges, 1)
    again.emit("here", "again")
    for node, ear in ears.items():
        ear.wait(partial(has_heard, ear))
        assert 1 in here.presences[node].router.peers


def has_heard(ears: Ears) -> bool:
    return (1, "here", ("again",)) in ears.events


@pytest.mark.parametrize("topology", ["mesh", DEEP])
def test_node_0_may_come_back_too_and_hears_of_all_again(town: Any, topology: Any) -> None:
    here = town(topology, 4)
    here.enter(0, 1, 2, 3)
    here.meet()
    here.leave(0, good_bye=False)
    here.enter(0)
    here.presences[0].wait_ready()
    here.leave(2, good_bye=False)
    here.enter(2)
    here.presences[2].wait_ready()
    assert set(here.presences[2].router.peers) == neighbours(here.edges, 2)


@pytest.mark.parametrize(("topology", "who"), [("mesh", 2), (DEEP, 1), (DEEP, 3), ("tree:1", 3)])
def test_a_second_node_of_one_number_is_refused_with_the_reason(
    town: Any, topology: Any, who: int
) -> None:
    here = town(topology, 4)
    here.enter(0, 1, 2, 3)
    here.meet()
    double = Presence(here.spec(who))
    with pytest.raises(AuthenticationError, match=f"there is a node {who} already"):
        double.wait_ready()
    double.close(good_bye=False)
    assert all(
        set(presence.router.peers) >= neighbours(here.edges, node)
        for node, presence in here.presences.items()
    )


def test_what_one_who_only_asks_says_is_no_event_of_the_job(town: Any) -> None:
    here = town(DEEP, 4)
    hub, one, _, three = here.enter(0, 1, 2, 3)
    here.meet()
    ears = Ears(hub)
    three.emit("not", "for node 0")
    one.emit("for", "node 0")
    ears.wait(lambda: (1, "for", ("node 0",)) in ears.events)
    assert [event for _, event, _ in ears.events] == ["for"]
    assert hub.peers == (1,)


def test_an_address_that_is_the_only_peers_and_not_node_0s_is_dialled_as_such(
    town: Any,
) -> None:
    here = town([(0, 1), (1, 2)], 3)
    _, one = here.enter(0, 1)
    here.presences[2] = Presence(replace(here.spec(2), desk=one.address))
    here.meet()
    assert here.presences[2].router.peers == (1,)


def test_a_node_0_whose_port_is_taken_leaves_nothing_behind(town: Any) -> None:
    here = town(DEEP, 4)
    here.enter(0)
    with pytest.raises(TransportError, match="cannot listen on"):
        here.enter(0)


def test_an_answer_that_cannot_be_is_told_of_and_not_believed(
    town: Any, caplog: pytest.LogCaptureFixture
) -> None:
    here = town("mesh", 3)
    answers = {ANNOUNCE: lambda *_: {1: "tcp://0.0.0.0:7"}}
    hub = NodeRouter(here.spec(0), services=answers)
    here.presences[2] = Presence(replace(here.spec(2), startup_timeout=1.0))
    with pytest.raises(DeadlineExceeded, match="for node 1 of 3"):
        here.presences[2].wait_ready()
    hub.close()
    assert "node 2 does not learn from node 0 where its peers are: 'tcp://0.0" in caplog.text


def test_a_node_that_claims_to_be_elsewhere_than_it_can_be_costs_only_itself(town: Any) -> None:
    here = town("star", 3)
    here.presences[0] = Presence(replace(hub_spec(listen=here.desk), desk=here.desk))
    liar = NodeRouter(leaf_spec(1, here.desk))
    liar.wait_ready(10.0)
    with pytest.raises(Exception, match="a dict was expected"):
        liar.call(0, "ding_lite.announce", "tcp://10.0.0.7:50515", "everybody")
    assert liar.call(0, "ding_lite.announce", "tcp://10.0.0.7:50515", {}) == {}
    liar.close()
