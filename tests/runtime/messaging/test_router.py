"""The router of a single node, the current router, and the end of runs on several nodes."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from ding_lite.errors import (
    CodecError,
    ConfigError,
    DeadlineExceeded,
    LabelError,
    PeerLost,
    RemoteError,
)
from ding_lite.runtime import Context, LocalRouter, Task, current_router, use_router
from ding_lite.runtime.messaging.local_router import labels_of_environment
from ding_lite.runtime.messaging.router import Router, use_router_in_process
from ding_lite.runtime.messaging.streams import Item, ItemId
from ding_lite.testing import Cluster
from tests.nodes import delivered
from tests.threads import together


class Receiver:
    """Writes down what arrives."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.ctxs: list[tuple[int, dict[str, Any]]] = []

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        self.events.append((node_id, event, *args, *kwargs.items()))

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        self.ctxs.append((node_id, dict(values)))


def joined(routers: Iterable[Router]) -> list[Receiver]:
    receivers = []
    for router in routers:
        receivers.append(Receiver())
        router.join(receivers[-1])
    return receivers


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
    with Cluster(2) as cluster:
        assert cluster.routers[1].labels == {"distributed", "node.1"}
    monkeypatch.setenv("DING_LITE_ROLES", "learner,collector")  # those of several nodes
    assert labels_of_environment() == {"gpu", "big"}


@pytest.mark.parametrize("variable", ["DING_LITE_LABELS", "DING_LITE_ROLES"])
def test_a_bad_label_of_the_environment_names_its_variable(variable, monkeypatch) -> None:
    monkeypatch.setenv(variable, "a b")
    with pytest.raises(LabelError, match=f"^{variable}: 'a b' is no "):
        LocalRouter()


def test_a_single_node_may_replace_its_handlers_and_publish_to_no_other() -> None:
    router = LocalRouter()
    for fn in (min, max):
        router.register("choose", fn)
    assert router.call(0, "choose", 1, 2) == 2
    router.publish("topic", 3, to="collector")
    assert router.published("topic") == 3


def test_a_call_to_itself_gives_copies_or_the_error_of_the_handler() -> None:
    router, taken, never = LocalRouter(), list[Any](), Future[Any]()
    router.register("take", lambda *args, **kwargs: taken.append((args, kwargs)) or args)
    router.register("later", lambda: never)
    router.register("fails", lambda: 1 / 0)
    sent = [1]
    named: dict[str, Any] = {"node": "first", "name": "x", "event": 3}
    [found] = router.call(0, "take", sent, **named)
    [((given,), kwargs)] = taken
    assert found == given == sent
    assert kwargs == named
    assert len({id(sent), id(given), id(found)}) == 3
    with pytest.raises(RemoteError, match=r"ZeroDivisionError on node 0: division by zero") as info:
        router.call(0, "fails")
    assert (info.value.node_id, info.value.kind) == (0, "ZeroDivisionError")
    assert "1 / 0" in info.value.remote_traceback
    with pytest.raises(
        RemoteError, match=r'under the name `tke` on this node\. Did you mean "take"'
    ):
        router.call(0, "tke")
    with pytest.raises(PeerLost, match="Node 7 cannot be asked for `take`: the nodes here are"):
        router.call(7, "take")
    with pytest.raises(DeadlineExceeded, match=r"not answered `later` within 0.05 s"):
        router.call(0, "later", timeout=0.05)
    never.set_result(3)
    assert router.call(0, "later") == 3


def test_items_to_itself_are_copies_and_wait_for_room() -> None:
    router, item = LocalRouter(labels="learner"), [1]
    assert router.send("work", item, to="learner", in_flight=1)
    item.append(2)
    with pytest.raises(DeadlineExceeded, match=r"took an item within 0 s.*each may have 1"):
        router.send("work", item, to="learner", in_flight=1, timeout=0.0)
    assert router.receive("work") == Item(0, [1], ItemId(0, 0, 1))
    assert router.send("work", item, to="node.*", in_flight=1)
    with pytest.raises(LabelError, match=r"No node of this job is matched by `to=\['artist'\]`"):
        router.send("work", 1, to="artist")
    with pytest.raises(DeadlineExceeded, match=r"No item of stream `rest` came within 0 s"):
        router.receive("rest", timeout=0.0)


def test_published_values_are_copies_and_one_that_cannot_be_copied_warns_once(caplog: Any) -> None:
    router, value = LocalRouter(), [1]
    assert router.published("ctx/value") is None
    for step in range(3):
        router.publish_ctx({"value": value, "step": step, "odd": threading.Lock()}, to=["learner"])
    router.publish("topic", value)
    value.append(2)
    router.published("topic").append(3)
    names = ("topic", "ctx/value", "ctx/step", "ctx/odd")
    assert [router.published(name) for name in names] == [[1], [1], 2, None]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("`ctx.odd` stays on node 0: cannot pickle")
    assert "`task.share` chooses the keys to send" in warning


def test_an_invalid_name_of_a_topic_or_a_handler_is_refused() -> None:
    router = LocalRouter()
    for topic in ("ctx/loss", "", 3, 1025 * "x"):
        with pytest.raises(ConfigError, match="topic"):
            router.publish(topic, 1)  # type: ignore[arg-type]
    for name, fn in (("", len), (3, len), ("g", 3)):
        with pytest.raises(ConfigError, match="a name and a function"):
            router.register(name, fn)  # type: ignore[arg-type]


def test_what_cannot_be_copied_is_refused_as_between_processes() -> None:
    router, lock = LocalRouter(), threading.Lock()
    router.register("lock", threading.Lock)
    sends: list[Callable[[], object]] = [
        lambda: router.call(0, "lock", lock),
        lambda: router.send("work", lock, to="node.0"),
        lambda: router.publish("topic", lock),
    ]
    for send in sends:
        with pytest.raises(CodecError, match=r"cannot be sent: cannot pickle .* Send what"):
            send()
    with pytest.raises(RemoteError, match="CodecError on node 0: The result of call `lock` cannot"):
        router.call(0, "lock", timeout=10.0)


def test_the_values_of_several_shares_arrive_together() -> None:
    with Cluster(3) as cluster:
        receivers = joined(cluster.routers)
        with use_router(cluster.routers[0]), Task() as task:
            task.share("version").share("weights", "bias", to="node.1").share("loss", to="node.2")
            task.forward(lambda ctx: ctx.update(version=1, weights=2, bias=3, secret=4)).renew()
        delivered(cluster.routers[0])
    assert [receiver.ctxs for receiver in receivers] == [
        [],
        [(0, {"version": 1, "weights": 2, "bias": 3})],
        [(0, {"version": 1})],
    ]


def test_what_no_node_would_get_warns_once_unless_the_node_is_alone(caplog: Any) -> None:
    with Cluster(2, roles=["learner", "collector"]) as cluster:
        for router in (cluster.routers[0], LocalRouter()):
            with use_router(router), Task() as task:
                task.share("weights", to=["lerner", "evaluator"]).share("goal", to="collector")
            for to in ("collectorr", "collector", "collectorr"):
                router.publish("goal", 1, to=to)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    first, second = caplog.messages
    assert first.startswith(
        "`task.share('weights')`: No node of this job is matched by `to=['lerner', 'evaluator']`, "
        'so nothing would ever arrive. Did you mean "learner"?'
    )
    assert second.startswith(
        "`publish('goal')`: No node of this job is matched by `to=['collectorr"
    )


def test_a_wait_for_a_topic_within_a_run_ends_with_the_job() -> None:
    is_waiting = threading.Event()

    def main() -> list[bool]:
        found: list[bool] = []
        goals = current_router().subscribe("goal")

        def wait(ctx: Context) -> None:
            is_waiting.set()
            found.append(goals.wait())

        def end(ctx: Context) -> None:
            assert is_waiting.wait(10.0)
            ctx.finish = True

        with Task() as task:
            task.use(end, "node.0").use(wait, "node.1").run()
        assert goals.wait(timeout=0.01) is False  # outside of a run it has its own end only
        return found

    with Cluster(2, "star") as cluster:
        assert cluster.run(main, timeout=15.0) == [[], [False]]


def test_a_run_on_another_thread_ends_no_wait_of_the_task_of_the_node() -> None:
    """Such a run ends only itself."""
    router, has_ended = LocalRouter(), threading.Event()
    found: list[object] = []

    def end(ctx: Context) -> Iterator[None]:
        yield
        router.wake()
        threading.Event().wait(0.05)

    def beside() -> None:
        Task().use(end).run(max_step=1)
        has_ended.set()
        router.wake()

    def wait(ctx: Context) -> None:
        goals = router.subscribe("goal")
        threading.Thread(target=beside).start()
        found.append(goals.wait(until=has_ended.is_set, timeout=10.0))

    with use_router_in_process(router), Task() as task:
        task.use(wait).run(max_step=1)
    assert found == [True]
    assert has_ended.is_set()


def test_the_ctx_of_a_node_is_found_by_its_role_and_an_unknown_label_is_refused() -> None:
    roles = ["learner", "collector", "collector"]
    with Cluster(3, roles=roles) as cluster, use_router(cluster.routers[1]):
        newest = Task().parallel_ctx
    newest._receive(0, {"version": 3})
    for known in (0, "node.0", "learner", "learner.0", "learn*"):
        assert newest.of(known).version == 3
    for silent in (2, "node.2", "collector.1"):
        assert newest.of(silent) == {"total_step": 0}
    for unknown in (9, -1, "lerner"):
        with pytest.raises(LabelError, match=r"No node of this job is matched by `of\("):
            newest.of(unknown)
    with pytest.raises(LabelError, match=r"of one node, and node\.1, node\.2 match it"):
        newest.of("collector")
    assert Task().parallel_ctx.of("learner") == {"total_step": 0}  # a job of one node


@pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "async"])
def test_a_run_within_a_middleware_ends_only_itself_and_publishes_nothing(async_mode: bool) -> None:
    def evaluate(ctx: Context) -> None:
        if ctx.total_step == 3:
            with Task() as inner:
                inner.use(lambda ctx: ctx.update(played=1, finish=ctx.total_step == 1)).run()
            delivered(router)
            events.append((inner.ctx.total_step, [*other.events]))

    events: list[Any] = []
    with Cluster(2) as cluster:
        router = cluster.routers[0]
        [other] = joined(cluster.routers[1:])
        with use_router(router), Task(async_mode=async_mode) as task:
            task.use(evaluate).run(max_step=6)
        delivered(router)
    assert task.ctx.total_step == 5
    assert events == [(1, [])]
    assert [event for _, event, *_ in other.events] == ["finish"]
    assert [router.published(f"ctx/{key}") for key in ("total_step", "played")] == [5, None]


def test_a_task_on_a_thread_leaves_the_node_to_the_task_of_main() -> None:
    begun, over = threading.Event(), threading.Event()

    def wait(ctx: Context) -> None:
        begun.set()
        over.wait(10.0)

    with Cluster(2) as cluster:
        router = cluster.routers[0]
        [other] = joined(cluster.routers[1:])
        with use_router(router), Task() as helper, Task() as task:
            helper.use(wait)
            thread = threading.Thread(target=helper.run, kwargs={"max_step": 1})
            thread.start()
            assert begun.wait(10.0)
            task.use(lambda ctx: ctx.update(mine=1)).run(max_step=2)
            delivered(router)
            assert router.published("ctx/mine") == 1
            assert [event for _, event, *_ in other.events] == ["finish"]
            over.set()
            thread.join()


def test_where_nothing_was_launched_the_current_router_is_one_that_is_alone() -> None:
    def look() -> None:
        router = current_router()
        assert isinstance(router, LocalRouter)
        assert not router.is_active
        assert current_router() is router

    contextvars.Context().run(look)


def test_a_router_is_the_current_one_within_its_block_and_no_longer() -> None:
    outer, inner = LocalRouter(), LocalRouter()
    before = current_router()
    with use_router(outer) as entered:
        assert entered is current_router() is outer
        with pytest.raises(LookupError, match="True"), use_router(inner):
            raise LookupError(current_router() is inner)
        assert current_router() is outer
    assert current_router() is before


def test_a_file_with_streams_runs_in_one_process_with_all_roles() -> None:
    router = LocalRouter(labels={"learner", "collector"})
    learned: list[object] = []
    with use_router(router), Task() as task:
        task.at("collector").use(lambda ctx: task.send("work", ctx.total_step, to="learner"))
        task.at("learner").use(lambda ctx: learned.append(task.receive("work")))
        task.run(max_step=5)
    assert learned == [Item(0, number, ItemId(0, 0, number + 1)) for number in range(5)]


def test_an_item_that_takes_long_to_copy_is_not_lost_behind_a_later_one() -> None:
    router = LocalRouter()
    began, may_end = threading.Event(), threading.Event()

    class Slow:
        def __deepcopy__(self, _: object) -> str:
            began.set()
            assert may_end.wait(10.0)
            return "slow"

    def send_later_one() -> None:
        assert began.wait(10.0)
        router.send("work", "quick", to="node.0")
        may_end.set()

    together(lambda: router.send("work", Slow(), to="node.0"), send_later_one)
    taken = [router.receive("work", timeout=1.0) for _ in range(2)]
    assert [item.value for item in taken if item is not None] == ["quick", "slow"]


def test_the_end_of_the_job_ends_a_wait_for_an_item_and_one_for_room() -> None:
    begun = threading.Event()

    def receive(task: Task) -> object:
        begun.set()
        return task.receive("nothing", timeout=None)

    def give_up(task: Task) -> object:
        begun.wait(10.0)
        for _ in range(2):
            task.send("work", 1, to="node.1", timeout=None)
        task.finish = True
        return task.send("work", 1, to="node.1", timeout=None)

    def main() -> list[object]:
        results: list[object] = []
        with Task() as task:
            how = (give_up, receive)[task.router.node_id]
            task.use(lambda ctx: results.append(how(task))).run()
        return results

    with Cluster(2) as cluster:
        assert cluster.run(main) == [[False], [None]]
