"""The base of all loggers, which keeps the newest value of every metric for the next report."""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from ding_lite.errors import MissingExtraError, SaveError, pip_line
from ding_lite.middleware.checks import Period, number
from ding_lite.middleware.report.throughput import STAGE_SECONDS, is_measured
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import name_of

logger = logging.getLogger(__name__)


class Reporter(ABC):
    """The base of middleware that write metrics periodically, and when the run ends."""

    optional_state = True  # a resumed run may use other loggers
    only_fresh = False
    """Whether `write` gets only metrics that were written since the previous report, without the
    seconds of stages, which the curve and the last line of a run show."""

    def __init__(self, period: Period) -> None:
        self._period = period
        self._newest: dict[str, Any] = {}
        self._fresh: set[str] = set()
        self._counters: dict[str, int] = {}
        self._has_env_step = False
        self._has_train_iter = True
        self._is_reported = True
        self._before_end: dict[str, Any] | None = None
        """The state before the report at the end of a run, which a resumed run makes again."""

    @abstractmethod
    def write(self, metrics: dict[str, float], env_step: int) -> None:
        """Write the metrics."""

    def __enter__(self) -> Self:
        return self

    def __call__(self, ctx: Context) -> None:
        self._before_end = None
        self._newest.update(ctx.metrics)
        self._fresh.update(ctx.metrics)
        self._has_env_step, self._has_train_iter = "env_step" in ctx, "train_iter" in ctx
        self._counters = {
            "step": ctx.total_step + 1,
            "env_step": ctx.get("env_step", 0),
            "train_iter": ctx.get("train_iter", 0),
        }
        self._is_reported = False
        if self._period.is_due(ctx):
            self._report()

    def __exit__(self, *error: object) -> None:
        with ending(name_of(self), error):
            try:
                if not (self._is_reported or is_of_files(error)):
                    self._before_end = self._state()
                    self._report()
            finally:
                self.close(failed=any(error))

    def close(self, *, failed: bool) -> None:  # noqa: B027 - most loggers hold no resources
        """Release the resources of `__enter__` after the last report."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state; after an interrupted run, as if nothing was reported at its end."""
        return self._state() if self._before_end is None else self._before_end

    def _state(self) -> dict[str, Any]:
        kept = {name: number(name, v) for name, v in self._newest.items() if not is_measured(name)}
        return {
            "metrics": {
                "names": list(kept),
                "values": np.array(list(kept.values()), dtype=np.float64),  # also those not finite
            },
            "fresh": sorted(self._fresh & kept.keys()),
            "counters": dict(self._counters),
            "has_env_step": self._has_env_step,
            "is_reported": self._is_reported,
            **self._period.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._period.load_state_dict(state)
        metrics = state["metrics"]
        self._newest = dict(zip(metrics["names"], metrics["values"].tolist(), strict=True))
        self._fresh = set(state["fresh"])
        self._counters = dict(state["counters"])
        self._has_env_step = bool(state["has_env_step"])
        self._is_reported = bool(state["is_reported"])

    @property
    def _x(self) -> int:
        """The env step of the newest metrics; the step of the pipeline without env steps."""
        return self._counters.get("env_step" if self._has_env_step else "step", 0)

    def _report(self) -> None:
        names = [*self._newest]
        if self.only_fresh:
            names = [
                name for name in names if name in self._fresh and not name.startswith(STAGE_SECONDS)
            ]
        self._fresh, self._is_reported = set(), True
        self.write({name: number(name, self._newest[name]) for name in names}, self._x)


def is_of_files(error: tuple[object, ...]) -> bool:
    """Return whether a run ends as its directory is full, or was replaced by another one."""
    return any(isinstance(one, SaveError) for one in error)


@contextmanager
def ending(name: str, error: tuple[object, ...]) -> Iterator[None]:
    """Log an error of a logger as a warning if the run ends by another error, which is kept."""
    try:
        yield
    except Exception as failure:
        if not any(error):
            raise
        logger.warning("`%s` failed, too, while the run ended: %r", name, failure)


def import_logger(package: str, extra: str) -> Any:  # noqa: ANN401 - a module
    """Import the package of a logger; raise MissingExtraError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"`mw.{extra}` needs the package {package}. Install it: {pip_line(extra)}"
        ) from error
