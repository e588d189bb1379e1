"""Write a run's metrics for TensorBoard."""

from __future__ import annotations

import importlib
import os
import socket
import time
from pathlib import Path
from typing import Any, Self

from ding_lite.errors import ConfigError, MiddlewareError
from ding_lite.io.files import naming
from ding_lite.middleware.checks import Period
from ding_lite.middleware.report.reporter import Reporter
from ding_lite.runtime.middleware import Middleware


def tensorboard(
    directory: str | os.PathLike[str],
    *,
    every: int | None = None,
    every_env_steps: int | None = None,
) -> Middleware:
    """Write the newest metrics as TensorBoard scalars over env steps.

    Context:
        reads: env_step, metrics, total_step, train_iter

    Args:
        directory: Where the event file goes; made when the run begins, if need be.
        every: Steps of the pipeline from one point to the next; 100 by default. Fewer draws finer
            and costs about 50 us a point and metric.
        every_env_steps: The same in env steps, as they are on the ctx, in place of `every`.

    Raises:
        ConfigError: `directory` is a file, or a setting is out of range.
    """
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"The TensorBoard directory {path} is a file. Name a directory.")
    return _TensorBoard(path, Period(every, every_env_steps, usual=100))


class _TensorBoard(Reporter):
    __name__ = "tensorboard"
    only_fresh = True

    def __init__(self, directory: Path, period: Period) -> None:
        super().__init__(period)
        self._directory = directory
        self._file: _EventFile | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = _EventFile(self._directory, begin=self._x + 1)
        return self

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        if self._file is None:
            raise MiddlewareError(
                "`tensorboard` was not opened: it lives as long as a run, and was not entered. "
                "Give it to `task.use` itself, not to a chain or a function that calls it."
            )
        for name, value in metrics.items():
            self._file.add(name, value, env_step)
        self._file.flush()  # for those that look at a run while it goes on

    def close(self, *, failed: bool) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next points depend on; those before it are on disk then."""
        if self._file is not None:
            self._file.flush()
        return super().state_dict()


class _EventFile:
    """A file of scalars, with what tells TensorBoard to forget those that will come again.

    What is ugly here and why: TensorBoard's own writers cannot write that, or do so on a thread
    that prints its errors. The modules below them can, but have no types, so they are imported by
    their names.
    """

    def __init__(self, directory: Path, *, begin: int) -> None:
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        self._scalar_pb = importlib.import_module("tensorboard.plugins.scalar.summary_v2").scalar_pb
        self._proto = importlib.import_module("tensorboard.compat.proto.event_pb2")
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._path = directory / name
        self._records = records.RecordWriter(self._path.open("xb"))
        self._write(0, file_version="brain.Event:2")
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        self._write(begin, session_log=start)

    def add(self, name: str, value: float, x: int) -> None:
        self._write(x, summary=self._scalar_pb(name, value))

    def flush(self) -> None:
        with naming(self._path):
            self._records.flush()

    def close(self) -> None:
        with naming(self._path):
            self._records.close()

    def _write(self, x: int, **content: Any) -> None:  # noqa: ANN401 - a message without a type
        event = self._proto.Event(wall_time=time.time(), step=x, **content)
        with naming(self._path):
            self._records.write(event.SerializeToString())
