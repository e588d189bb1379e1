"""The speed of a run, and the memory of its process."""

from __future__ import annotations

import mmap

from ding_lite import middleware as mw
from ding_lite.runtime import Context, Task
from ding_lite.testing import ManualClock
from tests.middleware.running import run_steps


def test_the_rate_is_that_since_the_last_measurement(clock: ManualClock) -> None:
    reported: list[tuple[int, float]] = []

    def step(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 8
        ctx.keep("env_step")
        clock.advance(0.5 if ctx.total_step < 4 else 0.25)

    def note(ctx: Context) -> None:
        if "steps_per_s" in ctx.metrics:
            reported.append((ctx.total_step, ctx.metrics["steps_per_s"]))

    with Task() as task:
        task.use(step).use(mw.throughput(every=2, clock=clock)).use(note)
        task.run(max_step=6)
        clock.advance(1_000.0)  # between two runs nothing is to be measured
        task.run(max_step=2)
    assert reported == [(1, 16.0), (3, 16.0), (5, 32.0), (7, 32.0)]


def test_memory_is_reported_also_without_env_steps() -> None:
    held: list[mmap.mmap] = []
    reported: list[float] = []

    def take(ctx: Context) -> None:
        # From the system itself: what the allocator has left over would cost nothing.
        held.append(mmap.mmap(-1, 64_000_000))
        held[-1].write(b"1" * 64_000_000)

    def note(ctx: Context) -> None:
        assert "steps_per_s" not in ctx.metrics
        reported.append(ctx.metrics["memory_mb"])

    run_steps(mw.throughput(every=1), note, take, steps=2)
    assert 60.0 < reported[1] - reported[0] < 70.0  # 64 MB


def test_the_step_that_ends_the_run_is_measured_too(clock: ManualClock) -> None:
    def step(ctx: Context) -> None:
        ctx.env_step = 8 * (ctx.total_step + 1)
        ctx.finish = ctx.total_step == 2
        clock.advance(0.5)

    task = run_steps(step, mw.throughput(every=1_000, clock=clock))
    assert task.ctx.metrics["steps_per_s"] == 16.0
