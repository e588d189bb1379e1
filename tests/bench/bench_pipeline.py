"""The cost of the pipeline per middleware, beside the plain code that it replaces.

Each side makes the same number of steps over the same functions. The baselines are what one
would write without a task: a loop over functions, a loop that drives generators, a thread pool
with a barrier. A candidate's step includes all that a step is: the check for events, the
renewal of the ctx, the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

from ding_lite import Context, Task
from ding_lite.runtime import StepTimer
from tests.bench.harness import Row, compare, row_from_samples, sample_pairs

STEPS = 10_000
ASYNC_STEPS = 200


def function() -> Callable[[Context], None]:
    def no_op(ctx: Context) -> None:
        pass

    return no_op


def generator() -> Callable[[Context], Iterator[None]]:
    def no_op(ctx: Context) -> Iterator[None]:
        yield

    return no_op


def task_run(task: Task, steps: int = STEPS) -> Callable[[], None]:
    return lambda: task.run(max_step=steps)


def loop(fns: list[Callable[[Context], None]]) -> Callable[[], None]:
    def run() -> None:
        ctx = Context()
        for _ in range(STEPS):
            for fn in fns:
                fn(ctx)

    return run


def generator_loop(fns: list[Callable[[Context], Iterator[None]]]) -> Callable[[], None]:
    def run() -> None:
        ctx = Context()
        for _ in range(STEPS):
            opened = []
            for fn in fns:
                generator = fn(ctx)
                next(generator)
                opened.append(generator)
            for generator in reversed(opened):
                next(generator, None)

    return run


def pool_loop(fns: list[Callable[[Context], None]], pool: ThreadPoolExecutor) -> Callable[[], None]:
    def run() -> None:
        ctx = Context()
        for _ in range(ASYNC_STEPS):
            wait([pool.submit(fn, ctx) for fn in fns])

    return run


def run() -> list[Row]:
    rows = []
    with ExitStack() as stack:
        for count, target in ((5, 3.0), (20, 3.0)):
            fns = [function() for _ in range(count)]
            task = stack.enter_context(Task())
            for fn in fns:
                task.use(fn)
            rows.append(
                compare(
                    f"{count} functions, per middleware",
                    task_run(task),
                    loop(fns),
                    baseline_name="a plain loop over the same functions",
                    per=STEPS * count,
                    target=target,
                    tracked=count == 5,
                )
            )

        fns = [function() for _ in range(5)]
        plain, timed = stack.enter_context(Task()), stack.enter_context(Task())
        timed.use_step_wrapper(StepTimer(print_per_step=0))
        for fn in fns:
            plain.use(fn)
            timed.use(fn)
        with_timer, without = sample_pairs(task_run(timed), task_run(plain), per=STEPS * 5)
        rows.append(
            row_from_samples(
                "a StepTimer adds, per middleware",
                [a - b for a, b in zip(with_timer, without, strict=True)],
                target=0.5,
                tracked=True,
            )
        )

        onions = [generator() for _ in range(5)]
        task = stack.enter_context(Task())
        for onion in onions:
            task.use(onion)
        rows.append(
            compare(
                "5 generators, per middleware",
                task_run(task),
                generator_loop(onions),
                baseline_name="a plain loop that drives generators",
                per=STEPS * 5,
                target=1.7,
                tracked=True,
            )
        )

        task = stack.enter_context(Task(async_mode=True, n_async_workers=3))
        for fn in fns:
            task.use(fn)
        pool = stack.enter_context(ThreadPoolExecutor(3))
        rows.append(
            compare(
                "5 functions in async mode, 3 threads, per middleware",
                task_run(task, ASYNC_STEPS),
                pool_loop(fns, pool),
                baseline_name="a bare thread pool of 3",
                per=ASYNC_STEPS * 5,
                clock="wall",
                target=2.0,
                tracked=True,
            )
        )
    return rows
