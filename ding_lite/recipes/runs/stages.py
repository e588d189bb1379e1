"""Record a run while it trains: seconds of each stage, its pipeline, counts of its nodes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.io.files import naming
from ding_lite.middleware.checks import Period
from ding_lite.middleware.report.throughput import STAGE_SECONDS
from ding_lite.parallel.observe.job_discovery import running_jobs
from ding_lite.recipes.runs.directory import NODES, PIPELINE
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router
from ding_lite.runtime.middleware import Middleware, around, name_of

_SMALL = 0.01
"""Stages with a smaller share of the time are reported as `other`, except for evaluations."""
_REPORT, _EVALUATE = "report", "evaluate"
_PERIOD_S, _PERIOD_SHARE = 1.0, 0.01
"""The minimum period of the records of nodes: in seconds, and as a share of the job's age."""


class StageSeconds:
    """Sums the seconds of each middleware, and reports them as metrics.

    `wrap` is a step wrapper. The object itself is a middleware that is placed before the reports.
    Before a stage, but at most once a second, `check` is called.
    The time of reports before the first step and after the last one is the stage `report`.
    """

    __name__ = "stage_seconds"
    optional_state = True

    def __init__(
        self,
        *,
        every: int,
        clock: Clock = SYSTEM_CLOCK,
        recorder: Recorder | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._period = Period(every)
        self._clock = clock
        self._recorder = recorder
        self._check = check
        self._checked_at = -math.inf
        self.seconds_before = 0.0
        """The seconds of a resumed run until its checkpoint."""
        self._made_at = clock.now()
        self._seconds: dict[str, float] = {}
        self._entered_at: float | None = None
        """The start of a run; None once its first middleware has begun."""
        self._left_at: float | None = None

    def __enter__(self) -> Self:
        """Begin to measure the reports, which are entered next."""
        self._entered_at, self._left_at = self._clock.now(), None
        if self._recorder is not None:
            self._recorder.begin()
        return self

    def __exit__(self, *error: object) -> None:
        """Add the time of the reports since the last step; they are closed before this."""
        if self._left_at is not None:
            self._add(_REPORT, self._clock.now() - self._left_at)

    def wrap(self, fn: Middleware) -> Middleware:
        """Return the same middleware with its time measured."""
        watch = _Watch(self, name_of(fn))
        return around(fn, lambda ctx: watch)

    def __call__(self, ctx: Context) -> None:
        """Write the seconds so far, periodically and in the step that ends the run."""
        if self._period.is_due(ctx) or ctx.finish:
            ctx.metrics.update(self.metrics)
            if self._recorder is not None:
                self._recorder.record(is_last=ctx.finish)

    @property
    def metrics(self) -> dict[str, float]:
        """The seconds so far, by the names of their metrics."""
        return {f"{STAGE_SECONDS}{name}": round(s, 6) for name, s in self._seconds.items()}

    def begin(self) -> float:
        """Return the time; the time since the reports were entered is added to their stage."""
        now = self._clock.now()
        if now >= self._checked_at + _PERIOD_S:
            self._checked_at = now
            self._check()
        if self._entered_at is not None:
            self._add(_REPORT, now - self._entered_at)
            self._entered_at = None
        return now

    def end(self, name: str, began: float) -> None:
        self._left_at = self._clock.now()
        self._add(name, self._left_at - began)

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def state_dict(self) -> dict[str, Any]:
        so_far = self.seconds_before + self._clock.now() - self._made_at
        return {"seconds": dict(self._seconds), "so_far": so_far}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds.clear()
        self._seconds.update(state["seconds"])
        self.seconds_before = float(state["so_far"])


class Recorder:
    """Writes the pipeline of a run and the counts of its nodes into its directory.

    The counts of the nodes on this machine are read from the files that they write once a second,
    so no messages are sent. The period of the records is a second at first, and later a hundredth
    of the job's age, which gives about a thousand lines in a day.
    """

    def __init__(self, directory: Path, draw: Callable[[], object], clock: Clock) -> None:
        self._directory = directory
        self._draw = draw
        self._clock = clock
        self._due = self._clock.now() + _PERIOD_S

    def begin(self) -> None:
        file = self._directory / PIPELINE
        with naming(file):
            file.write_text(f"{self._draw()}\n", encoding="utf-8")

    def record(self, *, is_last: bool) -> None:
        """Write the counts of the nodes, if there are several nodes and a record is due."""
        now = self._clock.now()
        if (now < self._due and not is_last) or not current_router().is_active:
            return
        self._due = now + _PERIOD_S
        for job in running_jobs():
            if any(node.metrics and node.metrics.pid == os.getpid() for node in job.nodes):
                self._due = now + max(_PERIOD_S, _PERIOD_SHARE * job.age_s)
                nodes = [
                    {
                        "node": node.node_id,
                        "labels": node.labels,
                        "state": node.state,
                        **dataclasses.asdict(node.metrics.total),
                    }
                    for node in job.nodes
                    if node.metrics is not None
                ]
                file = self._directory / NODES
                with naming(file), file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps({"wall_s": round(job.age_s, 3), "nodes": nodes}) + "\n")


class _Watch(AbstractContextManager[None]):
    def __init__(self, stages: StageSeconds, name: str) -> None:
        self._stages, self._name = stages, name

    def __enter__(self) -> None:
        self._began = self._stages.begin()

    def __exit__(self, *error: object) -> None:
        self._stages.end(self._name, self._began)


def seconds_by_stage(row: Mapping[str, Any], *, wall_s: float) -> dict[str, float]:
    """Return the seconds of each large stage from a row of metrics, and of `other` stages."""
    seconds = {
        k.removeprefix(STAGE_SECONDS): v for k, v in row.items() if k.startswith(STAGE_SECONDS)
    }
    large = {
        name: round(s, 3)
        for name, s in seconds.items()
        if s >= _SMALL * wall_s or name.startswith(_EVALUATE)
    }
    return {**large, "other": round(max(0.0, wall_s - sum(large.values())), 3)} if seconds else {}
