"""Every test gets a deadline, fixed seeds, a clean environment, and a check for leaks."""

from __future__ import annotations

import atexit
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
import pytest

if TYPE_CHECKING:
    from ding_lite.testing.clock import ManualClock

SECONDS_PER_TEST = 120.0
"""Enough that a machine which stands still for a minute fails no test."""
SEED = 20261121
LONGEST = ("tests/test_docs.py", "tests/test_examples", "tests/procs/")
"""The files that take longest for their number of tests, most of it in processes of their own."""

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of PyTorch, as in a task, also in tests without one
for _name in [name for name in os.environ if name.startswith("DING_LITE_")]:
    del os.environ[_name]  # a test sets what it needs by itself

# Keys that tests make are not put among the user's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="ding_lite-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Started in the background of a shell, this process ignores Ctrl-C, and what it starts would, too;
# with `nohup` also SIGHUP.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No example database in the checkout, the same examples on every run, and no clock: the deadline
# above holds for the test as a whole.
# Forty examples find what a formula gets wrong; a test of rarer cases says how many it takes.
hypothesis.settings.register_profile(
    "ding_lite", database=None, derandomize=True, deadline=None, max_examples=40
)
hypothesis.settings.load_profile("ding_lite")

# Importing 300 files of tests makes little garbage, and every look for it is at a larger heap.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--update-snapshots`."""
    parser.addoption(
        "--update-snapshots",
        action="store_true",
        help="write tests/public_api.txt anew instead of comparing with it",
    )
    parser.addoption(
        "--kill-rounds",
        type=int,
        default=60,
        metavar="N",
        help="how many rounds tests/procs/test_kill_rounds.py has, of which two are not slow",
    )
    parser.addoption(
        "--kill-seed", type=int, default=0, metavar="N", help="decides what happens in each round"
    )
    parser.addoption(
        "--leak-patience",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="how long a test may take, once it is over, until all that it opened is closed",
    )


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that advances only when the test advances it."""
    from ding_lite.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a child process, one of our threads, a descriptor or a segment."""
    from ding_lite.clock import SYSTEM_CLOCK

    before, segments_before = _holdings(), _segments()
    yield
    patience: float = request.config.getoption("leak_patience")
    left: set[str] = set()
    for waited in range(round(10 * patience / 0.05)):
        # A test that another worker runs may have killed a process, and removes the segment of
        # that process at its end. So segments of ended processes get more time than the rest.
        orphans = {name for name, pid in _segments().items() if not Path(f"/proc/{pid}").exists()}
        left = (_holdings() - before) | (orphans - segments_before.keys())
        if not left:
            return
        if left - orphans and waited * 0.05 > patience:
            break
        gc.collect()  # what a reference cycle keeps alive, or is just ending, is no leak yet
        SYSTEM_CLOCK.sleep(0.05)
    pytest.fail("This test left behind: " + "; ".join(sorted(left)), pytrace=False)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Apply the deadline to the fixtures."""
    with _deadline(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Apply the deadline to the test."""
    with _deadline(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Apply the deadline to the teardown."""
    with _deadline(item):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the longest files first, and skip tests for a GPU if there is no GPU."""
    # A worker of `make test` takes a file at a time. A long one at the end would run alone.
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if torch.cuda.is_available():
            # The driver keeps what it opens for its first user; the first test must not be that.
            torch.zeros(1, device="cuda")
        else:
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish() -> None:
    """Exclude all imported objects from later garbage collections."""
    gc.freeze()
    gc.enable()


@contextmanager
def _deadline(item: pytest.Item) -> Iterator[None]:
    """Interrupt a hanging test, and show the stacks of all threads."""
    marker = item.get_closest_marker("deadline")
    seconds = float(marker.args[0]) if marker else SECONDS_PER_TEST

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        used = time.process_time() - cpu_time
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        pytest.fail(
            f"Still running after {seconds:g} s, of which this process computed {used:.1f} s "
            f"(load {load}).\n{_all_stacks()}"
        )

    cpu_time = time.process_time()
    previous = signal.signal(signal.SIGALRM, interrupt)
    # Again every 5 s: what the test does on the way out may hang as well.
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


def _holdings() -> set[str]:
    """Return the names of all resources that a test could leave open."""
    threads = {f"thread {t.name}" for t in threading.enumerate() if t.name.startswith("ding_lite")}
    own = {name for name, owner in _segments().items() if owner == str(os.getpid())}
    return threads | own | _children() | _descriptors()


def _segments() -> dict[str, str]:
    """Return the paths of all shared memory of this package, each with its process's id."""
    paths = Path("/dev/shm").glob("ding_lite-*")
    return {str(path): path.name.split("-")[2] for path in paths}


def _children() -> set[str]:
    """Return this process's children, except the two that multiprocessing keeps."""
    known = {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(pid) for pid in task.read_text().split()} - known
    return {f"child process {pid}" for pid in found}


def _descriptors() -> set[str]:
    """Return the open descriptors, except those of multiprocessing's two helpers."""
    known = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    found = set()
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(entry)
        except FileNotFoundError:  # the descriptor of this very listing
            continue
        # pym-: the heap that multiprocessing keeps for the arrays it shares.
        if int(entry.name) not in known and not target.startswith(
            ("/dev/urandom", "/dev/shm/pym-")
        ):
            found.add(f"descriptor {entry.name} ({target})")
    return found


def _all_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
