"""The files that every run by name writes: its checkpoint, its metrics, its curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ding_lite import middleware as mw
from ding_lite.recipes.plan import RunPlan
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.runs.stages import StageSeconds
from ding_lite.runtime.task import Task


def save_and_report(
    task: Task,
    plan: RunPlan,
    run: Run,
    parts: Mapping[str, object],
    every: Callable[[int], int],
) -> None:
    """Let a task save its parts and write down how it goes.

    Args:
        task: To which the middleware are added.
        plan: Says how often.
        run: Where to.
        parts: What a resume needs.
        every: Turns env steps into steps of the task.
    """
    config = plan.config
    run.stages = seconds = StageSeconds(every=every(config.log_every))
    task.use_step_wrapper(seconds.wrap)
    task.use(mw.checkpoint(parts, run.checkpoint, every=every(config.checkpoint_every)))
    task.use(mw.throughput(every=every(config.log_every)))
    task.use(seconds)
    for middleware in plan.use:
        task.use(middleware)
    task.use(mw.report(run, every=every(config.log_every), title=plan.title))
