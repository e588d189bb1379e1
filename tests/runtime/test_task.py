"""The task: steps, errors, the eager form, labels, resources, other nodes."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import pytest
from hypothesis import given, strategies as st

from ding_lite.errors import CheckpointError, ConfigError, DeadlineExceeded, MiddlewareError
from ding_lite.runtime import Context, ParallelContext, Task, current_router, use_router
from ding_lite.testing import Cluster, ManualClock


def onion(log: list[str], name: str) -> Callable[[Context], Iterator[None]]:
    def _onion(ctx: Context) -> Iterator[None]:
        log.append(name)
        yield
        log.append(name.upper())

    return _onion


make: Any = Task


def boom(ctx: Context) -> None:
    raise ZeroDivisionError


class TestSteps:
    """The steps of a run, and its end."""

    def test_a_step_is_an_onion(self) -> None:
        log: list[str] = []
        with Task() as task:
            task.use(onion(log, "a")).use(lambda ctx: log.append("-")).use(onion(log, "b"))
            task.run(max_step=2)
        assert "".join(log) == "a-bBA" * 2

    @given(st.lists(st.integers(0, 4), max_size=4))
    def test_a_further_run_continues_where_the_last_one_ended(self, runs: list[int]) -> None:
        steps: list[int] = []
        with Task() as task:
            task.use(lambda ctx: steps.append(ctx.total_step))
            for num_steps in runs:
                task.run(max_step=num_steps)
                assert task.finish
        assert steps == list(range(sum(runs)))

    @pytest.mark.parametrize("end", ["ctx", "task"])
    def test_finish_lets_the_step_end(self, end: str) -> None:
        log: list[str] = []

        def stop(ctx: Context) -> None:
            if ctx.total_step == 2:
                (ctx if end == "ctx" else task).finish = True

        with Task() as task:
            task.use(onion(log, "a")).use(stop).use(lambda ctx: log.append("-")).run()
        assert "".join(log) == "a-A" * 3

    def test_the_way_out_of_the_last_step_sees_that_it_is_the_last(self) -> None:
        seen: list[tuple[bool, bool]] = []

        def watch(ctx: Context) -> Iterator[None]:
            before = ctx.finish
            yield
            seen.append((before, ctx.finish))

        with Task() as task:
            task.use(watch).run(max_step=3)
        assert seen == [(False, False), (False, False), (False, True)]

    def test_a_finish_from_elsewhere_is_seen_on_a_way_out(self) -> None:
        """Set by another thread when the generator has run already: one more step tells it."""
        seen: list[bool] = []

        def outer(ctx: Context) -> Iterator[None]:
            yield
            if ctx.total_step == 2:
                other = threading.Thread(target=lambda: setattr(task, "finish", True))
                other.start()
                other.join()

        def watch(ctx: Context) -> Iterator[None]:
            yield
            seen.append(ctx.finish)

        with Task() as task:
            task.use(outer).use(watch).run()
        assert seen == [False, False, False, True]

    def test_a_finish_of_the_way_out_itself_ends_the_run_with_its_step(self) -> None:
        def stop(ctx: Context) -> Iterator[None]:
            yield
            ctx.finish = True

        with Task() as task:
            task.use(stop).run()
        assert task.ctx.total_step == 0

    def test_the_first_ctx_can_be_given(self) -> None:
        ctx = Context(total_step=10, lr=0.1)
        with Task(ctx=ctx) as task:
            assert task.ctx is ctx
            task.run(max_step=2)
            assert task.ctx.total_step == 11
        with Task(ctx={"lr": 0.1}) as task:
            assert task.ctx.lr == 0.1

    def test_a_context_of_another_task_is_copied_with_what_it_keeps(self) -> None:
        def count(ctx: Context) -> None:
            ctx.count = ctx.get("count", 0) + 1
            ctx.keep("count")

        first = Task().use(count)
        first.run(max_step=3)
        second = Task(ctx=first.ctx).use(count)
        second.run(max_step=3)
        assert (first.ctx.count, second.ctx.count) == (3, 6)

    @pytest.mark.parametrize(
        ("act", "error", "message"),
        [
            (lambda task: make(n_async_workers=0), ConfigError, "`n_async_workers` is 0; it must"),
            (lambda task: make(async_mode="x"), ConfigError, "`async_mode` is 'x'; it must be one"),
            (lambda task: make(attach_timeout=-1.0), ConfigError, "`attach_timeout` is -1.0; it"),
            (lambda task: make(ctx=5), ConfigError, "`ctx` is 5; a Context or a dict was expected"),
            (lambda task: make(attach_callback=5), ConfigError, "`attach_callback` is 5; a functi"),
            (lambda task: task.run(max_step=-1), ConfigError, "`max_step` is -1; it must be a who"),
            (lambda task: task.run(), MiddlewareError, "no middleware.*would never end"),
            (lambda task: task.forward(boom, {"k": 1}), ConfigError, "`ctx` is a dict; a Context"),
            (lambda task: task.load_state_dict(None), CheckpointError, "of a task: it is None. Gi"),
            (lambda task: task.wait_parallel_ctx(), ConfigError, "this task runs alone"),
            (lambda task: task.wait_parallel_ctx(["x"]), ConfigError, "`newer_than` is .'x'.; a d"),
            (lambda task: Task(attach_callback=print).run(1), ConfigError, "runs alone"),
        ],
    )
    def test_a_wrong_argument_is_refused(self, act, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            act(Task())

    @pytest.mark.parametrize(
        ("what", "mend"),
        [
            ("use", "call it before `task.run`"),
            ("use_step_wrapper", "call it before `task.run`"),
            ("run", "Run another task"),
            ("sync", "leave the call out"),
            ("backward", "leave the call out"),
            ("renew", "leave the call out"),
        ],
    )
    def test_changing_a_running_task_is_refused(self, what: str, mend: str) -> None:
        argument: list[Any] = [boom] if what.startswith("use") else []
        message = rf"^`task\.{what}` was called while the task runs\. .*{mend}"

        def change(ctx: Context) -> None:
            getattr(task, what)(*argument)

        with Task() as task, pytest.raises(MiddlewareError, match=message):
            task.use(change).run(max_step=1)


class TestErrors:
    """The way of an exception through the open generators."""

    def test_it_gets_one_note_that_says_where(self) -> None:
        log: list[str] = []
        with Task() as task, pytest.raises(ZeroDivisionError) as caught:
            task.use(onion(log, "a")).use(boom).use(onion(log, "b")).run(max_step=3)
        assert caught.value.__notes__ == [
            "in middleware `boom` (2nd of 3), step 0, node 0, labels: node.0, standalone"
        ]
        assert log == ["a"]

    def test_an_exception_of_the_way_out_is_noted_with_its_own_middleware(self) -> None:
        def _late(ctx: Context) -> Iterator[None]:
            yield
            raise ZeroDivisionError

        class Late:
            def __call__(self, ctx: Context) -> Iterator[None]:
                yield
                raise ZeroDivisionError

        for late, name in ((_late, "late"), (Late(), "Late")):
            log: list[str] = []
            with Task() as task, pytest.raises(ZeroDivisionError) as caught:
                task.use(onion(log, "a")).use(late).use(onion(log, "b")).run(max_step=3)
            assert caught.value.__notes__[0].startswith(
                f"in middleware `{name}` (2nd of 3), step 0"
            )
            assert log == ["a", "b", "B"]

    def test_the_note_on_a_function_that_is_there_twice_gives_both_places(self) -> None:
        def bad(ctx: Context) -> None:
            if ctx.setdefault("calls", 1) == 2:
                raise ValueError("no")
            ctx.calls = 2

        with Task() as task, pytest.raises(ValueError, match="no") as caught:
            task.use(bad).use(bad).run(max_step=1)
        assert caught.value.__notes__[0].startswith("in middleware `bad or bad#2`, step 0")

    @pytest.mark.parametrize("async_mode", [False, True])
    def test_an_exception_that_refuses_notes_is_raised_as_it_is(self, async_mode: bool) -> None:
        class WithNotes(Exception):
            __notes__: Any = 3

        def fail(ctx: Context) -> None:
            raise WithNotes

        task = Task(async_mode=async_mode).use(fail)
        with pytest.raises(WithNotes):
            task.run(max_step=1)

    def test_each_open_generator_may_handle_it_and_the_outer_ones_go_on(self) -> None:
        log: list[str] = []

        def guard(ctx: Context) -> Iterator[None]:
            try:
                yield
            except ZeroDivisionError:
                log.append("handled")

        with Task() as task:
            task.use(onion(log, "a")).use(guard).use(onion(log, "b")).use(boom).run(max_step=2)
        assert log == ["a", "b", "handled", "A"] * 2

    def test_what_a_generator_raises_instead_travels_on(self) -> None:
        def translate(ctx: Context) -> Iterator[None]:
            try:
                yield
            except ZeroDivisionError as error:
                raise ValueError("translated") from error

        with Task() as task, pytest.raises(ValueError, match=r"translated") as caught:
            task.use(onion([], "a")).use(translate).use(boom).run(max_step=1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.__notes__[0].startswith("in middleware `translate` (2nd of 3)")


class TestByHand:
    """The eager form."""

    def test_forward_backward_and_renew_drive_an_onion(self) -> None:
        log: list[str] = []
        with Task() as task:
            task.forward(onion(log, "a")).forward(onion(log, "b"))
            assert log == ["a", "b"]
            task.backward()
            assert log == ["a", "b", "B", "A"]
            assert task.ctx.total_step == 0
            task.renew()
            assert task.ctx.total_step == 1

    def test_a_run_goes_on_with_the_step_that_renew_has_begun(self) -> None:
        steps: list[int] = []
        with Task() as task:
            task.forward(boom_free).renew()
            task.use(lambda ctx: steps.append(ctx.total_step)).run(max_step=2)
        assert steps == [1, 2]

    def test_a_state_of_the_eager_form_is_that_of_the_last_whole_step(self) -> None:
        with Task() as task:
            task.forward(boom_free).renew()
            state = task.state_dict()
        with Task() as resumed:
            resumed.load_state_dict(state)
            resumed.use(boom_free).run(max_step=1)
        assert resumed.ctx.total_step == 1

    def test_forward_takes_another_ctx(self) -> None:
        other = Context()
        with Task() as task:
            task.forward(lambda ctx: setattr(ctx, "x", 1), other)
            assert "x" not in task.ctx
        assert other.x == 1

    def test_a_function_made_for_one_step_does_not_stay_in_memory(self) -> None:
        class Batch:
            """Data that such a function may hold."""

        def learn(batch: Batch, ctx: Context) -> None: ...

        batch = Batch()
        gone = weakref.ref(batch)
        with Task() as task:
            task.forward(partial(learn, batch)).renew()
            del batch
            assert gone() is None

    def test_in_async_mode_forward_starts_and_sync_waits(self) -> None:
        go = threading.Event()

        def slow(ctx: Context) -> None:
            go.wait(10.0)
            ctx.slow = True

        with Task(async_mode=True) as task:
            task.forward(slow)
            assert "slow" not in task.ctx
            go.set()
            task.sync()
            assert task.ctx.slow

    def test_an_exception_of_forward_is_noted_and_closes_the_block(self) -> None:
        log: list[str] = []

        def closing(ctx: Context) -> Iterator[None]:
            try:
                yield
            finally:
                log.append("closed")

        with pytest.raises(ZeroDivisionError) as caught, Task() as task:
            task.forward(closing).forward(boom)
        assert caught.value.__notes__[0].startswith("in middleware `boom`, step 0")
        assert log == ["closed"]

    def test_forward_inside_of_a_running_middleware_joins_its_step(self) -> None:
        log: list[str] = []
        with Task() as task:
            task.use(lambda ctx: task.forward(onion(log, "a"), ctx))
            task.use(lambda ctx: log.append("-")).run(max_step=1)
        assert log == ["a", "-", "A"]


def boom_free(ctx: Context) -> None: ...


class Resource:
    """A middleware that lives as long as a run."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def __call__(self, ctx: Context) -> None:
        self.log.append(self.name)

    def __enter__(self) -> Self:
        self.log.append(f"+{self.name}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        self.log.append(f"-{self.name}" + (f":{kind.__name__}" if kind else ""))
        return True  # whatever it says, an exception is not swallowed


class AsyncResource(Resource):
    """The same as an asynchronous context manager: one asyncio task enters and leaves it."""

    async def __call__(self, ctx: Context) -> None:  # type: ignore[override]
        super().__call__(ctx)

    async def __aenter__(self) -> Self:
        self.entered_by = asyncio.current_task()
        return super().__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        assert asyncio.current_task() is self.entered_by
        return super().__exit__(kind, *rest)


@pytest.fixture(params=[Resource, AsyncResource])
def resource(request: pytest.FixtureRequest) -> Any:
    return request.param


class TestResources:
    """Middleware that are context managers live as long as a run."""

    def test_they_are_entered_and_left_once_a_run_in_reverse_order(self, resource) -> None:
        log: list[str] = []
        with Task() as task:
            task.use(resource(log, "a")).use(resource(log, "b"))
            task.run(max_step=2)
            assert log == ["+a", "+b", "a", "b", "a", "b", "-b", "-a"]
            task.run(max_step=1)
        assert log[8:] == ["+a", "+b", "a", "b", "-b", "-a"]

    def test_they_see_the_exception_and_cannot_swallow_it(self, resource) -> None:
        log: list[str] = []
        with Task() as task, pytest.raises(ZeroDivisionError):
            task.use(resource(log, "a")).use(boom).run(max_step=1)
        assert log == ["+a", "a", "-a:ZeroDivisionError"]

    def test_those_entered_are_left_when_a_later_one_cannot_open(self, resource) -> None:
        log: list[str] = []

        class Broken(Resource):
            def __enter__(self) -> Self:
                raise OSError("disk full")

        with Task() as task, pytest.raises(OSError, match=r"disk full"):
            task.use(resource(log, "a")).use(Broken(log, "b")).run(max_step=1)
        assert log == ["+a", "-a:OSError"]

    def test_by_hand_they_live_until_the_block_ends(self) -> None:
        log: list[str] = []
        by_hand = Resource(log, "b")
        with Task() as task:
            task.use(Resource(log, "a"))
            task.forward(by_hand).renew().forward(by_hand)
            assert log == ["+a", "+b", "b", "b"]
        assert log[4:] == ["-b", "-a"]
        log.clear()
        with Task() as task:
            task.use(task.serial(boom_free, task.parallel(Resource(log, "c"))))
            task.run(max_step=1)
        assert log == ["+c", "c", "-c"]

    def test_one_that_cannot_close_raises_and_holds_up_nothing_else(self) -> None:
        log: list[str] = []

        class Broken(Resource):
            def __exit__(self, *_: object) -> bool:
                raise OSError("disk full")

        def by_hand() -> None:
            with Task(async_mode=True) as task:
                task.use(Resource(log, "a")).use(Broken(log, "b"))
                task.forward(boom_free).sync()

        with pytest.raises(OSError, match=r"disk full"):
            by_hand()
        assert log == ["+a", "+b", "-a:OSError"]
        assert not [t for t in threading.enumerate() if t.name.startswith("ding_lite")]

    def test_without_a_with_block_a_run_closes_everything(self, resource) -> None:
        log: list[str] = []
        task = Task(async_mode=True)
        task.use(resource(log, "a"))
        task.run(max_step=1)
        assert log == ["+a", "a", "-a"]
        assert not [t for t in threading.enumerate() if t.name.startswith("ding_lite")]
        task.run(max_step=1)
        assert task.ctx.total_step == 1


def test_a_task_has_labels_of_its_own_beside_those_of_its_node() -> None:
    assert Task(async_mode=True, labels="gpu").labels == {"standalone", "node.0", "async", "gpu"}
    assert Task().match_labels("stand*")
    assert not Task().match_labels(["learner", "node.1"])


def on_nodes(num_nodes: int, main: Callable[[int], object]) -> list[Any]:
    """Return the results of `main(node_id)` on all nodes of a cluster."""
    with Cluster(num_nodes) as cluster:
        return cluster.run(lambda: main(current_router().node_id))


class TestSeveralNodes:
    """Messages between the tasks of several nodes."""

    def test_a_task_that_was_made_before_its_node_is_refused(self) -> None:
        task = Task().use(boom_free)  # as at the top level of a program
        with Cluster(2) as cluster, use_router(cluster.routers[0]):
            for start in (lambda: task.run(max_step=1), task.sync):
                with pytest.raises(ConfigError, match="Make the task inside of `main`"):
                    start()
        task.run(max_step=1)
        assert task.ctx.total_step == 0

    @pytest.mark.parametrize("by", ["finish", "max_step"])
    def test_the_end_on_one_node_finishes_all_at_the_end_of_their_steps(self, by: str) -> None:
        def main(node_id: int) -> tuple[bool, bool, int]:
            def end(ctx: Context) -> None:
                ctx.finish = by == "finish" and node_id == 1 and ctx.total_step == 5

            max_step = 6 if by == "max_step" and node_id == 1 else None
            with Task() as task:
                task.use(end).run(max_step=max_step)
            return task.finish, task.parallel_ctx.finish, task.ctx.total_step

        ends = on_nodes(3, main)
        assert [end[:2] for end in ends] == [(True, True)] * 3
        assert ends[1][2] == 5

    def test_the_ctx_of_one_node_reaches_the_parallel_ctx_of_the_other(self) -> None:
        def learn(ctx: Context) -> None:
            ctx.train_iter = ctx.total_step + 1
            ctx.state_dict = {"w": [ctx.train_iter]}
            ctx.transitions = "stay home"

        seen = [0]

        def evaluate(task: Task, ctx: Context) -> None:
            latest = task.wait_parallel_ctx(newer_than={"train_iter": seen[-1]}, timeout=10.0)
            if latest is not None:
                newest = latest.of("node.0")
                assert newest.state_dict == {"w": [newest.train_iter]}
                assert "transitions" not in newest
                seen.append(newest.train_iter)
            ctx.finish = seen[-1] >= 50

        def main(node_id: int) -> None:
            with Task() as task:
                task.use(learn, filter_labels="node.0")
                task.use(partial(evaluate, task), filter_labels="node.1").run()

        on_nodes(2, main)
        assert seen == sorted(set(seen))
        assert seen[-1] >= 50

    def test_events_reach_the_other_nodes_and_only_where_asked(self) -> None:
        def main(node_id: int) -> list[str]:
            received: list[str] = []
            with Task() as task:
                task.on("e", received.append)
                if node_id == 0:
                    task.emit("e", "all")
                    task.emit("e", "here", only_local=True)
                    task.emit("e", "there", only_remote=True)
                    task.emit("last")
                else:
                    task.on("last", lambda: setattr(task, "finish", True))
                    task.use(lambda ctx: task.wait_for("never")).run()
            return received

        assert on_nodes(2, main) == [["all", "here"], ["all", "there"]]

    def test_a_job_that_has_ended_already_runs_no_step(self) -> None:
        has_ended = threading.Event()
        with Cluster(2) as cluster:
            first, second = cluster.routers
            second.on("finish", has_ended.set)
            with use_router(first), Task() as task:
                task.finish = True
            assert has_ended.wait(10.0)
            with use_router(second):
                Task().use(boom).run()

    def test_a_node_that_attaches_gets_the_newest_ctx_before_its_first_step(self) -> None:
        attached = threading.Event()

        def main(node_id: int) -> Any:
            log: list[Any] = []

            def adopt(ctx: ParallelContext) -> None:
                log.append(ctx.train_iter)
                attached.set()

            if node_id == 0:
                with Task(ctx={"train_iter": 7}) as task:
                    task.ctx.keep("train_iter")
                    task.use(lambda ctx: attached.wait(0.001) and setattr(ctx, "finish", True))
                    task.run()
            else:
                with Task(attach_callback=adopt, attach_timeout=10.0) as task:
                    task.use(lambda ctx: log.append("step")).run(max_step=1)
            return log

        assert on_nodes(2, main)[1][:1] == [7]

    def test_attaching_to_a_silent_job_fails_in_time(self, clock: ManualClock) -> None:
        with Cluster(2) as cluster, use_router(cluster.routers[1]), ThreadPoolExecutor(1) as pool:
            passing = pool.submit(lambda: (clock.until_waiting(), clock.advance(5.0)))
            task = Task(attach_callback=print, attach_timeout=5.0, clock=clock)
            with pytest.raises(DeadlineExceeded, match=r"No other node sent a ctx in time"):
                task.use(boom).run(max_step=1)
            passing.result(10.0)

    @pytest.mark.parametrize("known", [None, "3"])
    def test_values_that_cannot_be_compared_are_refused(self, known: object) -> None:
        with Cluster(2) as cluster, use_router(cluster.routers[1]), Task() as task:
            cluster.routers[0].publish_ctx({"train_iter": 3})
            assert task.wait_parallel_ctx(timeout=10.0) is task.parallel_ctx
            with pytest.raises(ConfigError, match=r"compares `train_iter` with .*has sent 3;"):
                task.wait_parallel_ctx(newer_than={"train_iter": known})
