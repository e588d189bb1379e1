"""Measure the speed of a run and the memory of its process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.io.memory import process_bytes
from ding_lite.middleware.checks import Period
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware

MEASURED = ("steps_per_s", "memory_mb")
"""Metrics of this process only."""
STAGE_SECONDS = "seconds/"
"""The prefix of the metrics with the seconds of each stage."""


def is_measured(name: str) -> bool:
    """Return whether a metric measures time or memory; these are not saved in checkpoints."""
    return name in MEASURED or name.startswith(STAGE_SECONDS)


def throughput(
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Middleware:
    """Measure the env steps per second of a run, and the memory of this process.

    It measures periodically, and in the step that ends the run. Both values are metrics, so place
    it before the reports. The rate is over the whole time of the run, including evaluations. The
    memory is the resident set, in MB.

    Context:
        reads: env_step, finish, total_step
        writes: metrics (steps_per_s, memory_mb)

    Args:
        every: Steps of the pipeline from one measurement to the next. Fewer follow changes faster
            and are noisier; the period of `log` is usual.
        every_env_steps: Env steps of the ctx from one measurement to the next, instead of `every`.
        clock: The clock of the rate.

    Raises:
        ConfigError: A setting is out of range.
    """
    return _Throughput(Period(every, every_env_steps), clock)


class _Throughput:
    __name__ = "throughput"
    optional_state = True

    def __init__(self, period: Period, clock: Clock) -> None:
        self._period = period
        self._clock = clock
        self._begun: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        self._begun = None  # the time between two runs is not counted
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def __call__(self, ctx: Context) -> None:
        env_step: int = ctx.get("env_step", 0)
        if self._begun is None:
            self._begun = self._clock.now(), env_step
        if not self._period.is_due(ctx) and not ctx.finish:
            return
        then, before = self._begun
        self._begun = now, _ = self._clock.now(), env_step
        if now > then and "env_step" in ctx:
            ctx.metrics["steps_per_s"] = (env_step - before) / (now - then)
        ctx.metrics["memory_mb"] = process_bytes() / 1e6

    def state_dict(self) -> dict[str, Any]:
        return self._period.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._period.load_state_dict(state)
