"""The context: the value that is passed through the pipeline.

`ctx` is a dict with attribute access. Each step begins with a new one that holds only the kept
keys, so a middleware never sees other values of an earlier step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ding_lite.cancellation import CancelScope, current_scope, is_cancelled
from ding_lite.clock import Deadline
from ding_lite.errors import ConfigError, ContextError, DeadlineExceeded, did_you_mean, kind_of
from ding_lite.interruption import is_handling_signal

LOCAL_KEYS = frozenset(
    {"collected", "transitions", "trajectories", "train_data", "train_output", "metrics"}
)
"""Keys that are not sent unless `task.share` names them: large, or of no use on other nodes."""

HOUSE_KEYS = LOCAL_KEYS | {
    "env_step",
    "train_iter",
    "weights_version",
    "eval_value",
    "generation",
    "fitness",
    "state_dict",
}
"""Keys that the middleware of this package write; suggested for mistyped keys."""

ANNOUNCEMENT_S = 60.0
"""Seconds that a run waits for the thread that has set its latch."""


class Latch:
    """One-shot stop flag of a job, or of this node's part in it."""

    __slots__ = (
        "_announced",
        "_job_has_ended",
        "_listeners",
        "_lock",
        "is_set",
        "may_leave",
        "set_by",
        "step",
        "was_finished",
    )

    def __init__(self) -> None:
        self.step = CancelScope()
        """Ends the waits of a concurrent step that fails."""
        self.is_set = False
        self.was_finished = False
        """Whether a program has set `finish`; a signal and the end of `max_step` do not."""
        self.set_by = 0
        self.may_leave: Callable[[], bool] = lambda: False
        """Whether the job continues when this node's run ends: it has joined a running job."""
        self._job_has_ended = False
        self._announced = threading.Event()
        """Set when the listeners of the first `set` have returned."""
        self._lock = threading.Lock()
        self._listeners: list[tuple[Callable[[], None], bool]] = []

    def set(self, *, only_here: bool = False) -> None:
        """End the job, or only the task of this node, which leaves; do nothing the second time."""
        if not self.is_set and is_handling_signal():
            # The handler may have interrupted code that holds a lock which a listener needs.
            end = partial(self.set, only_here=only_here)
            threading.Thread(target=end, name="ding_lite-finish").start()
            return
        with self._lock:
            is_first = not self.is_set
            ends_job = not only_here and not self._job_has_ended
            self._job_has_ended |= ends_job
            if is_first:
                self.set_by = threading.get_ident()
                self.is_set = True
            due = [fn for fn, of_job in self._listeners if (ends_job if of_job else is_first)]

        try:
            for listener in due:
                listener()
        finally:
            if is_first:
                self._announced.set()

    def finish(self) -> None:
        """End the job because a program has set `finish`."""
        self.was_finished = True
        self.set()

    def end_run(self) -> None:
        """End the run of this node, and also the job, unless the node may leave it."""
        self.set(only_here=self.may_leave())

    def listen(self, fn: Callable[[], None], *, of_job: bool = False) -> None:
        """Call `fn()` when the latch gets set, on that thread; `of_job`: when the job ends."""
        self._listeners.append((fn, of_job))

    def wait_until_announced(self) -> None:
        """Block until the thread that has set the latch has called all listeners."""
        if self.set_by != threading.get_ident() and not self._announced.wait(ANNOUNCEMENT_S):
            raise DeadlineExceeded(
                f"The thread that set `finish` has not told other nodes and listeners within "
                f"{ANNOUNCEMENT_S:g} s. `py-spy dump --pid` shows where it hangs."
            )

    def rearm(self) -> None:
        self._announced.clear()
        self.is_set = self.was_finished = self._job_has_ended = False

    @property
    def is_used(self) -> bool:
        """Whether it is set, or a task has it."""
        return self.is_set or bool(self._listeners)

    @property
    def ends_waits(self) -> bool:
        """Whether all waits are over: the job ends, or the step has failed."""
        return self.is_set or self.step.has_failed or is_cancelled()


class Context(dict[str, Any]):
    """A dict with items that are also attributes, renewed at every step.

    `total_step` counts the task's steps, from 0; only the runtime sets it. `finish` is a latch:
    setting it True ends the job after this step, setting it False does nothing. `metrics` always
    exists: an empty dict, made at its first use in each step.

    Args:
        *values: A mapping or pairs, as for `dict`.
        **named: More items.

    Raises:
        ContextError: A key is not a string, begins with `_`, or would hide a method.

    Example:
        >>> ctx = Context(loss=0.5)
        >>> ctx.loss, ctx["loss"], ctx.total_step, ctx.finish
        (0.5, 0.5, 0, False)
    """

    __slots__ = ("_kept", "_latch")  # all contexts of a task share both
    _kept: dict[str, None]
    _latch: Latch

    def __init__(self, *values: Any, **named: Any) -> None:
        items = dict(*values, **named)
        super().__init__(total_step=items.pop("total_step", 0))
        object.__setattr__(self, "_kept", {})
        object.__setattr__(self, "_latch", Latch())
        self.update(items)

    # -- items and attributes ------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _GUARDED or type(key) is not str or key[:1] == "_":
            self._set_guarded(key, value)
        else:
            _put(self, key, value)

    if TYPE_CHECKING:
        metrics: dict[str, Any]
        total_step: int
        finish: bool

        def __setattr__(self, key: str, value: Any) -> None: ...

        def __getattr__(self, key: str) -> Any: ...

    else:
        __setattr__ = __setitem__
        # Reading an attribute only looks up a key, which takes a third of the time in C.
        __getattr__ = dict.__getitem__

        @property
        def finish(self) -> bool:
            """Whether this is the job's last step, or another middleware of the step has failed."""
            latch = self._latch  # as `ends_waits`, in half the time
            if latch.is_set or latch.step.has_failed:
                return True
            scope = current_scope()
            return scope is not None and scope.is_cancelled

    def __missing__(self, key: str) -> Any:
        if key == "metrics":
            return super().setdefault(key, {})  # one call: other threads may be here too
        if key == "finish":
            return self.finish
        if not isinstance(key, str) or key[:1] == "_":
            raise ContextError(f"ctx has no {key!r}.")
        raise self._unset(key)

    def _unset(self, key: str) -> ContextError:
        known = self if key in HOUSE_KEYS else [*self, *HOUSE_KEYS]
        return ContextError(
            f"`ctx.{key}` is not set in step {self['total_step']}.{did_you_mean(key, known)} "
            f"Either the middleware that sets it comes later or does not run on this node, or the "
            f'key was dropped when the last step ended: `ctx.keep("{key}")` hands it on. '
            f"Set are: {', '.join(sorted(self))}."
        )

    def __delattr__(self, key: str) -> None:
        if key not in self:
            raise ContextError(f"`ctx.{key}` cannot be deleted: it is not set.")
        del self[key]

    def __delitem__(self, key: str) -> None:
        if key == "total_step":
            raise ContextError("`ctx.total_step` belongs to the task and cannot be deleted.")
        super().__delitem__(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and return its value, or `default` if it is not set."""
        if key == "total_step":
            del self[key]
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Remove the key that was set last, and return it with its value."""
        for key in reversed(self):
            if key != "total_step":
                return key, super().pop(key)
        raise KeyError("ctx has no key but `total_step`, which belongs to the task")

    def clear(self) -> None:
        """Remove all keys except `total_step`."""
        for key in [*self]:
            if key != "total_step":
                super().pop(key, None)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if it is not set."""
        # Not by `super()`, which takes longer than the rest.
        return self._latch.ends_waits if key == "finish" else dict.get(self, key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, after setting it to `default` if it is not set."""
        if key in _GUARDED or type(key) is not str or key[:1] == "_":
            if type(key) is not str:
                return self.setdefault(plain_key(key), default)
            if key not in _RUNTIME:
                self._refuse(key)
            return self[key]
        return dict.setdefault(self, key, default)  # one call: other threads may be here too

    def update(self, *values: Any, **named: Any) -> None:
        """Set several keys, by the rules for one key."""
        for key, value in dict(*values, **named).items():
            self[key] = value

    def __ior__(self, values: Any) -> Context:  # type: ignore[override, misc]
        self.update(values)
        return self

    # -- from step to step ---------------------------------------------------------------

    def keep(self, *keys: str) -> None:
        """Keep these keys from step to step, from now on.

        A key may be kept before it is set. `finish` and `total_step` are always kept.

        Raises:
            ContextError: A key is no string, or the name of a method.
        """
        for key in keys:
            if type(key) is not str:
                key = plain_key(key)
            if key in _METHODS:
                self._refuse(key)
            if key not in _RUNTIME:
                self._kept[key] = None

    def drop(self, *keys: str) -> None:
        """Stop keeping keys; their values stay until the step ends.

        Raises:
            ContextError: A key is not kept.
        """
        for key in keys:
            if key not in self._kept:
                raise ContextError(
                    f"`ctx.{key}` cannot be dropped: it is not kept.{did_you_mean(key, self._kept)}"
                )
            del self._kept[key]

    @property
    def kept(self) -> tuple[str, ...]:
        """The kept keys, in the order in which they were kept."""
        return tuple(self._kept)

    def copy(self) -> Context:
        """Return a context with the same items and kept keys, and a `finish` of its own."""
        return _restore(*self.__reduce__()[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self), self.kept, self._latch.is_set)

    # -- refusals ------------------------------------------------------------------------

    def _set_guarded(self, key: Any, value: Any) -> None:
        if key == "finish":
            if value:
                self._latch.finish()
        elif key == "total_step" and value == self["total_step"]:
            pass  # copying a ctx onto itself or its twin does not set the count
        elif type(key) is not str:
            self[plain_key(key)] = value
        else:
            self._refuse(key)

    def _refuse(self, key: str) -> NoReturn:
        if key == "total_step":
            raise ContextError(
                f"`ctx.total_step` is counted by the task (now {self[key]}) and cannot be set. "
                f"Count your own steps under another key, such as `ctx.env_step`."
            )
        if key.startswith("_"):
            raise ContextError(
                f"`ctx.{key}` cannot be set: names that begin with `_` are the runtime's. "
                f"Use `{key.lstrip('_') or 'value'}`."
            )
        reason = "`task.renew` begins the next step, and ctx reserves its name"
        if key != "renew":
            owner = "ctx" if hasattr(Context, key) else "`parallel_ctx`"
            reason = f"it would hide the method `{key}` of {owner}"
        raise ContextError(
            f"`ctx.{key}` cannot be set: {reason}. "
            f"Use another name, such as `{key}_` or `my_{key}`."
        )


_put: Any = dict.__setitem__
_RUNTIME = frozenset({"total_step", "finish"})


class Lineage:
    """Makes the contexts of a task, one a step; they share the kept keys and the latch."""

    def __init__(self, first: Context) -> None:
        self.kept = first._kept
        # Both are attributes of the class, which saves a store at every step, and no Python
        # code runs for a new object: copying a dict whole costs half of filling one.
        parts: dict[str, Any] = {"_kept": self.kept, "_latch": first._latch}
        parts |= {"__slots__": (), "__init__": dict.__init__}
        self.cls: Callable[[dict[str, Any]], Context]
        self.cls = type(type(first).__name__, (type(first),), parts)
        """Makes a context of given items; the pipeline calls it in its hot loop."""

    def next_of(self, ctx: Context) -> Context:
        """Return the context of the next step: `total_step` plus one, and the kept keys."""
        items: dict[str, Any] = {"total_step": ctx["total_step"] + 1}
        for key in self.kept:
            if key in ctx:
                items[key] = ctx[key]
        return self.cls(items)


def latch_of(ctx: Context) -> Latch:
    """Return the latch that ends the job of a context."""
    return ctx._latch


def share_latch(ctx: Context, latch: Latch) -> None:
    """Let a context have the latch of a task; for the runtime's own use."""
    object.__setattr__(ctx, "_latch", latch)


def set_total_step(ctx: Context, total_step: int) -> None:
    """Set the step count of a context; for the runtime's own use."""
    _put(ctx, "total_step", total_step)


def _restore(items: dict[str, Any], kept: Iterable[str], finish: bool) -> Context:
    ctx = Context(items)
    ctx.keep(*kept)
    if finish:
        ctx.finish = True
    return ctx


def plain_key(key: object) -> str:
    """Return a key as a plain string: nodes cannot send a member of a StrEnum, for one."""
    if not isinstance(key, str):
        raise ContextError(f"A key of ctx is a string, not {key!r}, {kind_of(key)}.")
    return str.__str__(key)


def is_key(name: str) -> bool:
    return name[:1] != "_" and (name not in _GUARDED or name == "total_step")


class ParallelContext(Context):
    """The newest ctx values of other nodes.

    Each key holds the newest value that any peer has sent; a ctx without a key never erases
    it. Values are written as they arrive, so two reads may see two versions. Values that must
    belong together can be read from one call of `of(node)`, which returns a snapshot. `finish` is
    that of the task's own ctx.
    """

    __slots__ = ("_by_node", "_changed", "_find_node")
    _by_node: dict[str, dict[str, Any]]
    _changed: threading.Condition
    _find_node: Callable[[str], str]
    """Returns the label `node.N` of the node of another label."""

    def __init__(self, find_node: Callable[[str], str] = str) -> None:
        super().__init__()
        object.__setattr__(self, "_find_node", find_node)
        object.__setattr__(self, "_by_node", {})
        object.__setattr__(self, "_changed", threading.Condition())

    def of(self, node: str | int) -> Context:
        """Return a copy of the newest ctx of one peer, by id or label (`2`, `node.2`, `learner`).

        It is empty until that peer has sent one.

        Raises:
            LabelError: No node of the job has the label, or several have it.
        """
        name = f"node.{node}" if isinstance(node, int) else node
        if not (isinstance(name, str) and name in self._by_node):
            name = self._find_node(name)
        with self._changed:
            return Context(self._by_node.get(name, {}))

    def _unset(self, key: str) -> ContextError:
        with self._changed:
            sent = {name for values in self._by_node.values() for name in values}
        return ContextError(
            f"`parallel_ctx.{key}` is not set: no other node has sent it."
            f"{did_you_mean(key, sent)} Sent are: {', '.join(sorted(sent)) or 'no keys'}. "
            f'`parallel_ctx.get("{key}")` returns None as long as it has not come, and '
            f"`wait_parallel_ctx` waits for it."
        )

    def _receive(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Merge the ctx of a node; keys that a ctx may not hold are left out."""
        allowed = {k: v for k, v in values.items() if is_key(k)}
        with self._changed:
            self._by_node.setdefault(f"node.{node_id}", {}).update(allowed)
            dict.update(self, allowed)
            self._changed.notify_all()

    def _wait(
        self, newer_than: Mapping[str, Any], deadline: Deadline, stop: Callable[[], bool]
    ) -> ParallelContext | None:
        """Block until newer values of these keys have arrived; without keys, any values at all.

        Return None if `stop` ended the wait; raise DeadlineExceeded if no such values came in time.
        """

        def is_newer(key: str, known: Any) -> bool:
            try:
                return key in self and bool(self[key] > known)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"`newer_than` compares `{key}` with {known!r:.40}, and a node has sent "
                    f"{self[key]!r:.40}; one number was expected of each. {error}. Count versions "
                    f"under a key of their own, and begin with `newer_than={{'{key}': -1}}`."
                ) from error

        def has_come() -> bool:
            return bool(self._by_node) and all(is_newer(*item) for item in newer_than.items())

        with self._changed:
            in_time = deadline.wait(self._changed, lambda: has_come() or stop())
            if has_come():
                return self
        if not in_time:
            wanted = ", ".join(f"`{key}` > {value!r}" for key, value in newer_than.items())
            raise DeadlineExceeded(
                f"No other node sent {wanted or 'a ctx'} in time. {self._arrived()} A ctx is sent "
                f"at the end of each step: does a task run on a connected node, and set these keys?"
            )
        return None

    def _arrived(self) -> str:
        with self._changed:
            parts = [
                f"{node} sent {', '.join(f'`{k}`={v!r:.40}' for k, v in values.items())}."
                for node, values in sorted(self._by_node.items())
            ]
        return " ".join(parts) or "Nothing has come from any node."

    def _wake(self) -> None:
        """Wake all waits so that they check `stop` again."""
        with self._changed:
            self._changed.notify_all()


_NAMES = ("renew", *dir(ParallelContext))
_METHODS = frozenset(name for name in _NAMES if name[:1] != "_") - _RUNTIME
_GUARDED = _METHODS | _RUNTIME
