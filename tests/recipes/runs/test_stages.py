"""The seconds of each stage."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from ding_lite.parallel.observe.job_discovery import Node, RunningJob
from ding_lite.parallel.observe.metrics import Counts, NodeMetrics
from ding_lite.recipes.runs import stages
from ding_lite.recipes.runs.stages import Recorder, StageSeconds, seconds_by_stage
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


def test_the_pipeline_and_the_counts_of_the_nodes_are_recorded_ever_more_rarely(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(pid: int) -> RunningJob:
        metrics = NodeMetrics(
            node_id=0, num_nodes=2, labels=(), pid=pid, program="", began=0.0, at=0.0,
            state="running", total=Counts(ctx_out=int(clock.now())), per_second=Counts(),
        )  # fmt: skip
        nodes = (
            Node(node_id=0, labels=("learner",), state="running", metrics=metrics),
            Node(node_id=1, labels=(), state="elsewhere"),  # of which only another one tells
        )
        return RunningJob(name="", program="", num_nodes=2, age_s=clock.now(), nodes=nodes)

    router = SimpleNamespace(is_active=False)
    monkeypatch.setattr(stages, "current_router", lambda: router)
    monkeypatch.setattr(stages, "running_jobs", lambda: [job(-1), job(os.getpid())])
    seconds = StageSeconds(every=1, clock=clock, recorder=Recorder(tmp_path, lambda: "a", clock))

    def work(ctx: Context) -> None:
        clock.advance(0.5)
        ctx.finish = ctx.total_step == 2_003

    with Task() as task:
        task.use(work).use(seconds)
        task.run(max_step=4)
        assert (tmp_path / "pipeline.txt").read_text() == "a\n"
        assert not (tmp_path / "nodes.jsonl").exists()  # alone
        router.is_active = True
        task.run()
    rows = [json.loads(line) for line in (tmp_path / "nodes.jsonl").read_text().splitlines()]
    [node] = rows[0]["nodes"]
    assert (node["node"], node["labels"], node["state"]) == (0, ["learner"], "running")
    assert node["ctx_out"] == int(rows[0]["wall_s"])
    gaps = [after["wall_s"] - row["wall_s"] for row, after in pairwise(rows)]
    assert (gaps[0], gaps[-2]) == (1.0, 10.0)
    assert rows[-1]["wall_s"] == clock.now()  # the last one, due or not
