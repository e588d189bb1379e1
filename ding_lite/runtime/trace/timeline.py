"""The time line of a node: slices and arrows in the Chrome trace event format.

A slice is a period in a row, and a row is a thread. Viewers can only show the slices of a row if
they follow each other or contain each other. A coroutine overlaps others of its thread, so it has
its own row. The end of an arrow belongs to the slice around it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Any

from ding_lite.log import Throttle
from ding_lite.runtime.messaging.base import CoroutineThread
from ding_lite.runtime.messaging.labels import describe_node
from ding_lite.runtime.messaging.router import Router
from ding_lite.runtime.trace.file import TraceFile
from ding_lite.runtime.trace.messages import Slice, Traced, Turn

logger = logging.getLogger(__name__)

_SHORTEST_NS = 1_000
"""The shortest slice; a shorter one would leave no room for the end of an arrow."""
_ROWS = 512
"""The maximum number of rows of a thread."""
_OWN_ROWS = 2**31
"""The first number of rows that are not threads; all numbers have 32 bits."""


class Timeline:
    """Draws the work of a node, and its messages, into a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made_ns = monotonic_ns()
        self._file: TraceFile | None = None
        self._traced: Traced | None = None
        self._rows: set[int] = set()
        self._throttle = Throttle(logger)
        self._lock = threading.Lock()

    def open(self, router: Router) -> None:
        """Begin to draw a node; raise OSError if the file cannot be written."""
        traced = router.traced
        since_ns = self._made_ns if traced.began_ns is None else traced.began_ns
        with self._lock:
            self._file = TraceFile(self._path, since_ns)
            self._rows.clear()
            self._name("process_name", describe_node(router.node_id, router.labels))
        if traced.tracer is None:
            self._traced, traced.tracer = traced, self

    def close(self) -> None:
        """Stop drawing; do nothing the second time."""
        if self._traced is not None:
            self._traced.tracer = None
            self._traced = None
        with self._lock, self._warning_on_errors():
            file, self._file = self._file, None
            if file is not None:
                file.close()

    @contextmanager
    def recording(self, name: str, step: int, row: int) -> Iterator[None]:
        """Draw a slice of the length of a `with` block; within a coroutine in a row of its own."""
        began_ns = monotonic_ns()
        try:
            yield
        finally:
            self._record(name, {"step": step}, began_ns, monotonic_ns(), row)

    def _record(
        self, name: str, args: dict[str, int], began_ns: int, ended_ns: int, row: int = 0
    ) -> None:
        if self._file is None:
            return
        dur = max(ended_ns - began_ns, _SHORTEST_NS)
        slice_ = {"name": name, "ph": "X", "ts": began_ns / 1e3, "dur": dur / 1e3, "args": args}
        with self._lock:
            tid = self._row(row, name)
            self._write({**slice_, "pid": os.getpid(), "tid": tid})

    def slice(self, name: str, began_ns: int) -> Slice:
        drawn = Slice(threading.get_native_id(), began_ns, monotonic_ns())
        self._record(name, {}, began_ns, drawn.ended_ns)
        return drawn

    def arrow(self, turn: Turn, kind: str, key: str, where: Slice, at_ns: int) -> None:
        margin = _SHORTEST_NS // 4
        last = max(where.ended_ns, where.began_ns + _SHORTEST_NS) - margin
        at_ns = min(max(at_ns, where.began_ns + margin), last)
        end = {"bp": "e"} if turn == "f" else {}
        record = {"name": kind, "cat": "message", "ph": turn, "id": key, "ts": at_ns / 1e3, **end}
        with self._lock:
            self._write({**record, "pid": os.getpid(), "tid": where.thread})

    def _row(self, row: int, name: str) -> int:
        thread = threading.current_thread()
        tid, title = threading.get_native_id(), thread.name
        if row and isinstance(thread, CoroutineThread):
            tid, title = _OWN_ROWS + (tid * _ROWS + row) % _OWN_ROWS, f"{title} {name}"
        if tid not in self._rows:
            self._rows.add(tid)
            self._name("thread_name", title, tid)
        return tid

    def _name(self, what: str, name: str, tid: int | None = None) -> None:
        tid = threading.get_native_id() if tid is None else tid
        args = {"name": name}
        self._write({"name": what, "ph": "M", "pid": os.getpid(), "tid": tid, "args": args})

    def _write(self, record: dict[str, Any]) -> None:
        with self._warning_on_errors():
            if self._file is not None:
                self._file.write(record)

    @contextmanager
    def _warning_on_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._throttle.once(
                logging.WARNING, "disk", "the trace %s is not complete: %s", self._path, error
            )
