"""Timing and tracing the middleware of a task."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ding_lite.errors import ConfigError
from ding_lite.runtime import Context, Middleware, StepTimer, Task, Trace
from ding_lite.runtime.wrappers import Timing
from ding_lite.testing import ManualClock
from tests.threads import together


@pytest.fixture(autouse=True)
def _time_stands_still(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only `clock.advance` move the time that is measured; it starts odd on purpose."""
    clock.advance(1000.0)
    monkeypatch.setattr("ding_lite.runtime.wrappers.perf_counter", clock.now)
    for module in ("trace.timeline", "trace.file"):
        counts = partial(nanoseconds, clock)
        monkeypatch.setattr(f"ding_lite.runtime.{module}.monotonic_ns", counts)


def nanoseconds(clock: ManualClock) -> int:
    return round(clock.now() * 1e9)


def named(name: str, fn: Callable[[Context], object]) -> Middleware:
    def middleware(ctx: Context) -> None:
        fn(ctx)

    middleware.__name__ = name
    return middleware


def lasting(clock: ManualClock, name: str, *seconds: float) -> Middleware:
    """Make a middleware that takes so many seconds: the same ones, or one after another."""
    left = list(seconds)
    return named(name, lambda ctx: clock.advance(left.pop(0) if len(left) > 1 else left[0]))


def timed(timer: StepTimer, *fns: Middleware, steps: int = 1) -> list[Timing]:
    with Task() as task:
        task.use_step_wrapper(timer)
        for fn in fns:
            task.use(fn)
        task.run(max_step=steps)
    return timer.summary()


def test_each_middleware_is_timed_in_the_order_of_the_pipeline(clock: ManualClock) -> None:
    timer = StepTimer(print_per_step=0)
    timings = timed(timer, lasting(clock, "collect", 3.0), lasting(clock, "train", 1.0), steps=4)
    assert timings == [Timing("collect", 3.0, 3.0, 0.75), Timing("train", 1.0, 1.0, 0.25)]
    assert timed(StepTimer(print_per_step=0), lambda ctx: None) == [Timing("lambda", 0.0, 0.0, 0.0)]


def test_a_second_run_goes_on_with_the_same_rows_and_a_second_task_has_its_own(clock) -> None:
    timer = StepTimer(print_per_step=0)
    with Task() as task:
        task.use_step_wrapper(timer).use(lasting(clock, "train", 1.0, 2.0, 3.0, 6.0))
        task.run(max_step=2)
        clock.advance(100.0)  # between two runs nothing is timed
        task.run(max_step=2)
    assert timer.summary() == [Timing("train", 3.0, 6.0, 1.0)]
    assert timed(timer, lasting(clock, "train", 1.0), steps=2) == [Timing("train", 1.0, 1.0, 1.0)]


@pytest.mark.parametrize(("per_table", "mean"), [(0, 1.5), (4, 3.0)])
def test_the_mean_is_that_of_the_last_steps_or_of_all_since_the_last_table(clock, per_table, mean):
    text: list[str] = []
    timer = StepTimer(print_per_step=per_table, smooth_window=2, write=text.append)
    [timing] = timed(timer, lasting(clock, "train", 9.0, 0.0, 1.0, 2.0), steps=4)
    assert (timing.mean, timing.last, len(text)) == (mean, 2.0, per_table // 4)


def test_both_halves_of_each_generator_count_and_the_rest_of_the_step_does_not(clock) -> None:
    def onion(ctx: Context) -> Iterator[None]:
        clock.advance(1.0)
        yield
        clock.advance(2.0)

    async def later(ctx: Context) -> AsyncIterator[None]:
        clock.advance(3.0)
        await asyncio.sleep(0)
        yield
        clock.advance(4.0)

    def make(ctx: Context) -> Iterator[None]:
        clock.advance(5.0)
        return onion(ctx)

    train = lasting(clock, "train", 50.0)
    timings = timed(StepTimer(print_per_step=0), onion, later, make, train, steps=2)
    assert [t.name for t in timings] == ["onion", "later", "make", "train"]
    assert [t.mean for t in timings] == [3.0, 7.0, 8.0, 50.0]


def plain(fn: Middleware) -> Middleware:
    """Wrap a middleware by a function that does not show what `fn` is."""
    return lambda ctx: fn(ctx)


@pytest.mark.parametrize("async_mode", [False, True], ids=["in order", "async"])
@pytest.mark.parametrize("first", [plain, Trace], ids=["plain", "trace"])
def test_a_timer_outside_of_another_wrapper_times_every_shape(clock, tmp_path, first, async_mode):
    def function(ctx: Context) -> None:
        clock.advance(1.0)

    def onion(ctx: Context) -> Iterator[None]:
        clock.advance(1.0)
        yield
        clock.advance(2.0)

    async def coroutine(ctx: Context) -> None:
        clock.advance(5.0)

    async def async_onion(ctx: Context) -> AsyncIterator[None]:
        clock.advance(3.0)
        yield
        clock.advance(4.0)

    for fn, seconds in ((function, 1.0), (onion, 3.0), (coroutine, 5.0), (async_onion, 7.0)):
        inner = Trace(tmp_path / "trace.json") if first is Trace else first
        timer = StepTimer(print_per_step=0)
        with Task(async_mode=async_mode) as task:
            task.use_step_wrapper(inner).use_step_wrapper(timer)
            task.use(task.serial(fn) if fn is onion else fn).run(max_step=2)
        assert [timing.mean for timing in timer.summary()] == [seconds]


def test_middleware_that_run_at_the_same_time_are_timed_each_by_itself(clock) -> None:
    begun, over = threading.Barrier(2), threading.Event()

    def long(ctx: Context) -> None:
        begun.wait()
        over.wait()
        clock.advance(3.0)

    def short(ctx: Context) -> None:
        clock.advance(1.0)
        over.set()

    timer = StepTimer(print_per_step=0)
    with Task(async_mode=True) as task:
        task.use_step_wrapper(timer).use(long).use(lambda ctx: (begun.wait(), short(ctx)))
        task.run(max_step=1)
    assert [(t.name, t.mean) for t in timer.summary()] == [("long", 4.0), ("lambda", 1.0)]


def test_two_threads_that_begin_a_step_at_the_same_time_begin_one_step() -> None:
    both = threading.Barrier(2)

    class Step(int):
        """Blocks the first thread that finds the step to be new until the other does, too."""

        def __ne__(self, other: object) -> bool:
            is_new = int(self) != other
            both.wait()
            return is_new

    text: list[str] = []
    timer = StepTimer(print_per_step=100, write=text.append)
    fns = [timer(lambda ctx: None) for _ in range(2)]
    ctx = Context(total_step=Step(0))
    with timer:
        together(*(partial(fn, ctx) for fn in fns))
    assert [head.split(",")[1] for head in heads(text)] == [" 1 steps"]


def test_a_middleware_is_timed_up_to_the_exception_that_ends_its_step(clock) -> None:
    def onion(ctx: Context) -> Iterator[None]:
        clock.advance(1.0)
        try:
            yield
        finally:
            clock.advance(2.0)

    def broken(ctx: Context) -> None:
        clock.advance(4.0)
        raise LookupError("gone")

    text: list[str] = []
    timer = StepTimer(print_per_step=100, write=text.append)
    with pytest.raises(LookupError):
        timed(timer, onion, broken, lasting(clock, "never", 8.0))
    assert heads(text) == ["step timer, 1 steps, 7000.000 ms a step"]
    assert [(t.name, t.mean) for t in timer.summary()] == [("onion", 3.0), ("broken", 4.0)]


def heads(text: list[str]) -> list[str]:
    return [table.splitlines()[0] for table in text]


def test_the_table_has_a_line_a_middleware_with_mean_last_and_share(clock: ManualClock) -> None:
    text: list[str] = []
    timer = StepTimer(print_per_step=2, write=text.append)
    timed(timer, lasting(clock, "collect", 0.001, 0.005), lasting(clock, "train", 0.009), steps=2)
    assert text == [
        "step timer, 2 steps, 12.000 ms a step\n"
        "  collect      3.000 ms mean      5.000 ms last   25.0 %\n"
        "  train        9.000 ms mean      9.000 ms last   75.0 %\n"
    ]


def test_the_table_comes_every_so_many_steps_and_once_more_for_the_rest(clock) -> None:
    for steps, expected in ((8, [3, 6, 8]), (6, [3, 6]), (0, [])):
        text: list[str] = []
        timer = StepTimer(print_per_step=3, write=text.append)
        timed(timer, lasting(clock, "train", 1.0), steps=steps)
        assert [head.split(",")[1] for head in heads(text)] == [f" {n} steps" for n in expected]


def test_the_table_goes_to_standard_error_every_step_by_default(clock, capsys) -> None:
    timed(StepTimer(print_per_step=0), lasting(clock, "train", 1.0), steps=5)
    assert capsys.readouterr() == ("", "")
    timed(StepTimer(), lasting(clock, "train", 1.0), steps=3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("step timer, ") == 3
    with contextlib.redirect_stderr(None):  # as in a service
        timed(StepTimer(), lasting(clock, "train", 1.0), steps=3)


def test_the_means_go_to_the_metrics_in_milliseconds(clock: ManualClock) -> None:
    found: list[dict[str, Any]] = []
    timer = StepTimer(print_per_step=2, write=lambda text: None)
    first, second = lasting(clock, "train", 0.25), lasting(clock, "train", 0.5)
    timed(timer, first, second, lambda ctx: found.append(dict(ctx.metrics)), steps=4)
    times = {"time/train": 250.0, "time/train#2": 500.0, "time/lambda": 0.0}
    assert found == [{}, {}, times, {}]


def test_wrong_arguments_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        StepTimer(-1, 0)
    message = str(caught.value)
    assert "`print_per_step` is -1; it must be a whole number from 0 on" in message
    assert "`smooth_window` is 0; it must be a whole number from 1 on" in message
    with pytest.raises(ConfigError, match=r"is a folder; a trace is a file.*such as `trace\.json`"):
        Trace(str(tmp_path))


def traced(path: Path, *fns: Middleware, steps: int = 1, async_mode: bool = False) -> Any:
    with Task(async_mode=async_mode) as task:
        task.use_step_wrapper(Trace(path))
        for fn in fns:
            task.use(fn)
        task.run(max_step=steps)
    return slices(path)


def slices(path: Path) -> Any:
    """Read the slices of a trace, without the names of its rows."""
    records = json.loads(path.read_text(encoding="utf-8"))
    return [record for record in records if record["ph"] == "X"]


def test_a_slice_has_what_the_chrome_trace_format_asks_for(clock, tmp_path) -> None:
    path = tmp_path / "runs" / "λ" / "trace.json"
    Trace(path)
    assert list(tmp_path.iterdir()) == []
    [event] = traced(path, lasting(clock, 'tr"ain\nλ', 0.5))
    assert event == {
        "name": 'tr"ain\nλ',
        "ph": "X",
        "ts": 1000.0 * 1e6,
        "dur": 0.5 * 1e6,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "args": {"step": 0},
    }


def test_middleware_on_several_threads_have_rows_of_their_own(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    fns = [named(name, lambda ctx: both.wait()) for name in ("one", "two")]
    events = traced(tmp_path / "trace.json", *fns, steps=20, async_mode=True)
    for step in range(20):
        rows = [event["tid"] for event in events if event["args"]["step"] == step]
        assert len(rows) == len(set(rows)) == 2


def test_rows_have_the_names_of_the_node_and_its_threads(clock, tmp_path) -> None:
    path = tmp_path / "trace.json"
    traced(path, lasting(clock, "train", 1.0), lasting(clock, "evaluate", 1.0), steps=3)
    named = [r for r in json.loads(path.read_text()) if r["ph"] == "M"]
    here = (os.getpid(), threading.get_native_id())
    assert [(r["name"], r["args"].get("name"), (r["pid"], r["tid"])) for r in named] == [
        ("trace_began", None, here),
        ("process_name", "node 0", here),
        ("thread_name", "MainThread", here),
    ]


def test_coroutines_that_overlap_have_rows_of_their_own(clock: ManualClock, tmp_path: Path) -> None:
    """Slices that overlap and do not lie within each other cannot be shown in one row."""

    async def one(ctx: Context) -> None:
        clock.advance(1.0)
        await asyncio.sleep(0)
        clock.advance(1.0)

    async def other(ctx: Context) -> AsyncIterator[None]:
        clock.advance(1.0)
        await asyncio.sleep(0)
        yield
        clock.advance(1.0)

    path = tmp_path / "trace.json"
    events = traced(path, one, other, lasting(clock, "third", 1.0), steps=2, async_mode=True)
    rows = {name: {e["tid"] for e in events if e["name"] == name} for name in ("one", "other")}
    assert len(rows["one"]) == len(rows["other"]) == 1
    assert rows["one"].isdisjoint(rows["other"])
    assert max(rows["one"] | rows["other"]) < 2**32
    names = [r["args"]["name"] for r in json.loads(path.read_text()) if r["name"] == "thread_name"]
    assert [name.split()[-1] for name in names if not name.startswith("ding_lite-worker")] == [
        "one",
        "other",
    ]


@pytest.mark.parametrize("first", [plain, StepTimer(0)], ids=["plain", "timer"])
def test_coroutines_within_another_wrapper_have_rows_of_their_own(first: Any, tmp_path) -> None:
    met = asyncio.Event()

    async def one(ctx: Context) -> AsyncIterator[None]:
        await met.wait()
        yield

    async def other(ctx: Context) -> None:
        met.set()

    path = tmp_path / "trace.json"
    with Task(async_mode=True) as task:
        task.use_step_wrapper(first).use_step_wrapper(Trace(path))
        task.use(one).use(other).run(max_step=1)
    on_loop = [event["tid"] for event in slices(path) if event["tid"] >= 2**31]
    assert len(on_loop) == 3
    assert len(set(on_loop)) == 2


def test_a_second_run_appends_and_the_file_stays_valid(clock: ManualClock, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Task() as task:
        task.use_step_wrapper(Trace(path)).use(lasting(clock, "train", 1.0))
        for steps, sum_of_steps in ((0, 0), (2, 2), (1, 3), (3, 6)):
            task.run(max_step=steps)
            assert [event["args"]["step"] for event in slices(path)] == [*range(sum_of_steps)]
    records = json.loads(path.read_text())
    assert len(path.read_text().splitlines()) == 1 + len(records) + 1  # one a line, in brackets


def test_a_step_that_raises_is_in_the_file_which_stays_valid(clock, tmp_path) -> None:
    def onion(ctx: Context) -> Iterator[None]:
        yield
        raise AssertionError("the way out is an exception's")

    def broken(ctx: Context) -> None:
        clock.advance(1.0)
        raise LookupError("gone")

    path = tmp_path / "trace.json"
    with Task() as task:
        task.use_step_wrapper(Trace(path)).use(onion).use(broken)
        for runs in (1, 2):
            with pytest.raises(LookupError):
                task.run(max_step=1)
            assert [each["name"] for each in slices(path)] == ["onion", "broken", "onion"] * runs
    assert slices(path)[1]["dur"] == 1e6


def test_a_trace_of_two_tasks_is_closed_by_the_last_one(clock: ManualClock, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = Trace(path)

    def inner(ctx: Context) -> None:
        with Task() as task:
            task.use_step_wrapper(trace).use(lasting(clock, "inner", 1.0))
            task.run(max_step=1)

    with Task() as task:
        task.use_step_wrapper(trace).use(inner).use(lasting(clock, "after", 1.0))
        task.run(max_step=2)
    assert [event["name"] for event in slices(path)] == ["inner", "inner", "after"] * 2


def test_a_slice_of_no_time_has_room_for_an_arrow(clock: ManualClock, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Trace(path) as trace:
        timeline = trace._timeline
        where = timeline.slice("emit", nanoseconds(clock))
        timeline.arrow("s", "event", "0x1", where, 0)
        timeline.arrow("t", "event", "0x1", where, nanoseconds(clock))
        timeline.arrow("f", "event", "0x1", where, 10**15)
    [drawn] = slices(path)
    arrows = [r for r in json.loads(path.read_text()) if r["ph"] in "stf"]
    assert drawn["dur"] == 1.0
    assert [(a["name"], a["id"], a["ph"], a.get("bp")) for a in arrows] == [
        ("event", "0x1", "s", None),
        ("event", "0x1", "t", None),
        ("event", "0x1", "f", "e"),
    ]
    for arrow in arrows:
        assert (arrow["pid"], arrow["tid"]) == (drawn["pid"], drawn["tid"])
        assert drawn["ts"] < arrow["ts"] < drawn["ts"] + drawn["dur"]


def test_a_trace_that_cannot_be_written_any_more_ends_no_run(tmp_path, caplog) -> None:
    trace = Trace(tmp_path / "trace.json")

    def fill_the_disk(ctx: Context) -> None:
        if ctx.total_step == 1:
            full = os.open("/dev/full", os.O_RDWR)
            assert trace._timeline._file is not None
            os.dup2(full, trace._timeline._file._fd)
            os.close(full)

    with Task() as task:
        task.use_step_wrapper(trace).use(fill_the_disk).run(max_step=5)
    assert task.ctx.total_step == 4
    assert len(caplog.records) == 1
    assert "is not complete: [Errno 28] No space left on device" in caplog.text
