"""Delivery guarantees of whole clusters in one process, under random network faults.

CHAOS_SEEDS=200 in the environment tries more; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ding_lite.errors import PeerLost
from ding_lite.parallel.link import drain
from ding_lite.parallel.link.session import SILENCE_S, Session
from ding_lite.parallel.network.topology import Edge, Topology, edges
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.base import Lane
from ding_lite.parallel.transport.in_process import Network
from ding_lite.parallel.wire.messages import EventArrived, Identity, Kind, encode_event
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster, ManualClock
from tests.parallel.tcp import wait_until

NUM_SEEDS = int(os.environ.get("CHAOS_SEEDS", "2"))
SEEDS = pytest.mark.parametrize(
    "seed",
    [
        *range(NUM_SEEDS),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(NUM_SEEDS, 10)),
    ],
)
RING = [(0, 1), (1, 2), (2, 3), (0, 3)]
TOPOLOGIES: dict[str, tuple[int, Topology]] = {
    "pair": (2, "mesh"),
    "star": (4, "star"),
    "mesh": (5, "mesh"),
    "ring": (4, RING),
    "tree": (7, "tree:2"),
    "eight": (8, "mesh"),
}
Sent = tuple[int, int]
"""The incarnation of the sender, and the number of the message."""


class Recorder:
    def __init__(self, router: NodeRouter) -> None:
        self.router = router
        self.events: dict[int, list[Sent]] = defaultdict(list)
        self.ctx: dict[tuple[int, str], list[Sent]] = defaultdict(list)
        self.presence: dict[int, list[str]] = defaultdict(list)
        self.finished_by: set[int] = set()
        self._changed = threading.Condition()
        router.join(self)

    def receive_event(self, node_id: int, event: str, args: Any, kwargs: Any) -> None:
        with self._changed:
            if event == FINISH:
                self.finished_by.add(node_id)
            elif event in ("node_lost", "node_joined"):
                self.presence[node_id].append(event)
            else:
                self.events[node_id].append((args[0], args[1]))
            self._changed.notify_all()

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        with self._changed:
            for key, value in values.items():
                incarnation, number = (int(part) for part in np.asarray(value).flat[:2])
                assert (np.asarray(value).reshape(-1, 2) == (incarnation, number)).all()
                self.ctx[node_id, key].append((incarnation, number))
            self._changed.notify_all()

    def wait(self, ready: Any, what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(ready, 15.0), what


def make_trouble(network: Network, links: Sequence[Edge], rng: random.Random) -> None:
    one, other = rng.sample(rng.choice(links), 2)
    lanes = rng.choice([(), (Lane.CONTROL,), (Lane.BULK,)])
    what = rng.randrange(7)
    if what == 0:
        network.cut(one, other)
    elif what <= 2:
        network.mend(one, other)
    elif what == 3:
        network.cut(one, other)
        network.mend(one, other)
    elif what == 4:
        network.hold(one, other, *lanes)
    else:
        network.release(one, other, *lanes)


class Story:
    """A cluster, with all messages sent and received by each incarnation."""

    def __init__(self, cluster: Cluster, links: Sequence[Edge], clock: ManualClock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.edges = links
        self.incarnations = [[self._begin(router)] for router in cluster.routers]
        self.emitted: dict[tuple[int, int], int] = Counter()
        self.published: dict[tuple[int, int, str], int] = {}
        self.num_published = 0
        self.calls: list[tuple[int, Future[Any]]] = []
        self.handled: Counter[int] = Counter()

    def _begin(self, router: NodeRouter) -> Recorder:
        router.register("double", self._double)
        return Recorder(router)

    def _double(self, number: int) -> int:
        self.handled[number] += 1
        return 2 * number

    def incarnation(self, node: int) -> int:
        return len(self.incarnations[node])

    def emit(self, node: int, rng: random.Random) -> None:
        for _ in range(rng.choice([1, 1, 5, 200])):
            number = self.emitted[node, self.incarnation(node)]
            self.emitted[node, self.incarnation(node)] += 1
            extra = [np.zeros(20_000)] if rng.random() < 0.02 else []
            self.cluster.routers[node].emit("text", self.incarnation(node), number, *extra)

    def publish(self, node: int, rng: random.Random) -> None:
        key = f"key{rng.randrange(3)}"
        self.num_published += 1
        number = [self.incarnation(node), self.num_published]
        value = np.array([number] * rng.choice([1, 10, 30_000]))
        self.cluster.routers[node].publish_ctx({key: value})
        self.published[node, self.incarnation(node), key] = self.num_published

    def ask(self, node: int, rng: random.Random) -> None:
        peer = rng.choice([sum(edge) - node for edge in self.edges if node in edge])
        number = len(self.calls)
        self.calls.append((number, self.cluster.routers[node].ask(peer, "double", number)))

    def restart(self, node: int) -> None:
        router = self.cluster.restart(node)
        self.incarnations[node].append(self._begin(router))

    def act(self, rng: random.Random) -> None:
        node = rng.randrange(len(self.incarnations))
        what = rng.random()
        if what < 0.3:
            self.emit(node, rng)
        elif what < 0.5:
            self.publish(node, rng)
        elif what < 0.6:
            self.ask(node, rng)
        elif what < 0.93:
            make_trouble(self.cluster.network, self.edges, rng)
        elif what < 0.95:
            one, other = rng.choice(self.edges)  # the higher one dials
            self.cluster.routers[other].links.redial(one, self.cluster.routers[one].address or "")
        elif what < 0.98:
            self.clock.advance(rng.choice([0.5, 1.0, 1.0 + SILENCE_S]))
        elif max(map(len, self.incarnations)) < 4:
            self.restart(node)

    def settle(self) -> None:
        """Remove all faults, and wait until all expected messages have arrived."""
        self.cluster.network.heal()
        for one, other in self.edges:
            for sender, receiver in ((one, other), (other, one)):
                self._wait_for_all(sender, receiver)
        for _, answer in self.calls:
            answer.exception(5.0)

    def _wait_for_all(self, sender: int, receiver: int) -> None:
        recorder, incarnation = self.incarnations[receiver][-1], self.incarnation(sender)
        story = f"of node {sender} at node {receiver}"
        wait_until(lambda: sender in recorder.router.peers, f"no link {story}")
        if emitted := self.emitted[sender, incarnation]:
            last, everywhere = (incarnation, emitted - 1), self.incarnations[receiver]
            recorder.wait(
                lambda: any(last in each.events[sender][-1:] for each in everywhere),
                f"the last event {story}",
            )
        for (node, of_incarnation, key), newest in self.published.items():
            if (node, of_incarnation) == (sender, incarnation):
                got, sent = recorder.ctx[sender, key], (incarnation, newest)
                recorder.wait(lambda got=got, sent=sent: sent in got, f"{key} {story}")

    def check(self) -> None:
        for one, other in self.edges:
            for sender, receiver in ((one, other), (other, one)):
                self._check_events(sender, receiver)
                self._check_ctx(sender, receiver)
                self._check_presence(sender, receiver)
        for number, answer in self.calls:
            error = answer.exception()
            assert isinstance(error, PeerLost) or answer.result() == 2 * number
        assert set(self.handled.values()) <= {1}
        # What comes of an earlier link is dropped and counted as well, and is no fault.
        assert not any(router.links.dropped._faults for router in self.cluster.routers)

    def _check_events(self, sender: int, receiver: int) -> None:
        """Check that each incarnation of the receiver has a contiguous run of a sender's events."""
        seen_to: dict[int, int] = Counter()
        for recorder in self.incarnations[receiver]:
            events = recorder.events[sender]
            assert events == sorted(set(events)), f"node {receiver}, from node {sender}: {events}"
            for incarnation in {incarnation for incarnation, _ in events}:
                numbers = [number for of, number in events if of == incarnation]
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert numbers[0] <= seen_to[incarnation], f"node {receiver} has missed some"
                seen_to[incarnation] = numbers[-1] + 1
        incarnation = self.incarnation(sender)
        assert seen_to[incarnation] == self.emitted[sender, incarnation]

    def _check_ctx(self, sender: int, receiver: int) -> None:
        for recorder in self.incarnations[receiver]:
            for (node, _), numbers in recorder.ctx.items():
                if node == sender:
                    assert numbers == sorted(numbers), "an older value came after a newer one"
        for (node, incarnation, key), newest in self.published.items():
            if (node, incarnation) == (sender, self.incarnation(sender)):
                assert self.incarnations[receiver][-1].ctx[sender, key][-1] == (incarnation, newest)

    def _check_presence(self, sender: int, receiver: int) -> None:
        for recorder in self.incarnations[receiver]:
            found = recorder.presence[sender]
            assert all(one != other for one, other in pairwise(["node_joined", *found])), found


@SEEDS
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_delivery_guarantees_hold_under_random_network_faults(clock, name: str, seed: int) -> None:
    rng = random.Random(seed)
    num_nodes, topology = TOPOLOGIES[name]
    with Cluster(num_nodes, topology, clock=clock) as cluster:
        job = Story(cluster, sorted(edges(topology, num_nodes)), clock)
        for _ in range(rng.choice([20, 100, 300])):
            job.act(rng)
        job.settle()
        job.check()
        node = rng.randrange(len(job.incarnations))
        make_trouble(cluster.network, job.edges, rng)
        cluster.routers[node].emit(FINISH)
        cluster.network.heal()
        for peer in [sum(edge) - node for edge in job.edges if node in edge]:
            job.restart(peer)  # also a late node is told
            ended = job.incarnations[peer][-1].finished_by
            job.incarnations[peer][-1].wait(lambda ended=ended: node in ended, "the end of the job")


@SEEDS
@pytest.mark.parametrize("name", ["pair", "star", "tree", "eight"])
def test_each_item_is_taken_once_under_random_network_faults(clock, name: str, seed: int) -> None:
    """The clock is frozen, so no node is given up and no item goes to another receiver."""
    rng = random.Random(seed)
    num_nodes, topology = TOPOLOGIES[name]
    taken: list[tuple[int, int]] = []
    with Cluster(num_nodes, topology, clock=clock) as cluster, ThreadPoolExecutor(16) as pool:
        has_ended, links = threading.Event(), sorted(edges(topology, num_nodes))
        senders = [node for node in range(num_nodes) if name != "star" or node == 0][:3]

        def wait_for(count: int) -> None:
            wait_until(lambda: len(taken) >= count, f"not even {count} were taken")

        def send(node: int) -> None:
            others = [f"node.{peer}" for peer in range(num_nodes) if peer != node]
            for number in range(100):
                item = {"number": (node, number), "padding": np.zeros(rng.choice([1, 20_000]))}
                router = cluster.routers[node]
                assert router.send("work", item, to=others, in_flight=3, timeout=None)

        def take(router: NodeRouter) -> None:
            while item := router.receive("work", timeout=None, until=has_ended.is_set):
                assert item.value["number"][0] == item.node_id
                taken.append(item.value["number"])

        takers = [pool.submit(take, router) for router in cluster.routers]
        sending = [pool.submit(send, node) for node in senders]
        try:
            total = 100 * len(senders)
            for goal in range(0, total, rng.choice([2, 7, 25])):
                cluster.network.heal()
                wait_for(goal)
                for _ in range(rng.randrange(10)):
                    make_trouble(cluster.network, links, rng)
            cluster.network.heal()
            for each in sending:
                each.result(10.0)
            wait_for(total)
        finally:
            has_ended.set()
            cluster.network.heal()
            for router in cluster.routers:
                router.wake()
        for each in takers:
            each.result(10.0)
    assert sorted(taken) == [(node, number) for node in senders for number in range(100)]


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("last", [0, 1])
def test_finish_reaches_all_nodes_after_their_links_recover(name: str, last: int) -> None:
    num_nodes, topology = TOPOLOGIES[name]
    all_run, all_cut, has_set = threading.Barrier(num_nodes), threading.Event(), threading.Event()
    all_end = threading.Barrier(num_nodes)

    def main() -> tuple[int, bool]:
        with Task() as task:

            def act(ctx: Context) -> None:
                if ctx.total_step == 0:
                    all_run.wait(10.0)
                if task.router.node_id == last:
                    all_cut.wait(10.0)
                    ctx.finish = True
                    has_set.set()
                else:
                    task.wait_for("the end")  # never comes: the end of the job ends this

            task.use(act)
            task.run()
        all_end.wait(10.0)
        return current_router().node_id, task.finish

    with Cluster(num_nodes, topology) as cluster:
        cluster.start(main)
        for one, other in edges(topology, num_nodes):
            cluster.network.cut(one, other)
        wait_until(lambda: not any(router.peers for router in cluster.routers), "not cut")
        all_cut.set()
        has_set.wait(10.0)
        cluster.network.heal()
        assert cluster.results(timeout=15.0) == [(node, True) for node in range(num_nodes)]


def test_a_node_without_a_handshake_acknowledges_nothing(clock: ManualClock) -> None:
    """Node 1 sends to the second incarnation of node 0 while it knows only the first."""
    with Cluster(3, "mesh", clock=clock) as cluster:
        network, recorder = cluster.network, Recorder(cluster.routers[1])
        for number in range(5):
            cluster.routers[0].emit("text", 1, number)
        recorder.wait(lambda: len(recorder.events[0]) == 5, "the first incarnation")

        network.hold(0, 1)
        again = cluster.restart(0)
        wait_until(lambda: 1 in again.peers, "no greeting")
        for number in range(3):
            again.emit("text", 2, number)
        network.cut(1, 2)  # node 1 has lost no peer and sends to all
        recorder.wait(lambda: recorder.presence[2] == ["node_lost"], "no loss")
        network.cut(0, 1)
        network.heal()
        second = [(2, 0), (2, 1), (2, 2)]
        recorder.wait(lambda: recorder.events[0][5:] == second, "the second incarnation")


def test_late_messages_to_an_earlier_incarnation_acknowledge_nothing() -> None:
    """A ctx in another lane may arrive after the handshake, though it was sent before."""
    old, new = (Identity(0, incarnation, 2, frozenset()) for incarnation in (1, 2))
    peer = Session(Identity(1, 1, 2, frozenset()), 0)
    first = Session(old, 1)
    peer.greet(first.greeting(Kind.HELLO), 0.0)
    first.greet(peer.greeting(Kind.WELCOME), 0.0)
    for number in range(3):
        first.events.post(encode_event("text", (1, number), {}))
    for _, envelope in first.outgoing(0.0):
        peer.take(envelope, 0.0)
    peer.state.offer({"key": 7})
    late = [envelope for _, envelope in peer.outgoing(0.0) if envelope.kind is Kind.STATE]

    second = Session(new, 1)
    second.greet(peer.greeting(Kind.HELLO), 0.0)  # which has yet to hear of the second incarnation
    for number in range(3):
        second.events.post(encode_event("text", (2, number), {}))
    for envelope in late:
        second.take(envelope, 0.0)
    second.state.offer({"key": 8})
    assert all(envelope.kind is not Kind.STATE for _, envelope in second.outgoing(0.0))
    peer.close_link()
    second.close_link()
    peer.greet(second.greeting(Kind.HELLO), 0.0)
    second.greet(peer.greeting(Kind.WELCOME), 0.0)
    arrived = [a for _, e in second.outgoing(0.0) for a in peer.take(e, 0.0)]
    assert [a.args for a in arrived if isinstance(a, EventArrived)] == [(2, 0), (2, 1), (2, 2)]


def test_a_peer_that_was_silent_is_lost_once_and_joins_once(clock) -> None:
    with Cluster(2, clock=clock) as cluster:
        hub, leaf = (Recorder(router) for router in cluster.routers)
        never: Future[None] = Future()
        hub.router.register("never", lambda: never)
        answer = leaf.router.ask(0, "never")
        to_hub = leaf.router.links.sessions[0]
        cluster.network.hold(1, 0)
        for number in range(5):  # each second a word that is held up, while the other way is free
            leaf.router.emit("text", 1, number)
            clock.advance(1.0)
            wait_until(lambda: bool(hub.presence[1]) or to_hub.received_at == clock.now())
        hub.wait(lambda: hub.presence[1] == ["node_lost"], "silence")
        cluster.network.release(1, 0)
        hub.wait(lambda: len(hub.presence[1]) == 2, "no greeting")
        leaf.wait(lambda: len(leaf.presence[0]) == 2, "no greeting")
        with pytest.raises(PeerLost):
            answer.result(10.0)
        leaf.router.emit("text", 1, 5)
        hub.router.emit("text", 1, 0)
        hub.wait(lambda: hub.events[1] == [(1, number) for number in range(6)], "an event is lost")
        leaf.wait(lambda: leaf.events[0] == [(1, 0)], "an event is lost")
        assert hub.presence[1] == leaf.presence[0] == ["node_lost", "node_joined"]


def test_the_loss_of_a_node_or_of_a_caller_fails_calls_once(monkeypatch) -> None:
    monkeypatch.setattr(drain, "FAREWELL_TIMEOUT_S", 0.0)
    with Cluster(2) as cluster:
        asker, other = cluster.routers
        never: Future[None] = Future()
        other.register("never", lambda: never)
        answer = asker.ask(1, "never")
        for reason in ("It is gone.", "It is not connected."):  # two threads may see the loss
            asker._calls.fail(reason, lambda _: True)
        with pytest.raises(PeerLost, match="It is gone"):
            answer.result(0.0)
        answer = asker.ask(1, "never")
        asker.close(good_bye=False)
        with pytest.raises(PeerLost, match="has left before a call was answered"):
            answer.result(5.0)
        with pytest.raises(PeerLost, match=r"not connected to it\. Connected are: none"):
            asker.call(1, "never")
