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
        directory: The directory of the event file. It is made when the run begins.
        every: Steps of the pipeline from one point to the next; 100 by default. Fewer draws more
            points, each of which takes about 50 us per metric.
        every_env_steps: Env steps of the ctx from one point to the next, instead of `every`.

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
        self._file = _EventFile(self._directory, begin=self._x + self._is_reported)
        return self

    def write(self, metrics: dict[str, float], env_step: int) -> None:
        if self._file is None:
            raise MiddlewareError(
                "`tensorboard` was not opened: it lives as long as a run, and was not entered. "
                "Give it to `task.use` itself, not to a chain or a function that calls it."
            )
        for name, value in metrics.items():
            self._file.add(name, value, env_step)
        self._file.flush()  # so that TensorBoard shows the point while the run continues

    def close(self, *, failed: bool) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _state(self) -> dict[str, Any]:
        # Earlier points are flushed to disk first.
        if self._file is not None:
            self._file.flush()
        return super()._state()


class _EventFile:
    """A file of scalars with a start event, by which TensorBoard discards points after a resume.

    TensorBoard's own writers cannot write that event, or write on a thread that prints its errors.
    Their lower-level modules can write it, but have no types, so they are imported by name.
    """

    def __init__(self, directory: Path, *, begin: int) -> None:
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        self._scalar_pb = importlib.import_module("tensorboard.plugins.scalar.summary_v2").scalar_pb
        self._proto = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._path = directory / _next_name(directory)
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


def _next_name(directory: Path) -> str:
    """Return a name after those of all event files so far, also if the clock was set back.

    TensorBoard reads the files by name, and what is read first must have been written first.
    """
    names = (file.name.split(".") for file in directory.glob("events.out.tfevents.*"))
    newest = max((int(words[3]) for words in names if words[3].isdecimal()), default=0)
    number = max(time.time_ns(), newest + 1)
    return f"events.out.tfevents.{number}.{socket.gethostname()}.{os.getpid()}"
