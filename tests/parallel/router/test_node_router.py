"""The routers of several nodes, each with its own transport, in one process over ipc."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite.clock import SystemClock
from ding_lite.errors import (
    CodecError,
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    RemoteError,
    TransportError,
)
from ding_lite.parallel.memory.segments import DIRECTORY, PREFIX
from ding_lite.parallel.memory.shared_values import MIN_SHARED_BYTES
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router import calls, topics
from ding_lite.parallel.router.calls import NUM_WORKERS, REGISTRATION_S
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.supervise.node_process import node_of
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import Router, current_router, use_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster
from tests.forks import in_a_child
from tests.parallel.tcp import Recorder, ipc_specs, wait_until
from tests.threads import together

Start = Callable[..., list[NodeRouter]]


def raise_(error: BaseException, *_: object) -> None:
    raise error


def pass_by(routers: list[NodeRouter]) -> None:
    """Return once node 1 has what node 0 has sent before."""
    routers[1].register("here", lambda: None)
    routers[0].call(1, "here")


def test_a_late_answer_is_no_faulty_message(start: Start, caplog) -> None:
    routers = start(2)
    later: Future[int] = Future()
    routers[0].register("later", lambda: later)
    with caplog.at_level("DEBUG"):
        with pytest.raises(DeadlineExceeded):
            routers[1].call(0, "later", timeout=0.05)
        later.set_result(1)
        late = "node 0 answers call 1 too late: the caller has given up"
        wait_until(lambda: late in caplog.text)
    assert routers[1].links.dropped.count == 0


def test_the_values_of_several_shares_are_from_the_same_step(start: Start) -> None:
    """Also where the large one travels in shared memory: it is whole."""
    seen = []

    class Steps(Recorder):
        def receive_ctx(self, node_id: int, values: Any) -> None:
            seen.append({values.get("version"), *values.get("w", ())})
            super().receive_ctx(node_id, values)

    routers = start(2)
    steps = Steps(routers[1])
    with use_router(routers[0]), Task() as task:
        task.share("version").share("w", to="leaf")
        for number in range(50):
            values = {"version": number, "w": np.full(100_000, number)}
            task.forward(lambda ctx, values=values: ctx.update(values)).renew()  # type: ignore[misc]
        steps.wait(lambda: steps.ctx[0].get("version") == 49)
    assert {len(numbers) for numbers in seen} == {1}


@pytest.mark.parametrize("to", ["evaluator", None])
def test_a_node_that_takes_a_place_with_another_label_gets_the_newest_value_for_it(
    tmp_path: Path, to: str | None
) -> None:
    hub_spec, leaf_spec = ipc_specs(tmp_path, 2, "star")
    with closing(NodeRouter(hub_spec)) as hub:
        with closing(NodeRouter(leaf_spec)) as leaf:
            leaf.wait_ready(10.0)
            hub.wait_ready(10.0)
            hub.publish("goal", 1, to="evaluator")
            hub.publish("goal", 2, to=to)
        spec = replace(leaf_spec, incarnation=2, labels=leaf_spec.labels | {"evaluator"})
        with closing(NodeRouter(spec)) as evaluator:
            goal = evaluator.subscribe("goal")
            assert goal.wait(timeout=10.0)
            assert goal.newest == {"goal": 2}


def test_a_topic_beyond_the_limit_is_refused_where_it_is_published(start, caplog) -> None:
    router, other = start(2)
    for number in range(topics.MAX_TOPICS):
        router.publish(f"{number}", number)
    with pytest.raises(CodecError, match=r"Topic `one-more` is one too many: .* 10,000 topics"):
        router.publish("one-more", 1)
    router.publish_ctx({"loss": 1})
    assert "`ctx.loss` stays on node 0" in caplog.text
    router.publish("9999", "again")
    assert other.subscribe("9999").wait(lambda newest: newest.get("9999") == "again")
    assert other.links.dropped.count == 0


def test_items_that_a_node_has_not_received_are_counted_when_it_leaves(caplog) -> None:
    with caplog.at_level("INFO"), Cluster(2) as cluster:
        sender, receiver = cluster.routers
        for stream in ("work", "work", "rest"):
            sender.send(stream, 1, to="node.1")
        assert all(receiver.receive(stream, timeout=10.0) for stream in ("work", "rest"))
        wait_until(lambda: receiver._streams.num_waiting == 1)
    assert "node 1 has left, and has not received all items of stream `work`; left" in caplog.text
    assert caplog.text.count("left over: 1. To have all: `while (item := task.receive('work'") == 1


def test_a_peer_with_too_many_topics_is_not_given_more_room(start, monkeypatch) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", 3)
    router, other = start(2)
    router._outbox._relays = True  # it checks nothing
    seen = other.subscribe("0", "1", "2", "3")
    for topic in ("0", "1", "2", "3"):
        router.publish(topic, topic)
        if topic != "3":
            assert seen.wait(lambda newest, topic=topic: topic in newest)
    router.publish("0", "again")
    assert seen.wait(lambda newest: newest["0"] == "again")
    assert "3" not in seen.newest
    assert other.links.dropped.count == 1
    router.publish_ctx({2_000 * "x": 1})
    router.publish("0", "still")
    assert seen.wait(lambda newest: newest["0"] == "still")
    assert other.links.dropped.count == 2


def test_a_wait_for_topics_ends_when_a_peer_connects_or_leaves(tmp_path) -> None:
    here, there = ipc_specs(tmp_path, 2, "mesh")
    has_ended = threading.Event()
    with closing(NodeRouter(here)) as router, ThreadPoolExecutor(1) as pool:
        watch = router.subscribe()

        def until_peers_are(peers: tuple[int, ...]) -> Future[bool]:
            return pool.submit(watch.wait, lambda _: router.peers == peers, until=has_ended.is_set)

        try:
            for spec in (there, replace(there, incarnation=2)):
                has_come = until_peers_are((1,))
                other = NodeRouter(spec)
                assert has_come.result(10.0)
                has_gone = until_peers_are(())
                other.close(good_bye=spec.incarnation == 2)
                assert has_gone.result(10.0)
        finally:
            has_ended.set()
            watch.wake()


def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    [spec, *_] = ipc_specs(tmp_path, 3, "mesh", startup_timeout=0.05)
    missing = r"Node 0 has waited 0.05 s for node 1, 2 of 3"
    with closing(NodeRouter(spec)) as router, pytest.raises(DeadlineExceeded, match=missing):
        router.wait_ready()


class InterruptedClock(SystemClock):
    """Send SIGINT during the first wait of the main thread."""

    def __init__(self) -> None:
        self._is_pressed = False

    def wait(self, condition: threading.Condition, instant: float) -> None:
        if threading.current_thread() is threading.main_thread() and not self._is_pressed:
            self._is_pressed = True
            signal.raise_signal(signal.SIGINT)
        super().wait(condition, instant)


def test_threads_use_the_router_of_the_node_if_their_process_is_a_single_one(start: Start) -> None:
    other, one = start(2)

    def of_a_thread() -> Router:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(current_router).result()

    with node_of(one):
        assert of_a_thread() is one
        heard: list[Router] = []
        one.on("n", lambda: heard.append(current_router()))  # on the thread that reads messages
        other.emit("n")
        pass_by([other, one])
        assert heard == [one]
        with node_of(other):
            assert of_a_thread() not in (one, other)
    assert of_a_thread() is not one


def wait_for_a_ctx(router: Router) -> None:
    with use_router(router), Task() as task:
        task.wait_parallel_ctx()


WAITS: dict[str, Callable[[Router], object]] = {
    "call": lambda router: router.call(1, "here"),
    "send": lambda router: router.send("s", 1, to="nobody", timeout=None),
    "receive": lambda router: router.receive("s", timeout=None),
    "wait": lambda router: router.subscribe("topic").wait(),
    "ctx": wait_for_a_ctx,
}


def test_a_wait_on_the_thread_that_reads_messages_is_refused_and_a_look_is_none(start) -> None:
    """It could never end, and the peers would lose a node that does not read."""
    routers = start(2)
    outcome: Future[list[Any]] = Future()

    def listen() -> None:
        for name, waits in WAITS.items():
            with pytest.raises(TransportError, match="on the thread that reads the messages"):
                outcome.set_exception(AssertionError(f"{name}: {waits(routers[0])}"))
        with pytest.raises(DeadlineExceeded):
            routers[0].receive("s", timeout=0)
        looked = routers[0].receive("s", timeout=None, until=lambda: True)
        outcome.set_result([looked, routers[0].subscribe("topic").wait(timeout=0.0)])

    routers[0].on("n", listen)
    routers[1].emit("n")
    assert outcome.result(5.0) == [None, False]
    pass_by(routers)


def test_an_event_of_a_callback_is_delivered_between_two_middleware(start: Start) -> None:
    """The thread of a task reads messages while it waits, and must not run its listeners then."""
    one, other = start(2)
    log: list[str] = []
    other.register("emit", lambda: other.emit("n"))
    other.register("answer", lambda: "answer")

    def wait(ctx: Context) -> None:
        one.call(1, "emit")
        one.call(1, "answer")
        log.append("middleware")

    def run() -> None:
        with use_router(one), Task() as task:
            one.on("n", lambda: task.emit("local", only_local=True))
            task.on("local", lambda: log.append(one.call(1, "answer")))
            task.use(wait).run(max_step=1)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(10.0)
    assert log == ["middleware", "answer"]


@pytest.mark.parametrize("is_called", [False, True])
def test_a_task_of_a_helper_thread_neither_ends_the_job_nor_speaks_for_the_node(
    start: Start, is_called: bool
) -> None:
    other, one = start(2)
    recorder = Recorder(other)
    one.register("evaluate", lambda: evaluate())

    def evaluate() -> int:
        with Task() as task:
            task.use(lambda ctx: ctx.update(value=ctx.total_step)).run(max_step=2)
        return task.router.node_id

    def learn(ctx: Context) -> None:
        if ctx.total_step == 1:
            found.append(help_once())
        ctx.version = ctx.total_step

    def help_once() -> int:
        return other.call(1, "evaluate") if is_called else pool.submit(evaluate).result()

    found: list[int] = []
    with node_of(one), ThreadPoolExecutor(1) as pool:
        with Task() as task:
            task.use(learn).run(max_step=4)
        recorder.wait(lambda: recorder.has_finished)
        assert (task.ctx.total_step, found) == (3, [1])
        assert "value" not in recorder.ctx[1]
        help_once()  # now it is the task of the node
        recorder.wait(lambda: recorder.ctx[1].get("value") == 1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_cannot_use_the_router_and_is_a_node_of_its_own(start: Start) -> None:
    one, other = routers = start(2)
    with node_of(one):
        assert in_a_child(lambda: sorted(current_router().labels)) == "['node.0', 'standalone']"
        for use in (
            lambda: one.emit("n"),
            lambda: one.call(1, "here"),
            lambda: one.publish("topic", 1),
            lambda: one.send("s", 1, to="node.1"),
            lambda: one.receive("s"),
            lambda: one.subscribe("topic").wait(),
        ):
            assert "TransportError: This process was forked from a node" in in_a_child(use)
        assert current_router() is one
    pass_by(routers)
    assert other.peers == (0,)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "publish", [lambda r, w: r.publish("w", w), lambda r, w: r.publish_ctx({"w": w})]
)
def test_a_forked_process_does_not_write_to_the_shared_memory_of_its_node(start, publish) -> None:
    router, _ = start(2)
    publish(router, np.zeros(MIN_SHARED_BYTES, np.uint8))
    segments = [*DIRECTORY.glob(f"{PREFIX}*-{os.getpid()}-*")]
    before = [path.read_bytes() for path in segments]
    refusal = in_a_child(lambda: publish(router, np.ones(MIN_SHARED_BYTES, np.uint8)))
    assert "TransportError: This process was forked from a node" in refusal
    assert len(segments) == 1
    assert [path.read_bytes() for path in segments] == before


def test_ctrl_c_during_wait_ready_is_raised_without_a_lock(tmp_path: Path) -> None:
    """An exception in the signal handler could leave a lock held that `close` needs."""
    [spec, *_] = ipc_specs(tmp_path, 3, "mesh")
    with closing(NodeRouter(spec, clock=InterruptedClock())) as router:
        with pytest.raises(KeyboardInterrupt) as caught:
            router.wait_ready(60.0)
        assert "wait" not in [entry.name for entry in caught.traceback]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nodes_that_close_at_once_have_connected_to_all_peers(tmp_path: Path) -> None:
    """The last messages of a node must be read before it disconnects."""

    def live(spec: NodeSpec) -> None:
        with closing(NodeRouter(spec)) as router:
            router.wait_ready(5.0)

    for turn in range(10):
        directory = tmp_path / str(turn)
        directory.mkdir(mode=0o700)
        together(*(partial(live, spec) for spec in ipc_specs(directory, 3, "mesh")))


class TestCalls:
    """Calls between nodes."""

    def test_a_call_waits_for_its_handler_to_be_registered(self, start: Start) -> None:
        routers = start(2)
        early = [routers[0].ask(1, "double", number) for number in range(3)]
        other = routers[0].ask(1, "treble", 1)
        pass_by(routers)  # so they are there
        routers[1].register("double", lambda number: 2 * number)
        assert [answer.result(10.0) for answer in early] == [0, 2, 4]
        assert not other.done()

    def test_only_so_many_calls_wait_and_not_for_long(self, clock, monkeypatch) -> None:
        monkeypatch.setattr(calls, "MAX_EARLY", 3)
        with Cluster(2, clock=clock) as cluster:
            early = [cluster.routers[0].ask(1, "double", number) for number in range(5)]
            for answer in early[3:]:
                with pytest.raises(RemoteError, match="NotRegistered on node 1"):
                    answer.result(10.0)
            assert not any(answer.done() for answer in early[:3])
            cluster.routers[1].register("here", lambda: None)
            for _ in range(int(REGISTRATION_S)):
                clock.advance(1.0)
                cluster.routers[0].call(1, "here")  # else they would lose each other
            for answer in early[:3]:
                with pytest.raises(RemoteError, match="no handler was registered in time"):
                    answer.result(10.0)

    def test_an_unknown_name_is_refused_with_a_suggestion(self, start: Start) -> None:
        routers = start(2)
        routers[1].register("sample", len)
        answer = routers[0].ask(1, "smaple", [1])
        pass_by(routers)
        routers[1].close()  # else it would wait a while for its handler
        with pytest.raises(RemoteError, match=r'Did you mean "sample"\?'):
            answer.result(10.0)

    def test_a_handler_that_raises_keyboard_interrupt_costs_no_worker(self, start: Start) -> None:
        routers = start(2)

        routers[1].register("interrupt", partial(raise_, KeyboardInterrupt()))
        routers[1].register("double", lambda number: 2 * number)
        for _ in range(NUM_WORKERS):
            with pytest.raises(RemoteError, match="KeyboardInterrupt on node 1"):
                routers[0].call(1, "interrupt", timeout=5.0)
        assert routers[0].call(1, "double", 4, timeout=5.0) == 8

    def test_a_node_answers_running_calls_before_it_leaves(self, start: Start) -> None:
        routers = start(2)
        asked, may_answer = threading.Event(), threading.Event()
        routers[1].register("slow", lambda: asked.set() or may_answer.wait(10.0))
        answer = routers[0].ask(1, "slow")
        assert asked.wait(10.0)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(routers[1].close)
            wait([closing], 0.2)  # until it would be gone if it did not wait
            may_answer.set()
            assert answer.result(10.0) is True

    def test_a_leaving_node_fails_deferred_calls(self, start: Start) -> None:
        routers = start(2)
        asked = threading.Event()
        never: Future[int] = Future()
        routers[1].register("never", lambda: asked.set() or never)
        answer = routers[0].ask(1, "never")
        assert asked.wait(10.0)
        routers[1].close()
        with pytest.raises(PeerLost, match=r"Node 1 is gone"):
            answer.result(10.0)

    def test_a_cancelled_call_does_not_keep_others_from_their_end(self, start, caplog) -> None:
        """`asyncio.wait_for` cancels the future of a call that takes too long."""
        routers = start(2)
        left = Recorder(routers[0])
        routers[1].register("never", Future)
        routers[1].register("asked", lambda: None)
        cancelled, answer = (routers[0].ask(1, "never") for _ in range(2))
        cancelled.cancel()
        routers[0].call(1, "asked")
        routers[1].close(good_bye=False)
        with pytest.raises(PeerLost, match=r"Node 1 is gone"):
            answer.result(10.0)
        left.wait(lambda: (1, "node_lost", (1,)) in left.events)
        assert "Traceback" not in caplog.text

    def test_a_new_incarnation_gets_no_answer_to_an_earlier_call(self) -> None:
        old, new, asked = Future[str](), Future[str](), threading.Semaphore(0)
        answers = iter([old, new])
        with Cluster(2, "star") as cluster:
            cluster.routers[0].register("which", lambda: asked.release() or next(answers))
            cluster.routers[1].ask(0, "which")
            assert asked.acquire(timeout=10.0)
            again = cluster.restart(1)
            again.wait_ready(10.0)
            answer = again.ask(0, "which")
            assert asked.acquire(timeout=10.0)
            old.set_result("of the former incarnation")  # its call had the same number
            new.set_result("of this one")
            assert answer.result(10.0) == "of this one"

    def test_a_quick_handler_runs_on_the_reading_thread_and_may_raise(self, start: Start) -> None:
        asker, answerer = start(2)
        answerer.register("quick", lambda: threading.current_thread().name, quick=True)
        answerer.register("slow", lambda: threading.current_thread().name)
        answerer.register("broken", lambda: 1 / 0, quick=True)
        assert "worker" in asker.call(1, "slow")
        assert "worker" not in asker.call(1, "quick")
        with pytest.raises(RemoteError, match="ZeroDivisionError on node 1"):
            asker.call(1, "broken")
        assert asker.call(1, "quick")

    def test_many_handlers_on_both_sides_may_call_each_other(self, start: Start) -> None:
        """However many of them wait, a worker is left to answer."""
        routers = start(2)

        def count_down(node: int, number: int) -> list[int]:
            if not number:
                return [node]
            return [node, *routers[node].call(1 - node, "count_down", number - 1, timeout=10.0)]

        for node, router in enumerate(routers):
            router.register("count_down", partial(count_down, node))
        with ThreadPoolExecutor(12) as pool:
            answers = [pool.submit(count_down, number % 2, 8) for number in range(12)]
            for number, answer in enumerate(answers):
                assert answer.result(15.0) == [(number + k) % 2 for k in range(9)]

    def test_calls_of_a_node_that_hang_do_not_stop_those_of_others(self, start: Start) -> None:
        routers, over = start(3), threading.Event()
        routers[0].register("hang", lambda: over.wait(30.0))
        routers[0].register("double", lambda number: 2 * number)
        hanging = [routers[1].ask(0, "hang") for _ in range(2 * NUM_WORKERS)]
        try:
            assert routers[2].call(0, "double", 4, timeout=10.0) == 8
            assert not any(answer.done() for answer in hanging)
        finally:
            over.set()

    def test_a_handler_that_hangs_keeps_its_node_only_for_so_long(self, start, caplog) -> None:
        routers, asked, over = start(3), threading.Event(), threading.Event()
        routers[0].register("hang", lambda: asked.set() or over.wait(30.0))
        try:
            answer = routers[1].ask(0, "hang")
            assert asked.wait(10.0)
            routers[1].close(good_bye=False)
            routers[0].close(good_bye=False, linger=0.1)
            assert not over.is_set()
            assert "node 0 has left, and a handler of a call still runs" in caplog.text
            with pytest.raises(PeerLost):
                answer.result(10.0)
        finally:
            over.set()

    def test_a_second_handler_of_a_name_is_refused(self, start: Start) -> None:
        (router,) = start(1)
        router.register("f", len)
        router.register("f", len)
        with pytest.raises(ConfigError, match=r"answered by another function"):
            router.register("f", sum)
