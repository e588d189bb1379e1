"""Write a run's metrics for TensorBoard."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any, Self

from ding_lite.errors import ConfigError, MiddlewareError
from ding_lite.middleware.checks import due, number
from ding_lite.middleware.report.log import pack_metrics, unpack_metrics
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all


def tensorboard(directory: str | os.PathLike[str], *, every: int = 100) -> Middleware:
    """Write the newest metrics as TensorBoard scalars over env steps.

    Context:
        reads: env_step, metrics, total_step

    Args:
        directory: Where the event file goes; made when the run begins, if need be.
        every: Steps from one point to the next. Fewer draws finer and costs about 50 us a
            point and metric.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
    """
    check_all(at_least(1, every=every))
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"The TensorBoard directory {path} is a file. Name a directory.")
    return _TensorBoard(path, every)


class _TensorBoard:
    __name__ = "tensorboard"

    def __init__(self, directory: Path, every: int) -> None:
        self._directory = directory
        self._every = every
        self._file: _EventFile | None = None
        self._fresh: dict[str, Any] = {}
        self._x = 0

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = _EventFile(self._directory, begin=self._x + 1)
        return self

    def __call__(self, ctx: Context) -> None:
        self._fresh.update(ctx.metrics)
        self._x = ctx.get("env_step", ctx.total_step + 1)
        if due(ctx, self._every):
            self._write()

    def __exit__(self, *error: object) -> None:
        try:
            self._write()
        finally:
            if self._file is not None:
                self._file.close()
            self._file = None

    def state_dict(self) -> dict[str, Any]:
        """Return what the next points depend on; those before it are on disk then."""
        if self._file is not None:
            self._file.flush()
        return {"x": self._x, "metrics": pack_metrics(self._fresh)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; TensorBoard forgets points that came later."""
        self._x = int(state["x"])
        self._fresh = unpack_metrics(state["metrics"])

    def _write(self) -> None:
        if self._file is None:
            raise MiddlewareError(
                "`tensorboard` was not opened: it lives as long as a run, and was not entered. "
                "Give it to `task.use` itself, not to a chain or a function that calls it."
            )
        fresh, self._fresh = self._fresh, {}
        for name, value in fresh.items():
            self._file.add(name, number(name, value), self._x)


class _EventFile:
    """A file of scalars, with what tells TensorBoard to forget those that will come again.

    What is ugly here and why: TensorBoard's own `Writer` cannot write that. The modules below it
    can, but have no types, so they are imported by their names.
    """

    def __init__(self, directory: Path, *, begin: int) -> None:
        files = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._scalar_pb = importlib.import_module("tensorboard.plugins.scalar.summary_v2").scalar_pb
        self._proto = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._writer = files.EventFileWriter(str(directory))
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(begin, session_log=start)

    def add(self, name: str, value: float, x: int) -> None:
        """Write one point."""
        self._write(x, summary=self._scalar_pb(name, value))

    def flush(self) -> None:
        """Let all points reach the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()

    def _write(self, x: int, **content: Any) -> None:  # noqa: ANN401 - a message without a type
        self._writer.add_event(self._proto.Event(wall_time=time.time(), step=x, **content))
