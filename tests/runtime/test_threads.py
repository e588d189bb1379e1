"""The threads of a task: workers that are replaced while they are suspended, and the loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import closing
from functools import partial

import pytest

from ding_lite.runtime import Context, Task
from ding_lite.runtime.threads import Workers


def test_a_job_that_waits_often_adds_a_single_thread_however_busy_the_others_are() -> None:
    began, goes_on, names = threading.Semaphore(0), threading.Event(), Future[set[str]]()

    def block() -> None:
        began.release()
        goes_on.wait(10.0)

    def wait_often() -> None:
        workers.begin_wait()
        for _ in range(2):
            workers.submit(block)
        for _ in range(2):
            began.acquire(timeout=10.0)
        for _ in range(5):
            workers.begin_wait()
        goes_on.set()
        names.set_result({thread.name for thread in threading.enumerate()})

    with closing(Workers(2)) as workers:
        workers.submit(wait_often)
        of_workers = {name for name in names.result(10.0) if name.startswith("ding_lite-worker")}
    assert len(of_workers) == 3


def test_as_many_jobs_run_as_there_are_threads_beside_those_that_are_suspended() -> None:
    active, most = list[int](), list[int]()

    def suspend(resume: threading.Event) -> None:
        workers.begin_suspension(resume.set)
        resume.wait(10.0)

    def run() -> None:
        active.append(1)
        most.append(len(active))
        threading.Event().wait(0.002)  # long enough for another thread, if there were one
        active.pop()

    with closing(Workers(2)) as workers:
        for _ in range(3):  # threads that were suspended do not come in addition later
            resume = threading.Event()
            for job in (partial(suspend, resume), run) * 3 + (run, resume.set):
                workers.submit(job)
            resume.wait(10.0)
    assert len(most) == 12
    assert max(most) <= 2


@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_suspended_job_is_abandoned_when_the_workers_end(is_suspended: bool) -> None:
    begins, abandoned = threading.Event(), threading.Event()
    workers = Workers(1)

    def suspend() -> None:
        if not is_suspended:
            begins.wait(10.0)
        workers.begin_suspension(abandoned.set)
        begins.set()
        abandoned.wait(10.0)

    workers.submit(suspend)
    if is_suspended:
        begins.wait(10.0)
    threads = workers.release()
    begins.set()
    for thread in threads:
        thread.join()
    assert abandoned.is_set()


def test_an_exception_of_a_coroutine_that_ends_with_its_task_is_logged(caplog) -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    async def begin(ctx: Context) -> None:
        ctx.background = asyncio.create_task(fail())
        await asyncio.sleep(0)

    with Task() as task:
        task.use(begin).run(max_step=1)
    [record] = [record for record in caplog.records if record.name == "asyncio"]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
