"""The directory of a run that is trained by name, and the middleware that write its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ding_lite import middleware as mw
from ding_lite.io.importing import refuse_while_importing
from ding_lite.recipes.plan import RunPlan
from ding_lite.recipes.runs.directory import make_next
from ding_lite.recipes.runs.run import Run
from ding_lite.runtime.task import Task


@contextmanager
def run_of(plan: RunPlan, name: str) -> Iterator[Run]:
    """Open the directory of a plan's run: the chosen one, or the next number under its name."""
    refuse_while_importing()
    options = plan.options
    if options.out is None:
        out = make_next(Path("runs", name, str(options.env)))
        options = dataclasses.replace(options, out=out)
    with Run(name, options, config=plan.described, defaults=plan.defaults) as run:
        if plan.note is not None:
            run.tell(plan.note)
        yield run


def save_and_report(
    task: Task,
    plan: RunPlan,
    run: Run,
    parts: Mapping[str, object],
    every: Callable[[int], int],
) -> None:
    """Add the middleware that save checkpoints, measure the run and report metrics."""
    config = plan.config
    task.use(mw.checkpoint(parts, run.checkpoint, every=every(config.checkpoint_every)))
    task.use(mw.throughput(every=every(config.log_every)))
    task.use(run.time(task, every=every(config.log_every)))
    for middleware in plan.use:
        task.use(middleware)
    task.use(mw.report(run, every=every(config.log_every), title=plan.title))
