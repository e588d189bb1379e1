"""`mw.report`: the newest of every metric for a function."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.runtime import Context, Middleware, Task
from tests.middleware.running import run_steps

Call = tuple[int, dict[str, float]]


def train(calls: list[Call], *, steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run steps of 8 env steps; a return in the first step, an evaluation in the third."""
    rare = {0: {"return": 7.0}, 2: {"eval_return": 20.0}}

    def learn(ctx: Context) -> None:
        ctx.env_step = ctx.get("env_step", 0) + 8
        ctx.keep("env_step")
        ctx.metrics["loss"] = 1.0 / (1 + ctx.total_step)
        ctx.metrics.update(rare.get(ctx.total_step, {}))

    report = mw.report(lambda metrics, env_step: calls.append((env_step, metrics)), every=4)
    return run_steps(learn, report, steps=steps, state=state).state_dict()


def test_the_newest_of_every_metric_is_reported_however_rare_also_in_a_resumed_run() -> None:
    calls: list[Call] = []
    train(calls, steps=10)
    assert [env_step for env_step, _ in calls] == [32, 64, 80]  # the last one when the run ends
    assert [metrics["loss"] for _, metrics in calls] == [1 / 4, 1 / 8, 1 / 10]
    assert all((m["return"], m["eval_return"]) == (7.0, 20.0) for _, m in calls)
    calls.clear()
    train(calls, steps=1, state=train([], steps=3))
    assert calls == [(32, {"loss": 1 / 4, "return": 7.0, "eval_return": 20.0})]


def test_a_logger_that_fails_while_a_run_fails_does_not_hide_the_error_of_the_run(caplog, tmp_path):
    def fail(ctx: Context) -> None:
        ctx.metrics["return"] = 1.0
        if ctx.total_step == 3:
            (tmp_path / "pictures").rmdir()
            raise ValueError("a bug")

    curve = mw.curve(tmp_path / "pictures" / "curve.png")
    with pytest.raises(ValueError, match="a bug"):
        run_steps(fail, mw.report(Dashboard(), every=50), curve, steps=10)
    reported = [record.getMessage() for record in caplog.records]
    assert [one.partition(": ")[0] for one in reported] == [
        f"`{name}` failed, too, while the run ended" for name in ("curve", "report")
    ]
    assert "the dashboard is down" in reported[1]
    with pytest.raises(RuntimeError, match="the dashboard is down"):
        run_steps(mw.report(Dashboard(), every=50), steps=2)


def test_without_env_steps_the_steps_of_the_pipeline_are_counted() -> None:
    calls: list[Call] = []
    run_steps(
        lambda ctx: ctx.metrics.update(loss=math.nan),
        mw.report(lambda metrics, step: calls.append((step, metrics)), every=2),
        steps=2,
    )
    [(step, metrics)] = calls
    assert step == 2
    assert math.isnan(metrics["loss"])


def test_loggers_may_come_and_go_from_a_run_to_its_resume(tmp_path: Path) -> None:
    def run(*loggers: Middleware, state: dict[str, Any] | None = None) -> dict[str, Any]:
        def learn(ctx: Context) -> None:
            ctx.metrics["loss"] = 1.0

        return run_steps(learn, *loggers, steps=2, state=state).state_dict()

    first, own = tmp_path / "first.jsonl", tmp_path / "own.jsonl"
    state = run(mw.jsonl(first, every=1), mw.curve(tmp_path / "a.png"))
    assert run(state=state)["total_step"] == 3
    more = mw.jsonl(own, every=1), mw.jsonl(first, every=1), mw.report(lambda *_: None, every=1)
    state = run(*more, state=state)
    run(mw.jsonl(first, every=1), state=state)
    assert [len(file.read_text().splitlines()) for file in (first, own)] == [6, 2]

    with Task() as task:
        task.use(mw.count_collected())
        with pytest.raises(CheckpointError, match=r"Only saved: none\. .*: 'count_coll"):
            task.load_state_dict(state)


async def later(metrics: dict[str, float], env_step: int) -> None:
    raise AssertionError


class Dashboard:
    def __call__(self, metrics: dict[str, float], env_step: int) -> None:
        raise RuntimeError("the dashboard is down")


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ("loss", "a str"),
        (lambda metrics: None, r".*function that cannot be called.* \(too many positional argum"),
        (later, "an `async` function, which nothing would wait for"),
        (Dashboard, "the class Dashboard, and no instance of it"),
    ],
)
def test_what_cannot_be_called_is_refused(wrong: Any, fault: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"got {fault}.*; a function was exp.*fn\(metrics, env_s"
    ):
        mw.report(wrong, every=1)
    mw.report(Dashboard(), every=1)
