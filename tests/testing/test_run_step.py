"""One step of a middleware, and what it did to the ctx."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ding_lite.runtime.context import Context
from ding_lite.testing import StepRecord, run_step


def test_reading_writing_and_keeping_are_told_apart() -> None:
    def count(ctx: Context) -> None:
        ctx.seen = ctx.get("seen", 0) + ctx.step_size
        ctx.keep("seen")
        ctx.metrics["seen"] = ctx.seen

    ctx, record = run_step(count, step_size=2)
    assert ctx.seen == 2
    assert record == StepRecord(
        reads={"seen", "step_size"}, writes={"seen", "metrics"}, keeps={"seen"}, metrics={"seen"}
    )


@pytest.mark.parametrize(
    "read",
    [
        lambda ctx: ctx.loss,
        lambda ctx: ctx["loss"],
        lambda ctx: ctx.get("loss"),
        lambda ctx: "loss" in ctx,
        lambda ctx: ctx.setdefault("loss", 1.0),
    ],
)
def test_every_way_of_reading_counts(read: object) -> None:
    def reader(ctx: Context) -> None:
        read(ctx)  # type: ignore[operator]

    assert run_step(reader, loss=0.5)[1] == StepRecord(reads={"loss"})


def test_what_was_written_in_the_step_is_not_read_from_outside() -> None:
    def writer(ctx: Context) -> None:
        ctx.loss = 1.0
        ctx.loss += 1.0

    assert run_step(writer)[1] == StepRecord(writes={"loss"})


@pytest.mark.parametrize(
    ("write", "record"),
    [
        (lambda ctx: setattr(ctx, "finish", True), StepRecord(writes={"finish"})),
        (lambda ctx: ctx.update(step=1), StepRecord(writes={"step"})),
        (lambda ctx: ctx.setdefault("new", 1), StepRecord(reads={"new"}, writes={"new"})),
        (lambda ctx: ctx.pop("loss"), StepRecord(reads={"loss"}, writes={"loss"})),
        (lambda ctx: ctx.pop("new", None), StepRecord()),
    ],
)
def test_every_way_of_writing_counts(write: Callable[[Context], None], record: StepRecord) -> None:
    assert run_step(lambda ctx: write(ctx), loss=0.5)[1] == record


@pytest.mark.parametrize(
    ("write", "is_read"),
    [
        (lambda metrics: metrics.update(loss=1.0), False),
        (lambda metrics: metrics.__ior__({"loss": 1.0}), False),
        (lambda metrics: metrics.__delitem__("loss"), False),
        (lambda metrics: metrics.pop("loss"), True),
        (lambda metrics: metrics.setdefault("new", 1.0), True),
    ],
)
def test_every_way_of_writing_a_metric_counts(write, is_read: bool) -> None:
    _, record = run_step(lambda ctx: write(ctx.metrics), metrics={"loss": 0.5})
    assert record.writes == {"metrics"}
    assert record.reads == ({"metrics"} if is_read else set())
    assert record.metrics <= {"loss", "new"}
    assert len(record.metrics) == 1


def test_metrics_are_read_when_they_are_looked_at() -> None:
    looks: list[Any] = [lambda ctx: {**ctx.metrics}, lambda ctx: json.dumps(ctx.metrics)]

    def read(ctx: Context) -> None:
        looks.pop()(ctx)

    while looks:
        assert run_step(read, metrics={"loss": 0.5})[1] == StepRecord(reads={"metrics"})


def test_both_halves_of_a_generator_count() -> None:
    def onion(ctx: Context) -> Iterator[None]:
        ctx.before = 1
        yield
        ctx.after = ctx.total_step

    ctx, record = run_step(onion, total_step=4)
    assert (ctx.before, ctx.after) == (1, 4)
    assert record == StepRecord(reads={"total_step"}, writes={"before", "after"})


def test_coroutines_and_asynchronous_generators_are_middleware_too() -> None:
    async def coroutine(ctx: Context) -> None:
        ctx.done = ctx.given

    async def generator(ctx: Context) -> AsyncIterator[None]:
        ctx.before = ctx.given
        yield
        ctx.after = ctx.given

    assert run_step(coroutine, given=1)[1] == StepRecord(reads={"given"}, writes={"done"})
    record = run_step(generator, given=1)[1]
    assert record == StepRecord(reads={"given"}, writes={"before", "after"})
