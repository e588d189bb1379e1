"""Running a pipeline, on one node or on several, for tests that look at what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ding_lite.runtime import Context, Middleware, Task
from ding_lite.testing import Cluster


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


def run_job(
    roles: Sequence[Any], steps: int | None = None, **make: Callable[[], list[Middleware]]
) -> list[Context]:
    """Run the middleware that each node makes for its roles; return the last ctx of each node."""

    def main() -> Context:
        with Task() as task:
            for role, make_all in make.items():
                for fn in make_all() if task.match_labels(role) else ():
                    task.use(fn)
            task.run(max_step=steps)
        return task.ctx

    with Cluster(len(roles), "star", roles=roles) as cluster:
        return cluster.run(main)
