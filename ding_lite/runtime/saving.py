"""The state of a task that continues in another process: its ctx, and stateful middleware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ding_lite.errors import CheckpointError, kind_of
from ding_lite.runtime.context import Context, set_total_step


@runtime_checkable
class Stateful(Protocol):
    """An object that can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: dicts, lists, arrays and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def _optional(middleware: Mapping[str, Stateful]) -> list[str]:
    """Return the names of middleware that an exact resume does not need, such as loggers."""
    return [name for name, part in middleware.items() if getattr(part, "optional_state", False)]


def state_of(ctx: Context, middleware: Mapping[str, Stateful]) -> dict[str, Any]:
    return {
        "total_step": ctx.total_step,
        "kept": list(ctx.kept),
        "ctx": {key: ctx[key] for key in ctx.kept if key in ctx},
        "middleware": {name: part.state_dict() for name, part in middleware.items()},
        "optional": _optional(middleware),
    }


def load_state(ctx: Context, middleware: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Restore a ctx and middleware from a state that `state_of` returned.

    Middleware with the attribute `optional_state` may be missing in the state, or only there.
    """
    is_mapping = isinstance(state, Mapping)
    if not (is_mapping and {"total_step", "kept", "ctx", "middleware"} <= state.keys()):
        found = f"it has {sorted(state)}" if is_mapping else f"it is {kind_of(state)}"
        raise CheckpointError(
            f"This is not the state of a task: {found}. Give what `task.state_dict()` has returned."
        )
    saved = state["middleware"]
    gone = saved.keys() - middleware.keys() - set(state.get("optional", ()))
    new = middleware.keys() - saved.keys() - set(_optional(middleware))
    if gone or new:
        gone, new = (", ".join(map(repr, sorted(names))) or "none" for names in (gone, new))
        raise CheckpointError(
            f"The task was saved with other middleware. Only saved: {gone}. Only in this program: "
            f"{new}. Use the same middleware, in the same order, before you load. If the program "
            f"is the same, another version of ding_lite has saved it: go on with that version, or "
            f"begin another run; `load_policy` loads the policy alone."
        )
    for name, part in middleware.items():
        if name in saved:
            part.load_state_dict(saved[name])
    ctx.clear()
    set_total_step(ctx, state["total_step"])
    ctx.keep(*state["kept"])
    ctx.update(state["ctx"])
