"""The routers of a job keep the same promises within a process and over sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.errors import ConfigError, DeadlineExceeded, LabelError, PeerLost, RemoteError
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster
from tests.parallel.tcp import Recorder

ROLES = ["learner", "collector", "collector", "evaluator"]
WAIT_S = 10.0


@pytest.fixture(params=["cluster", "sockets"])
def routers(request: pytest.FixtureRequest) -> Iterator[Sequence[Any]]:
    """Connect four nodes with `ROLES`, each to each."""
    with ExitStack() as stack:
        if request.param == "cluster":
            yield stack.enter_context(Cluster(4, "mesh", roles=ROLES)).routers
        else:
            directory = PrivateDirectory()
            stack.callback(directory.remove)
            specs = JobPlan(num_nodes=4, roles=ROLES).specs(directory)
            nodes = connected(stack, specs)
            stack.callback(nodes.clear)  # pytest keeps the list, and they their shared memory
            yield nodes


def connected(stack: ExitStack, specs: Sequence[NodeSpec]) -> list[NodeRouter]:
    nodes = [stack.enter_context(closing(NodeRouter(spec))) for spec in specs]
    for node in nodes:
        node.wait_ready(WAIT_S)
    return nodes


def test_an_event_reaches_every_other_node_once_with_arguments_of_its_own(routers: Any) -> None:
    recorders, named = [Recorder(router) for router in routers], threading.Event()
    routers[3].on("weights", lambda *_, by: named.set() if by == "dqn" else None)
    sent = np.zeros(2)
    routers[1].emit("weights", sent, 7, "λ", by="dqn")
    sent += 1
    assert named.wait(WAIT_S)
    for recorder in (recorders[0], recorders[2], recorders[3]):
        recorder.wait(lambda recorder=recorder: bool(recorder.events))  # type: ignore[misc]
        [(sender, event, (found, *others))] = recorder.events
        assert (sender, event, found.tolist(), others) == (1, "weights", [0.0, 0.0], [7, "λ"])
        found[:] = 5.0
    assert recorders[1].events == []


def test_ctx_values_go_to_the_nodes_that_the_patterns_match(routers: Any) -> None:
    recorders = [Recorder(router) for router in routers]
    routers[0].publish_ctx({"a": 1})
    routers[0].publish_ctx({"b": 2}, to=(label for label in ["collector.1", "eval*"]))
    routers[0].publish_ctx({"c": 3}, to=["learner"])  # its own
    routers[0].publish_ctx({"d": 4}, to=[])
    routers[0].publish_ctx({"end": 5})
    for recorder in recorders[1:]:
        recorder.wait(lambda recorder=recorder: "end" in recorder.ctx[0])  # type: ignore[misc]
    found = ["".join(sorted(recorder.ctx[0].keys() - {"end"})) for recorder in recorders]
    assert found == ["", "a", "ab", "ab"]


def test_the_newest_value_of_a_topic_reaches_its_subscribers_and_not_the_ctx(routers: Any) -> None:
    early, recorder = routers[1].subscribe("actor/weights", "nothing"), Recorder(routers[1])
    large = np.zeros(200_000)
    for number in range(50):
        large[:] = number
        routers[0].publish("actor/weights", {"version": number, "w": large}, to="collector")
    routers[2].publish("actor/weights", {"version": -1}, to="learner")
    assert early.wait(lambda newest: newest.get("actor/weights", {}).get("version") == 49)
    assert (early.newest["actor/weights"]["w"] == 49).all()
    late = routers[1].subscribe("actor/weights")
    assert late.of_nodes.keys() == {0}
    assert late.newest["actor/weights"]["version"] == 49
    hub = routers[0].subscribe("actor/weights")
    assert hub.wait()
    assert hub.of_nodes == {2: {"actor/weights": {"version": -1}}}
    assert not routers[3].subscribe("actor/weights").newest
    assert recorder.ctx == {}


def test_invalid_topics_receivers_and_handlers_are_refused(routers: Any) -> None:
    for topic in ("ctx/loss", "", 3, 1025 * "x"):
        with pytest.raises(ConfigError, match="topic"):
            routers[0].publish(topic, 1)
    for to in ("", (), "a b", 3):
        with pytest.raises(LabelError):
            routers[0].publish("topic", 1, to=to)
        with pytest.raises(LabelError):
            routers[0].send("stream", 1, to=to)
    for name, fn in (("", len), (3, len), ("g", 3)):
        with pytest.raises(ConfigError, match="a name and a function"):
            routers[0].register(name, fn)

    async def late() -> None: ...

    with pytest.raises(ConfigError, match="handler of `late` is an `async def`"):
        routers[0].register("late", late)


def test_a_node_can_read_its_published_values_as_they_were_then(routers: Any) -> None:
    assert routers[0].published("ctx/w") is None
    small, large = torch.ones(3), torch.ones(200_000)  # in a message, and in shared memory
    routers[0].publish_ctx({"w": {"small": small, "large": large}, "number": 4})
    for tensor in (small, large):
        tensor.zero_()
    found = routers[0].published("ctx/w")
    assert (found["small"].sum(), found["large"].sum()) == (3.0, 2e5)
    found["large"].zero_()
    assert routers[0].published("ctx/w")["large"].sum() == 2e5
    assert routers[0].published("ctx/number") == 4


def test_each_item_goes_to_one_of_the_nodes_that_match(routers: Any) -> None:
    items = [{"n": np.full(2, number)} for number in range(4)]
    for item in items:
        assert routers[0].send("work", item, to="collector")
        item["n"] += 100  # what was sent is a copy
    taken = [router.receive("work", timeout=WAIT_S) for router in routers[1:3] for _ in range(2)]
    assert sorted(int(item.value["n"][0]) for item in taken) == [0, 1, 2, 3]
    assert {item.node_id for item in taken} == {0}
    assert routers[0].send("work", "its own", to="learner")
    assert routers[0].receive("work", timeout=WAIT_S).value == "its own"


def test_a_full_receiver_makes_the_sender_wait_until_it_takes_an_item(routers: Any) -> None:
    hub, leaf, *_ = routers
    assert hub.send("work", 1, to="node.1", in_flight=1)
    with pytest.raises(DeadlineExceeded, match=r"took an item within 0 s.*each may have 1"):
        hub.send("work", 2, to="node.1", in_flight=1, timeout=0.0)
    with pytest.raises(LabelError, match=r"No node of this job is matched by `to=\['artist'\]`"):
        hub.send("work", 1, to="artist")
    with pytest.raises(DeadlineExceeded, match=r"No item of stream `rest` came within 0 s"):
        leaf.receive("rest", timeout=0.0)
    first = leaf.receive("work", timeout=WAIT_S)
    assert (first.node_id, first.value, first.id.number) == (0, 1, 1)
    assert hub.send("work", 2, to="node.1", in_flight=1, timeout=WAIT_S)


def test_a_call_gives_the_answer_or_the_error_of_its_handler(routers: Any) -> None:
    hub, leaf, *_ = routers
    later: Future[list[int]] = Future()
    large = np.arange(100_000.0)
    leaf.register("scale", lambda x, by=1: x * by)
    leaf.register("later", lambda: later)
    leaf.register("fails", lambda: 1 / 0)
    assert hub.call(1, "scale", 3, by=4) == leaf.call(1, "scale", 3, by=4) == 12
    np.testing.assert_array_equal(hub.call(1, "scale", large, by=2), 2 * large)
    answer = hub.ask(1, "later")
    with pytest.raises(DeadlineExceeded, match=r"not answered `later` within 0.05 s"):
        hub.call(1, "later", timeout=0.05)
    assert not answer.done()
    later.set_result([1])
    assert answer.result(WAIT_S) == [1]
    assert answer.result() is not later.result()
    for caller in (hub, leaf):  # also a node that calls itself
        with pytest.raises(RemoteError, match="ZeroDivisionError on node 1"):
            caller.call(1, "fails")
    with pytest.raises(PeerLost, match="Node 7 cannot be"):
        hub.ask(7, "later").result(WAIT_S)


def test_keywords_of_a_call_and_an_event_may_have_the_names_of_arguments(routers: Any) -> None:
    hub, leaf, *_ = routers
    named: dict[str, Any] = {"node": "first", "name": "x", "event": 3}
    leaf.register("describe", lambda **named: named)
    for caller in (hub, leaf):
        assert caller.call(1, "describe", **named) == named
    heard: Future[dict[str, Any]] = Future()
    leaf.on("told", lambda **named: heard.set_result(named))
    with use_router(hub), Task() as task:
        task.emit("told", **named)
    assert heard.result(WAIT_S) == named
