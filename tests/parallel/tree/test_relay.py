"""Relaying in a tree: ctx values, events, calls and items reach their receivers over hubs."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded, LabelError, PeerLost, RemoteError
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.group import World
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.tree import relay
from ding_lite.parallel.wire.codec import MAX_DEPTH, MAX_META_BYTES
from ding_lite.parallel.wire.messages import CallArrived, EventArrived, StateArrived
from ding_lite.runtime.messaging.streams import UNCERTAIN_S
from ding_lite.testing import Cluster, ManualClock
from tests.parallel import tcp
from tests.parallel.router.test_node_router import raise_
from tests.parallel.tcp import wait_until
from tests.parallel.test_clusters import SEEDS

ROLES = ["learner", "hub", "hub", "collector", "collector", "collector", "evaluator"]
"""Of seven nodes: 0 is the root, 1 the hub of 3 and 4, and 2 that of 5 and 6."""
DEEP = json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)


class Recorder(tcp.Recorder):
    """Record arrivals at a node."""

    def wait_events(self, count: int) -> None:
        self.wait(lambda: len(self.events) >= count, what="too few events")
        assert len(self.events) == count

    def wait_ctx(self, node: int, key: str, value: object) -> None:
        self.wait(lambda: self.ctx[node].get(key) == value, what=f"{key} of node {node}")


@contextmanager
def tree(**given: Any) -> Iterator[tuple[Cluster, list[Recorder]]]:
    with Cluster(7, "tree:2", roles=ROLES, **given) as cluster:
        yield cluster, [Recorder(router) for router in cluster.routers]


def test_events_reach_ancestors_and_descendants_and_values_no_further_ancestor_than_one() -> None:
    with tree() as (cluster, recorders):
        for sender in (4, 5, 1, 0):
            if sender == 0:
                recorders[0].wait_events(3)  # so the hubs have passed on all that they should
            cluster.routers[sender].publish_ctx({"load": sender})
            cluster.routers[sender].emit("load", sender)
        senders = {0: {1}, 1: {0, 4}, 2: {0, 5}, 3: {0, 1}, 4: {0, 1}, 5: {0}, 6: {0}}
        for node, expected in senders.items():
            for sender in expected:
                recorders[node].wait_ctx(sender, "load", sender)
            assert {sender for sender, values in recorders[node].ctx.items() if values} == expected
            expected |= {4, 5} if node == 0 else set()
            recorders[node].wait_events(len(expected))
            assert {sender for sender, _, _ in recorders[node].events} == expected


def test_labels_choose_the_receivers_of_ctx_values_anywhere() -> None:
    with tree() as (cluster, recorders):
        cluster.routers[6].publish_ctx({"eval_value": 475.0}, to="learner")
        recorders[0].wait_ctx(6, "eval_value", 475.0)
        cluster.routers[3].publish_ctx({"seen": 7}, to=["evaluator", "node.4"])
        for node in (4, 6):
            recorders[node].wait_ctx(3, "seen", 7)
        assert [node for node in range(7) if recorders[node].ctx.get(6)] == [0]
        assert [node for node in range(7) if recorders[node].ctx.get(3)] == [4, 6]


def test_a_value_for_many_labels_or_with_a_long_topic_passes_hubs() -> None:
    with tree() as (cluster, _):
        topic = 1024 * "t"
        many = ["evaluator", *(f"collector.{number}" for number in range(100))]
        subscriptions = [cluster.routers[6].subscribe(each) for each in ("goal", topic)]
        cluster.routers[3].publish("goal", 1, to=many)
        cluster.routers[0].publish(topic, 2)
        for seen in subscriptions:
            assert seen.wait(timeout=10.0)
        with pytest.raises(LabelError, match=r"1010 label patterns .* hubs relay 8192 at most"):
            cluster.routers[3].publish("goal", 1, to=10 * many)


def test_a_hub_keeps_a_limited_number_of_topics_of_a_sender(monkeypatch) -> None:
    monkeypatch.setattr(relay, "MAX_KEY_BYTES", 1_000)
    with tree() as (cluster, _):
        router = cluster.routers[1]
        for number in range(1_000):
            router._deliver(3, StateArrived({f'[3,["x{number:03}"],"goal"]': 1}))
        router._deliver(3, StateArrived({f'[3,["{9_000 * "a"}"],"goal"]': 1}))
        assert router.links.dropped.count == 1_000 - 1_000 // 19 + 1
        router._deliver(3, StateArrived({'[3,["x001"],"goal"]': 2}))  # a known one goes on
        router._deliver(4, StateArrived({'[4,["x1"],"goal"]': 2}))
        assert router.links.dropped.count == 1_000 - 1_000 // 19 + 1


def test_a_slow_branch_gets_the_newest_value() -> None:
    with tree() as (cluster, recorders):
        cluster.network.hold(1, 3)
        for version in range(50):
            cluster.routers[0].publish_ctx({"version": version, "weights": np.full(9_000, version)})
            recorders[4].wait(lambda: "version" in recorders[4].ctx[0], what="the other branch")
        recorders[4].wait_ctx(0, "version", 49)
        assert 0 not in recorders[3].ctx
        assert cluster.network.under_way(1, 3) < 10
        cluster.network.release(1, 3)
        recorders[3].wait_ctx(0, "version", 49)
        assert (recorders[3].ctx[0]["weights"] == 49).all()


def test_a_restarted_hub_and_its_descendants_get_the_newest_values(clock: ManualClock) -> None:
    with tree(clock=clock) as (cluster, recorders):
        cluster.routers[0].publish_ctx({"version": 1})
        recorders[4].wait_ctx(0, "version", 1)
        cluster.network.cut(1, 4)
        router = cluster.restart(1)
        cluster.routers[0].publish_ctx({"version": 2})
        Recorder(router).wait_ctx(0, "version", 2)
        assert recorders[4].ctx[0] == {"version": 1}
        cluster.network.heal()
        for node in (3, 4):
            recorders[node].wait_ctx(0, "version", 2)


def test_a_call_reaches_any_node_and_its_answer_returns() -> None:
    with tree() as (cluster, _):
        cluster.routers[6].register("double", lambda x: 2 * x)
        for node in (0, 1, 2, 3, 5, 6):
            assert cluster.routers[node].call(6, "double", np.arange(30_000)).sum() == 899_970_000

        cluster.routers[0].register("raise", partial(raise_, KeyError("nothing there")))
        with pytest.raises(RemoteError, match="KeyError on node 0: 'nothing there'") as caught:
            cluster.routers[4].call(0, "raise")
        assert (caught.value.node_id, caught.value.kind) == (0, "KeyError")
        assert "in raise_" in caught.value.remote_traceback


@pytest.mark.parametrize("value", ["x" * (MAX_META_BYTES - 1024 - 36), DEEP], ids=["long", "deep"])
def test_a_value_at_the_limits_crosses_several_hubs(value: object) -> None:
    with tree() as (cluster, recorders):
        cluster.routers[6].register("echo", lambda value: value)
        assert cluster.routers[3].call(6, "echo", value) == value
        cluster.routers[3].emit("found", value)
        recorders[0].wait_events(1)
        assert recorders[0].events == [(3, "found", (value,))]
        assert cluster.routers[3].send("work", value, to="node.6", timeout=5.0)
        item: Any = cluster.routers[6].receive("work", timeout=15.0)
        assert item.value == value


def test_a_call_over_a_lost_hub_raises_peer_lost(clock: ManualClock) -> None:
    with tree(clock=clock) as (cluster, recorders):
        asked = threading.Event()
        cluster.routers[0].register("ask", lambda: (asked.set(), Deadline.after(5.0).wait)[0])
        cluster.network.cut(0, 1)
        recorders[1].wait(lambda: bool(recorders[1].events), what="no cut")
        with pytest.raises(PeerLost, match="cannot be called: node 1 is not connected to node 0"):
            cluster.routers[3].call(0, "ask", timeout=5.0)
        cluster.network.heal()


def test_nodes_receivers_and_limits_may_be_of_numpys_types_and_wrong_ones_are_refused() -> None:
    with tree() as (cluster, _):
        router: Any = cluster.routers[3]
        to, goal = np.array(["evaluator"]), cluster.routers[6].subscribe("goal")
        router.publish("goal", 1, to=to)
        assert goal.wait(timeout=10.0)
        assert router.send("work", (3, 0), to=to, in_flight=np.int64(1))
        assert take_all(cluster.routers[6], 1) == [(3, 0)]
        cluster.routers[6].register("double", lambda x: 2 * x)
        assert router.call(np.int64(6), "double", 2) == 4
        for node in ("6", 6.0, True, None, [6]):
            with pytest.raises(ConfigError, match="the id of a node was expected"):
                router.call(node, "double", 2)
        for asker, node in ((0, 7), (1, 8), (3, 99), (5, -1), (6, 2**40)):
            with pytest.raises(PeerLost, match=r"the job has no node"):
                cluster.routers[asker].call(node, "double", timeout=5.0)


def test_a_call_waits_until_a_hub_is_connected_to_its_parent(clock) -> None:
    with tree(clock=clock) as (cluster, recorders):
        cluster.routers[0].register("double", lambda x: 2 * x)
        cluster.network.cut(0, 1)
        cluster.restart(1)
        recorders[3].wait(lambda: (1, "node_joined", (1,)) in recorders[3].events, what="no hub")
        answer = cluster.routers[3].ask(0, "double", 4)
        cluster.network.heal()
        assert answer.result(10.0) == 8


def test_collectives_work_for_any_members() -> None:
    def main() -> list[int]:
        group = (world := World.current()).group([3, 4, 6])
        found = group.all_gather(world.node_id) if group.is_member else []
        world.group("node.*").barrier(timeout=10.0)
        return found

    with Cluster(7, "tree:2") as cluster:
        found = cluster.run(main, timeout=20.0)
    assert [found[node] for node in (3, 4, 6)] == [[3, 4, 6]] * 3


def send_all(router: NodeRouter, count: int, *, to: Any = "learner", timeout: float = 15.0) -> None:
    for number in range(count):
        item = (router.node_id, number, np.zeros(random.Random(number).choice([1, 20_000])))
        assert router.send("work", item, to=to, timeout=timeout)


def take_all(router: NodeRouter, count: int, *, timeout: float = 15.0) -> list[tuple[int, int]]:
    taken = []
    for _ in range(count):
        item: Any = router.receive("work", timeout=timeout)
        assert item.node_id == item.value[0]
        taken.append(item.value[:2])
    return taken


def take_as_time_passes(clock: ManualClock, router: NodeRouter) -> tuple[int, int]:
    """Take an item; the time of doubt passes again where a node has begun to doubt only now."""
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take_all, router, 1, timeout=1e6)
        clock.advance(UNCERTAIN_S + 0.1)
        while not wait([taking], timeout=1.0).done:
            clock.advance(UNCERTAIN_S + 0.1)
        [item] = taking.result()
    return item


def test_an_idle_receiver_blocks_its_senders_with_bounded_queues() -> None:
    with tree() as (cluster, _), ThreadPoolExecutor(8) as pool:
        leaves = [cluster.routers[node] for node in (3, 4, 5, 6)]
        for router in leaves:
            for number in range(2):
                router.send("work", (router.node_id, number), to="learner", timeout=5.0)
        stuck = [pool.submit(send_all, router, 1, timeout=0.3) for router in leaves]
        for each in stuck:
            with pytest.raises(DeadlineExceeded, match=r"Nodes that \['learner'\] matches: \[0\]"):
                each.result(10.0)
        # Of the eight, each of two hubs has relayed as many as its credits allow.
        root = cluster.routers[0]
        taken = []
        for left in range(8, 0, -1):
            wait_until(lambda left=left: root._streams.num_waiting >= min(4, left), "a hub waits")  # type: ignore[misc]
            assert root._streams.num_waiting <= 4
            taken += take_all(root, 1)
    assert sorted(taken) == [(node, number) for node in (3, 4, 5, 6) for number in range(2)]


def test_an_item_reaches_a_receiver_on_any_branch() -> None:
    with tree() as (cluster, _):
        send_all(cluster.routers[6], 2, to="collector.0")
        assert sorted(take_all(cluster.routers[3], 2)) == [(6, 0), (6, 1)]
        send_all(cluster.routers[0], 4, to=["node.5", "node.6"])
        found = take_all(cluster.routers[5], 2) + take_all(cluster.routers[6], 2)
        assert sorted(found) == [(0, number) for number in range(4)]


def test_items_of_a_killed_receiver_go_to_its_next_incarnation(clock: ManualClock) -> None:
    with tree(clock=clock) as (cluster, _):
        send_all(cluster.routers[5], 2)
        again = cluster.restart(0)
        assert sorted(take_all(again, 2)) == [(5, 0), (5, 1)]


def test_items_of_an_absent_receiver_go_to_another(clock) -> None:
    with tree(clock=clock) as (cluster, recorders):
        cluster.network.hold(1, 3)
        to = ["node.3", "node.4"]
        for number in range(2):
            cluster.routers[0].send("work", (0, number), to=to, in_flight=1, timeout=5.0)
        assert take_all(cluster.routers[4], 1)
        cluster.network.cut(1, 3)
        recorders[1].wait(lambda: (3, "node_lost", (3,)) in recorders[1].events, what="no cut")
        _, second = take_as_time_passes(clock, cluster.routers[4])
        assert second in (0, 1)
        cluster.network.heal()


def test_items_that_another_receiver_has_are_withdrawn_from_the_first(clock) -> None:
    with tree(clock=clock) as (cluster, recorders):
        router = cluster.routers[3]
        cluster.routers[0].send("work", (0, 0), to="node.3", timeout=5.0)
        wait_until(lambda: router._streams.num_waiting > 0)
        cluster.network.cut(1, 3)
        recorders[1].wait(lambda: (3, "node_lost", (3,)) in recorders[1].events, what="no cut")
        clock.advance(UNCERTAIN_S + 0.1)
        cluster.network.heal()
        assert take_as_time_passes(clock, router) == (0, 0)  # its sender retries after a while
        assert not router._streams.num_waiting


def test_a_send_to_a_receiver_that_has_left_fails_in_time() -> None:
    with tree() as (cluster, _):
        cluster.routers[3].close()
        # The hub reports this to the sender, which sends no items there meanwhile.
        assert cluster.routers[6].send("work", 1, to="node.3", timeout=5.0)
        with pytest.raises(DeadlineExceeded, match="No receiver of stream `work`"):
            send_all(cluster.routers[6], 3, to="node.3", timeout=0.5)


@SEEDS
def test_each_item_is_taken_once_despite_broken_links_and_killed_hubs(clock, seed) -> None:
    rng = random.Random(seed)
    with tree(clock=clock) as (cluster, _), ThreadPoolExecutor(8) as pool:
        sending = [pool.submit(send_all, cluster.routers[node], 50) for node in (3, 4, 5, 6)]
        taken: list[tuple[int, int]] = []
        while len(taken) < 200:
            taken += take_all(cluster.routers[0], min(rng.choice([1, 5, 20]), 200 - len(taken)))
            one, other = rng.choice([(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)])
            cluster.network.cut(one, other)
            if rng.random() < 0.4:
                cluster.restart(rng.choice([1, 2]))
            cluster.network.heal()
        for each in sending:
            each.result(10.0)
        assert not cluster.routers[0]._streams.num_waiting
    assert sorted(taken) == [(node, number) for node in (3, 4, 5, 6) for number in range(50)]


def test_messages_with_a_sender_that_is_not_behind_the_peer_are_dropped() -> None:
    with tree() as (cluster, recorders):
        router, events, names = cluster.routers[1], [], []
        for origin in (0, 2, 6, 1, -1, "3", None):
            events.append((origin, 1, 1, "said"))
            names.append(f'[{json.dumps(origin)},null,"ctx/key"]')
        for args in [*events, (), (3, "said"), (3, 1, 1, 5)]:
            router._deliver(3, EventArrived("ding_lite.relayed", args, {}))
        for name in [*names, "weights", "[3,null]", "[]", '[3,[""],"ding_lite/labels"]']:
            router._deliver(3, StateArrived({name: 1}))
        router._deliver(3, StateArrived({'[3,null,"ding_lite/labels"]': np.empty((2**20, 0))}))
        for call in [(1, 0, 0, ["said", None]), (1, 3, 0, 5), (1, 3, 0, [])]:
            router._deliver(3, CallArrived(7, "ding_lite.onward", call, {}))
        assert router.links.dropped.count == 10 + 12 + 3
        with pytest.raises(RemoteError, match="which is not behind it"):
            cluster.routers[3].call(1, "ding_lite.onward", 0, 5, 0, ["said", None])
        with pytest.raises(RemoteError, match="has a receiver and credits"):
            cluster.routers[3].call(1, "ding_lite.onward", "0", 3, 0, ["said", None])
        with pytest.raises(RemoteError, match="has the name of a stream"):
            cluster.routers[3].call(1, "ding_lite.onward", 0, 3, 2, ["ding_lite.item", None, 1])
        assert not any(each.events or each.ctx for each in recorders)


class Strangers(Cluster):
    """Nodes with specs that lack the labels of the others."""

    def _make(self, spec: NodeSpec) -> NodeRouter:
        return super()._make(replace(spec, world=()))


def test_nodes_without_common_specs_exchange_labels() -> None:
    with Strangers(7, "tree:2", roles=ROLES) as cluster:
        send_all(cluster.routers[6], 1, to="collector.1")
        assert take_all(cluster.routers[4], 1) == [(6, 0)]
        recorders = [Recorder(router) for router in cluster.routers]
        cluster.routers[3].publish_ctx({"loss": 1.0}, to="evaluator")
        recorders[6].wait_ctx(3, "loss", 1.0)
        again = cluster.restart(2)
        wait_until(lambda: again.world == tuple(each.labels for each in cluster.routers))
        assert not any(each.ctx[node] for each in recorders for node in range(7) if node != 3)
