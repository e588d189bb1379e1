"""Running a pipeline for some steps, for tests that look at what it leaves."""

from __future__ import annotations

from typing import Any

from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.task import Task


def run_steps(
    *middleware: Middleware,
    steps: int | None = None,
    state: dict[str, Any] | None = None,
    **ctx: Any,
) -> Task:
    """Run middleware, from a saved state if one is given; return the task."""
    with Task(ctx=ctx) as task:
        for fn in middleware:
            task.use(fn)
        if state is not None:
            task.load_state_dict(state)
        task.run(max_step=steps)
    return task
