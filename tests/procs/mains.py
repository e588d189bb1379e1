"""Programs of nodes in tests, at the top level of a module so that nodes can import them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.router import current_router


class Unpicklable(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Unreadable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self) -> Any:
        return refuse_to_be_read, ()


def refuse_to_be_read() -> None:
    raise EOFError("not here")


def return_an_unreadable_object() -> Unreadable:
    return Unreadable()


def node_id() -> int:
    return current_router().node_id


def spec() -> NodeSpec:
    router = current_router()
    assert isinstance(router, NodeRouter)
    return router._spec


def arguments(*args: Any, **kwargs: Any) -> Any:
    return node_id(), sorted(current_router().labels), args, kwargs


def whereabouts() -> Any:
    return os.getcwd(), sys.argv, os.environ.get("TEST_OF_NODES"), os.getpid(), os.getpgid(0)


def random_numbers() -> Any:
    import random

    import numpy as np
    import torch

    return random.random(), np.random.random(), torch.rand(()).item()


def wait_for_the_end() -> None:
    threading.Event().wait()


def fail_on(*node_ids: int) -> None:
    if node_id() in node_ids:
        raise ZeroDivisionError(f"on {node_id()}")
    wait_for_the_end()


def fail_and_never_close() -> None:
    """Fail on node 1, while all routers close only when their processes are killed."""
    router: Any = current_router()
    router.close = lambda **how: wait_for_the_end()
    fail_on(1)


def fail_stubbornly(failing: int) -> None:
    """Fail on one node, while the others cannot be ended by a plain signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fail_on(failing)


class NeverPickled(Exception):
    """An error with a `__reduce__` that never returns."""

    def __reduce__(self) -> Any:
        wait_for_the_end()


def fail_with_an_error_that_cannot_be_passed_on() -> None:
    if node_id() == 1:
        raise NeverPickled("in time")
    wait_for_the_end()


def fail_oddly() -> None:
    raise Unpicklable(1, 2)


class Speechless(Exception):
    """An error without a message: `str` of it raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail_without_a_message() -> None:
    error = Speechless()
    error.add_note("in middleware `fail`")
    raise error


def leave_with(code: Any) -> None:
    if node_id() == 1:
        sys.exit(code)


def return_a_lambda() -> Any:
    return lambda: None


def linger() -> int:
    """Leave a thread behind that keeps the process from ending."""
    threading.Thread(target=wait_for_the_end).start()
    return node_id()


def fail_and_linger(folder: str) -> int:
    """Fail on node 1, and leave a thread behind that keeps the failed process from ending."""
    if node_id() == 1 and spec().incarnation == 1:
        threading.Thread(target=wait_for_the_end).start()
        raise ZeroDivisionError
    (Path(folder) / str(node_id())).touch()
    while len(list(Path(folder).iterdir())) < spec().num_nodes:
        threading.Event().wait(0.01)
    return spec().incarnation


def start_a_process() -> int:
    """Leave a process behind, in the node's own group."""
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    return child.pid


def die_in_the_first_incarnations(folder: str, number: int, how: str) -> Any:
    """Fail until a number of incarnations has been reached; return them."""
    mark = Path(folder) / f"{node_id()}-{spec().incarnation}"
    mark.touch()
    if node_id() == 1 and spec().incarnation < number:
        if how == "raise":
            raise ZeroDivisionError
        os.kill(os.getpid(), signal.SIGKILL)
    if node_id() == 0:  # node 0 is not restarted, and waits for node 1
        last = Path(folder) / f"1-{number}"
        while not last.exists():
            threading.Event().wait(0.01)
    return sorted(path.name for path in Path(folder).glob(f"{node_id()}-*"))


def raise_keyboard_interrupt() -> None:
    if node_id() == 1:
        raise KeyboardInterrupt
    wait_for_the_end()


def signal_myself(number: int) -> None:
    if node_id() == 1:
        os.kill(os.getpid(), number)
    wait_for_the_end()


def stop_on(node: int) -> int:
    if node_id() == node:
        os.kill(os.getpid(), signal.SIGSTOP)
    return node_id()


def run_again() -> None:
    from ding_lite.parallel import Parallel

    Parallel.runner(1)(node_id)
