"""Routers within one process: connections, messages, their order, and values that stay."""

from __future__ import annotations

import contextvars
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

import pytest

from ding_lite.errors import CodecError, ConfigError, LabelError, RemoteError
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.local_router import LocalRouter, labels_of_environment
from ding_lite.runtime.messaging.router import current_router, use_router
from ding_lite.runtime.messaging.streams import Item, ItemId
from ding_lite.runtime.task import Task
from tests.threads import together


class Receiver:
    """Writes down what arrives, and what it was told to do about it."""

    def __init__(self, answer: Callable[[int, str], None] | None = None) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.ctxs: list[tuple[int, dict[str, Any]]] = []
        self._answer = answer

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        self.events.append((node_id, event, *args, *kwargs.items()))
        if self._answer:
            self._answer(node_id, event)

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        self.ctxs.append((node_id, dict(values)))


def joined(routers: Iterable[LocalRouter]) -> list[Receiver]:
    receivers = []
    for router in routers:
        receivers.append(Receiver())
        router.join(receivers[-1])
    return receivers


# -- a node that is alone -------------------------------------------------------------------


def test_a_router_by_itself_is_not_active_has_no_peers_and_sends_itself_nothing() -> None:
    router = LocalRouter()
    assert not router.is_active
    assert (router.node_id, router.peers) == (0, ())
    assert router.labels == {"standalone", "node.0"}
    [receiver] = joined([router])
    router.emit("hello", threading.Lock())
    router.publish_ctx({"lock": threading.Lock()})
    assert receiver.events == receiver.ctxs == []


def test_labels_and_a_role_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DING_LITE_LABELS", "gpu, big")
    monkeypatch.setenv("DING_LITE_ROLES", "learner+evaluator")
    roles = {"learner", "learner.0", "evaluator", "evaluator.0"}
    assert labels_of_environment() == {"gpu", "big"} | roles
    assert LocalRouter().labels == {"standalone", "node.0", "gpu", "big"} | roles
    assert LocalRouter(labels=()).labels == {"standalone", "node.0"}
    assert LocalRouter.group(2)[1].labels == {"distributed", "node.1"}
    monkeypatch.setenv("DING_LITE_ROLES", "learner,collector")  # those of several nodes
    assert labels_of_environment() == {"gpu", "big"}


@pytest.mark.parametrize("variable", ["DING_LITE_LABELS", "DING_LITE_ROLES"])
def test_a_bad_label_of_the_environment_names_its_variable(variable, monkeypatch) -> None:
    monkeypatch.setenv(variable, "a b")
    with pytest.raises(LabelError, match=f"^{variable}: 'a b' is no "):
        LocalRouter()


# -- a group -------------------------------------------------------------------------------


def test_the_nodes_of_a_group_are_numbered_labelled_and_all_connected() -> None:
    routers = LocalRouter.group(3, roles=["learner", "collector", {"collector", "evaluator"}])
    assert [router.node_id for router in routers] == [0, 1, 2]
    assert [router.peers for router in routers] == [(1, 2), (0, 2), (0, 1)]
    assert all(router.is_active for router in routers)
    assert [set(router.labels) for router in routers] == [
        {"distributed", "node.0", "learner", "learner.0"},
        {"distributed", "node.1", "collector", "collector.0"},
        {"distributed", "node.2", "collector", "collector.1", "evaluator", "evaluator.0"},
    ]


def test_a_single_node_may_replace_its_handlers_and_publish_to_no_other() -> None:
    router = LocalRouter()
    for fn in (min, max):
        router.register("choose", fn)
    assert router.call(0, "choose", 1, 2) == 2
    router.publish("topic", 3, to=[])
    assert router.published("topic") == 3


def test_what_cannot_be_copied_is_refused_as_between_processes() -> None:
    router, lock = LocalRouter(), threading.Lock()
    router.register("lock", threading.Lock)
    sends: list[Callable[[], object]] = [
        lambda: router.call(0, "lock", lock),
        lambda: router.send("work", lock, to="node.0"),
        lambda: router.publish("topic", lock),
        lambda: LocalRouter.group(2)[0].emit("event", lock),
    ]
    for send in sends:
        with pytest.raises(CodecError, match=r"cannot be sent: cannot pickle .* Send what"):
            send()
    with pytest.raises(RemoteError, match="CodecError on node 0: The result of call `lock` cannot"):
        router.call(0, "lock", timeout=10.0)


def test_a_group_has_at_least_one_node_and_an_entry_of_roles_for_each() -> None:
    [router] = LocalRouter.group(1)
    assert not router.is_active
    assert router.labels == {"distributed", "node.0"}
    several: list[Any] = [["a"], ["a", "b", "c"], "ab", []]
    for roles in several:
        with pytest.raises(ConfigError, match="`roles` is "):
            LocalRouter.group(2, roles=roles)
    with pytest.raises(ConfigError, match="`num_nodes` is 0; it must be a whole number from 1 on"):
        LocalRouter.group(0)


# -- events --------------------------------------------------------------------------------


def test_under_many_threads_every_event_arrives_once_and_in_order_per_sender() -> None:
    routers = LocalRouter.group(6)
    num_events = 150
    inside = [threading.Lock() for _ in routers]
    met: list[int] = []

    def check_alone(node: int) -> Callable[[int, str], None]:
        def check(node_id: int, event: str) -> None:
            if not inside[node].acquire(blocking=False):
                met.append(node)
                return
            inside[node].release()

        return check

    receivers = [Receiver(check_alone(router.node_id)) for router in routers]
    for router, receiver in zip(routers[::2], receivers[::2], strict=True):
        router.join(receiver)

    def send(router: LocalRouter) -> None:
        for number in range(num_events):
            router.emit("count", number)
            if number == num_events // 2 and router.node_id % 2:
                router.join(receivers[router.node_id])  # half of them are late

    together(*(lambda router=router: send(router) for router in routers))

    assert met == []
    for router, receiver in zip(routers, receivers, strict=True):
        by_sender: dict[int, list[int]] = defaultdict(list)
        for sender, _, number in receiver.events:
            by_sender[sender].append(number)
        assert dict(by_sender) == {peer: list(range(num_events)) for peer in router.peers}


# -- ctx values ----------------------------------------------------------------------------


def test_the_values_of_several_shares_arrive_together() -> None:
    routers = LocalRouter.group(3)
    receivers = joined(routers)
    with use_router(routers[0]), Task() as task:
        task.share("version").share("weights", "bias", to="node.1").share("loss", to="node.2")
        task.forward(lambda ctx: ctx.update(version=1, weights=2, bias=3, secret=4)).renew()
    assert [receiver.ctxs for receiver in receivers] == [
        [],
        [(0, {"version": 1, "weights": 2, "bias": 3})],
        [(0, {"version": 1})],
    ]


def test_a_share_that_no_node_would_get_warns_unless_the_node_is_alone(caplog: Any) -> None:
    for routers in LocalRouter.group(2, roles=["learner", "collector"]), [LocalRouter()]:
        with use_router(routers[0]), Task() as task:
            task.share("weights", to=["lerner", "evaluator"]).share("goal", to="collector")
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(
        "`task.share('weights')`: No node of this job is matched by `to=['lerner', 'evaluator']`, "
        'so what is sent would never arrive. Did you mean "learner"?'
    )


@pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "async"])
def test_a_run_within_a_middleware_ends_only_itself(async_mode: bool) -> None:
    routers = LocalRouter.group(2)
    received = joined(routers)

    def evaluate(ctx: Context) -> None:
        if ctx.total_step == 3:
            with Task() as inner:
                inner.use(lambda ctx: ctx.update(finish=ctx.total_step == 1)).run()
            events.append((inner.ctx.total_step, [*received[1].events]))

    events: list[Any] = []
    with use_router(routers[0]), Task(async_mode=async_mode) as task:
        task.use(evaluate).run(max_step=6)
    assert task.ctx.total_step == 5
    assert events == [(1, [])]
    assert [event for _, event, *_ in received[1].events] == ["finish"]


def test_a_subscription_is_dropped_with_its_last_reference() -> None:
    """A program may subscribe in each step to read the newest value."""
    router, other = LocalRouter.group(2)
    kept, dropped = router.subscribe("goal"), ref(router.subscribe("goal"))
    assert dropped() is None
    other.publish("goal", 1)
    assert kept.newest == router.subscribe("goal").newest == {"goal": 1}
    router.wake()


# -- the current router --------------------------------------------------------------------


def test_where_nothing_was_launched_the_current_router_is_one_that_is_alone() -> None:
    def look() -> None:
        router = current_router()
        assert isinstance(router, LocalRouter)
        assert not router.is_active
        assert current_router() is router

    contextvars.Context().run(look)


def test_a_router_is_the_current_one_within_its_block_and_no_longer() -> None:
    outer, inner = LocalRouter.group(2)
    before = current_router()
    with use_router(outer) as entered:
        assert entered is outer
        with use_router(inner):
            assert current_router() is inner
        assert current_router() is outer
        with pytest.raises(LookupError), use_router(inner):
            raise LookupError
        assert current_router() is outer
    assert current_router() is before


# -- tasks on the nodes of a group ----------------------------------------------------------


def test_a_file_with_streams_runs_in_one_process_with_all_roles() -> None:
    router = LocalRouter(labels={"learner", "collector"})
    learned: list[object] = []
    with use_router(router), Task() as task:
        task.at("collector").use(lambda ctx: task.send("work", ctx.total_step, to="learner"))
        task.at("learner").use(lambda ctx: learned.append(task.receive("work")))
        task.run(max_step=5)
    assert learned == [Item(0, number, ItemId(0, 0, number + 1)) for number in range(5)]


def test_an_item_that_takes_long_to_copy_is_not_lost_behind_a_later_one() -> None:
    hub, leaf = LocalRouter.group(2)
    began, may_end = threading.Event(), threading.Event()

    class Slow:
        def __deepcopy__(self, _: object) -> str:
            began.set()
            assert may_end.wait(10.0)
            return "slow"

    def send_later_one() -> None:
        assert began.wait(10.0)
        hub.send("work", "quick", to="node.1")
        may_end.set()

    together(lambda: hub.send("work", Slow(), to="node.1"), send_later_one)
    taken = [leaf.receive("work", timeout=1.0) for _ in range(2)]
    assert [item.value for item in taken if item is not None] == ["quick", "slow"]


def test_the_end_of_the_job_ends_a_wait_for_an_item_and_one_for_room() -> None:
    hub, leaf = LocalRouter.group(2)
    message: list[object] = []

    def wait(router: LocalRouter, how: Callable[[Task], object]) -> None:
        with use_router(router), Task() as task:
            task.use(lambda ctx: message.append(how(task)))
            task.run()

    begun = threading.Event()

    def receive(task: Task) -> object:
        begun.set()
        return task.receive("nothing", timeout=None)

    def give_up(task: Task) -> object:
        begun.wait(10.0)
        task.send("work", 1, to="node.1", timeout=None)
        task.send("work", 1, to="node.1", timeout=None)
        task.finish = True
        return task.send("work", 1, to="node.1", timeout=None)

    together(
        lambda: wait(leaf, receive),
        lambda: wait(hub, give_up),
    )
    assert sorted(map(str, message)) == ["False", "None"]
