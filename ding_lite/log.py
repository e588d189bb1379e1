"""Logging: warnings only unless configured, and rate-limited by cause.

Modules log through `logging.getLogger(__name__)`, so that Python writes warnings to standard error
if a program configures nothing. `configure()` adds one handler; `Throttle.once` and
`Throttle.every` limit repeated warnings.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError, did_you_mean, printable

__all__ = ["configure"]
_ROOT = "ding_lite"
_ALONE = "node 0"
_NAMELESS = (None, "MainProcess")


def configure(
    level: int | str = logging.INFO, *, node: str | None = None, stream: TextIO | None = None
) -> logging.Handler:
    """Write this package's log lines to a stream.

    A further call replaces the handler of the previous call.

    Args:
        level: The lowest level that is written, by number or by name: `"debug"`.
        node: The name of the node in each line; by default the node of this process with its
            role, such as `node 1 collector`.
        stream: The stream of the lines; standard error by default.

    Returns:
        The handler, so that a program can remove it.

    Raises:
        ConfigError: There is no such level.
    """
    level = _number_of(level)
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_LineFormatter(node))
    logger = logging.getLogger(_ROOT)

    for old in [h for h in logger.handlers if isinstance(h.formatter, _LineFormatter)]:
        logger.removeHandler(old)

    logger.addHandler(handler)
    logger.setLevel(level)
    return handler


def _number_of(level: int | str) -> int:
    known = logging.getLevelNamesMapping()
    number = known.get(level.upper()) if isinstance(level, str) else level
    if not isinstance(number, int):
        raise ConfigError(
            f"There is no log level {level!r}.{did_you_mean(str(level), known)} "
            f"Known are: {', '.join(known)}."
        )
    return number


@contextmanager
def named_in_logs(name: str) -> Iterator[None]:
    """Set the name of this process in its log lines, for the length of a `with` block.

    The name is stored as that of the process, which `logging` formats as `%(processName)s`.
    """
    from multiprocessing import current_process

    process = current_process()
    before, process.name = process.name, name
    try:
        yield
    finally:
        process.name = before


class _Passing(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


@contextmanager
def passing_warnings(write: Callable[[str], None]) -> Iterator[None]:
    """Pass this package's warnings to a function, unless the program has configured logging."""
    logger = logging.getLogger(_ROOT)
    if logger.hasHandlers():
        yield
        return
    handler = _Passing(write)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def write_to_stderr(text: str, stream: TextIO | None = None) -> None:
    """Write to standard error; text is lost if there is none, or its terminal or reader is gone.

    A run must not end because its progress cannot be shown any more.
    """
    stream = stream or sys.stderr
    with suppress(OSError, ValueError):  # a closed stream raises ValueError
        if stream is not None:
            stream.write(text)
            stream.flush()


class _LineFormatter(logging.Formatter):
    """`12:03:44.120 node 1 collector | parallel.router | connected to node 0`."""

    def __init__(self, node: str | None) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        module = record.name.removeprefix(f"{_ROOT}.")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        name = self._node
        if name is None:
            name = _ALONE if record.processName in _NAMELESS else record.processName
        line = f"{stamp}.{int(record.msecs):03d} {name} | {module} | {level}"
        line += record.getMessage()

        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return printable(line)


class Throttle:
    """Limits how often a log line is written, per cause.

    Each object that logs has a throttle of its own; throttles share no state.
    """

    def __init__(self, logger: logging.Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._logger = logger
        self._clock = clock
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def once(self, level: int, cause: str, message: str, *args: object) -> None:
        """Log the first line about `cause`; later ones are dropped."""
        self.every(float("inf"), level, cause, message, *args)

    def every(self, seconds: float, level: int, cause: str, message: str, *args: object) -> None:
        """Log a line about `cause` unless one was logged less than `seconds` ago."""
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock.now()
        with self._lock:
            if now - self._last.get(cause, float("-inf")) < seconds:
                return
            self._last[cause] = now
        self._logger.log(level, message, *args)
