"""A function that runs in a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_a_child(use: Callable[[], object]) -> str:
    """Return the result or the error of a function in a process that this one forks."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # a child that hangs would outlive the test
        try:
            text = str(use())
        except Exception as error:  # noqa: BLE001 - the test compares it
            text = f"{type(error).__name__}: {error}"
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text
