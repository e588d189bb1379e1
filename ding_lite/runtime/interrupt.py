"""Ctrl-C as the end of a step instead of the middle of one.

The first SIGINT or SIGTERM sets the job's latch: the step ends, open generators close,
checkpoints are written. A second one raises at once, wherever the program is.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)


class Interruption:
    """Which signal has asked for the end, if any."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def raise_if_any(self) -> None:
        """Raise what the signal would have raised: now that the step has ended.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            SystemExit: It was SIGTERM; the code is 143, as the shell expects.
        """
        if self.signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signum is not None:
            raise SystemExit(128 + self.signum)


@contextmanager
def interruptible(end: Callable[[], None]) -> Iterator[Interruption]:
    """Call `end()` at the first signal instead of raising, for the length of a `with` block.

    Signals that the program already handles are left alone, and so is everything on a thread
    that is not the main one, where no handler can be set.
    """
    interruption = Interruption()

    def handle(signum: int, frame: FrameType | None) -> None:
        if interruption.signum is not None:
            interruption.signum = signum
            interruption.raise_if_any()
        interruption.signum = signum
        # Handlers interrupt any code, also code that holds a lock which `end` needs.
        threading.Thread(target=_announce, args=(signum, end), name="interrupt").start()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) in (signal.default_int_handler, signal.SIG_DFL):
                before[signum] = signal.signal(signum, handle)
    try:
        yield interruption
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _announce(signum: int, end: Callable[[], None]) -> None:
    end()
    name = signal.Signals(signum).name
    logger.warning("%s: the run ends after this step; once more ends it at once", name)
