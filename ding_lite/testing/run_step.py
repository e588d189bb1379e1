"""Run one middleware for one step of a real task, and record its use of the ctx."""

# ruff: noqa: ANN401 - it stands in for a Context, with values of any type
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware, around
from ding_lite.runtime.task import Task


@dataclass
class StepRecord:
    """The ctx keys that a middleware read, wrote and kept in one step."""

    reads: set[str] = field(default_factory=set)
    """Keys that it read before writing them, whether they were set or not."""
    writes: set[str] = field(default_factory=set)
    """Keys that it set or deleted; `metrics` if it wrote any metric."""
    keeps: set[str] = field(default_factory=set)
    """Keys that it kept for the next step."""
    metrics: set[str] = field(default_factory=set)
    """The metrics that it wrote."""

    def __or__(self, other: StepRecord) -> StepRecord:
        return StepRecord(
            self.reads | other.reads,
            self.writes | other.writes,
            self.keeps | other.keeps,
            self.metrics | other.metrics,
        )


def run_step(middleware: Middleware, **values: Any) -> tuple[Context, StepRecord]:
    """Run one middleware for one step of a task of its own.

    Only accesses of the middleware within the step are recorded, not those of the task, and not
    those before the step begins or after the run has ended.

    Args:
        middleware: A middleware of any form that `Task.use` accepts.
        **values: The values of the ctx when the step begins, such as `total_step`.

    Returns:
        The ctx at the end of the step, and the record of the middleware's accesses.

    Example:
        >>> def count(ctx: Context) -> None:
        ...     ctx.steps = ctx.get("steps", 0) + 1
        >>> ctx, record = run_step(count, steps=2)
        >>> ctx.steps, record.reads, record.writes
        (3, {'steps'}, {'steps'})
    """
    record = StepRecord()
    ctx = _RecordingContext(record, values)

    @contextmanager
    def recording(_: Context) -> Iterator[None]:
        ctx.listen(True)
        try:
            yield
        finally:
            ctx.listen(False)

    with Task(ctx=ctx) as task:
        task.use_step_wrapper(lambda fn: around(fn, recording))
        task.use(middleware)
        task.run(max_step=1)
    return ctx, record


class _RecordingContext(Context):
    """A ctx that records accesses while it listens."""

    __slots__ = ("_listening", "_record")
    _listening: bool
    _record: StepRecord

    def __init__(self, record: StepRecord, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_listening", False)
        metrics = values.pop("metrics", {})
        super().__init__(values)
        self["metrics"] = _RecordingMetrics(metrics, self._note_metrics)

    def listen(self, listening: bool) -> None:
        object.__setattr__(self, "_listening", listening)

    def _note_read(self, key: str) -> None:
        if self._listening and key not in self._record.writes:
            self._record.reads.add(key)

    def _note_write(self, key: str) -> None:
        if self._listening:
            self._record.writes.add(key)

    def _note_metrics(self, written: str | None) -> None:
        if not self._listening:
            return
        if written is None:
            self._record.reads.add("metrics")
        else:
            self._record.writes.add("metrics")
            self._record.metrics.add(written)

    def __getitem__(self, key: str) -> Any:
        if key != "metrics":
            self._note_read(key)
        return super().__getitem__(key)

    def __getattr__(self, key: str) -> Any:
        return self[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._note_write(key)
        super().__setitem__(key, value)

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __delitem__(self, key: str) -> None:
        self._note_write(key)
        super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        self._note_read(str(key))
        return super().__contains__(key)

    @property
    def finish(self) -> bool:
        self._note_read("finish")
        return bool(super().get("finish"))

    @finish.setter
    def finish(self, value: bool) -> None:
        self["finish"] = value

    def get(self, key: str, default: Any = None) -> Any:
        self._note_read(key)
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self._note_write(key)
        return super().setdefault(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        if super().__contains__(key):
            self._note_read(key)
            self._note_write(key)
        return super().pop(key, *default)

    def keep(self, *keys: str) -> None:
        if self._listening:
            self._record.keeps.update(keys)
        super().keep(*keys)


class _RecordingMetrics(dict[str, Any]):
    """The metrics of a step; records written metrics, and whether any are read."""

    def __init__(self, values: dict[str, Any], note: Callable[[str | None], None]) -> None:
        super().__init__(values)
        self._note = note

    def __setitem__(self, name: str, value: Any) -> None:
        self._note(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._note(name)
        super().__delitem__(name)

    def __getitem__(self, name: str) -> Any:
        self._note(None)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._note(None)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._note(None)
        return super().__iter__()

    if not TYPE_CHECKING:  # unlike those of a dict, these call the methods above
        get, keys, items, values = Mapping.get, Mapping.keys, Mapping.items, Mapping.values
        update, setdefault = MutableMapping.update, MutableMapping.setdefault
        pop = MutableMapping.pop

        def __ior__(self, values: Any) -> Any:
            self.update(values)
            return self
