"""The seconds of each stage."""

from __future__ import annotations

import pytest

from ding_lite.recipes.runs.stages import StageSeconds, seconds_by_stage
from ding_lite.runtime.context import Context
from ding_lite.runtime.task import Task
from ding_lite.testing import ManualClock


def test_the_seconds_of_each_stage_are_metrics_and_go_on_after_a_resume() -> None:
    clock = ManualClock()

    def learn(ctx: Context) -> None:
        clock.advance(2.0)

    def play(ctx: Context) -> None:
        clock.advance(1.0)

    seen: dict[str, float] = {}
    state = None
    for _ in range(2):
        seconds = StageSeconds(every=2, clock=clock)
        with Task() as task:
            task.use_step_wrapper(seconds.wrap)
            task.use(learn).use(play).use(seconds)
            task.use(lambda ctx: seen.update(ctx.metrics))
            if state is not None:
                task.load_state_dict(state)
            task.run(max_step=2)
            state = task.state_dict()
    assert seen["seconds/learn"] == pytest.approx(8.0)
    assert seen["seconds/play"] == pytest.approx(4.0)
    metrics = seconds_by_stage({**seen, "loss": 1.0}, wall_s=20.0)
    assert metrics == {"learn": 8.0, "play": 4.0, "other": 8.0}
    assert seconds_by_stage({"loss": 1.0}, wall_s=20.0) == {}


def test_what_reports_take_before_and_after_the_steps_is_theirs() -> None:
    clock = ManualClock()

    class Draws:
        def __enter__(self) -> None:
            clock.advance(3.0)

        def __exit__(self, *error: object) -> None:
            clock.advance(5.0)

        def __call__(self, ctx: Context) -> None:
            clock.advance(1.0)

    seconds = StageSeconds(every=2, clock=clock)
    with Task() as task:
        task.use_step_wrapper(seconds.wrap)
        task.use(lambda ctx: clock.advance(2.0)).use(seconds).use(Draws())
        task.run(max_step=2)
    assert seconds.metrics["seconds/report"] == pytest.approx(8.0)
    assert seconds.metrics["seconds/Draws"] == pytest.approx(2.0)


def test_evaluations_are_told_however_little_they_take() -> None:
    row = {"seconds/train": 99.0, "seconds/evaluate": 0.01, "seconds/stop_at": 0.01}
    metrics = {"train": 99.0, "evaluate": 0.01, "other": 0.99}
    assert seconds_by_stage(row, wall_s=100.0) == metrics
