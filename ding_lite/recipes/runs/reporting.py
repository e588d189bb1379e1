"""The files that every run by name writes: its checkpoint, its metrics, its curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ding_lite import middleware as mw
from ding_lite.recipes.plan import RunPlan
from ding_lite.recipes.runs.run import Run
from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.task import Task


def save_and_report(
    task: Task,
    plan: RunPlan,
    run: Run,
    parts: Mapping[str, object],
    every: Callable[[int], int],
    use: Sequence[Middleware] = (),
) -> None:
    """Let a task save its parts and write down how it goes.

    Args:
        task: To which the middleware are added.
        plan: Says how often.
        run: Where to.
        parts: What a resume needs.
        every: Turns env steps into steps of the task.
        use: Middleware of the user.
    """
    config = plan.config
    task.use(mw.checkpoint(parts, run.checkpoint, every=every(config.checkpoint_every)))
    task.use(mw.throughput(every=every(config.log_every)))
    task.use(run.time(task, every=every(config.log_every)))
    for middleware in use:
        task.use(middleware)
    task.use(mw.jsonl(run.metrics, every=every(config.log_every)))
    task.use(mw.tensorboard(run.directory, every=every(config.log_every)))
    task.use(mw.curve(run.curve, target=run.options.goal, title=plan.title))
