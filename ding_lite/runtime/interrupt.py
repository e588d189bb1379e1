"""Defer Ctrl-C to the end of the current step.

The first SIGINT or SIGTERM sets the task's latch: the step ends, open generators close, checkpoints
are written. SIGINT ends the job on all nodes. SIGTERM ends this node alone, as it is sent to a
process that is to be moved; if the whole job is to end, each process gets its own. A second signal
raises at once, wherever the program is. Programs that end another one often signal it twice, the
process and its group, so the same signal within half a second of the first one counts as one. The
kernel sends SIGHUP when the terminal of a program is closed; it is treated as SIGTERM, unless the
run is ending already.

If a program seems to ignore Ctrl-C, its user kills it, and it saves nothing. So this is the only
message that is shown even without logging: one line, on a terminal only, and not by the processes
that the program has started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.interruption import ENDING, Interruption, handle_as_new_program

REPEAT_S = 0.5
"""Seconds within which the same signal counts as one."""

logger = logging.getLogger(__name__)


class DeferredSigint:
    """A SIGINT handler that defers Ctrl-C to the end of a block: `with deferred_sigint: ...`.

    Everywhere else on the main thread it raises KeyboardInterrupt at once, like Python's handler.
    Entering a block costs next to nothing, whereas setting a handler takes microseconds. The
    handler calls `on_interrupt` if Ctrl-C comes within a block.
    """

    def __init__(self, on_interrupt: Callable[[], None] = lambda: None) -> None:
        self._on_interrupt = on_interrupt
        self.is_deferring = False
        """Whether the main thread is in the block."""
        self.is_pending = False
        """Whether Ctrl-C was pressed in the block."""
        self.thread: int | None = None
        """The id of the main thread, which may use blocks, while this is the handler of SIGINT."""

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if not self.is_deferring:
            signal.default_int_handler(signum, frame)
        self.is_pending = True
        self._on_interrupt()

    def __enter__(self) -> Self:
        """Defer Ctrl-C from now on; on the main thread, and not within another such block."""
        self.is_deferring = True
        return self

    def __exit__(self, *_: object) -> None:
        """Raise KeyboardInterrupt if Ctrl-C has come meanwhile."""
        self.is_deferring = False
        is_pending, self.is_pending = self.is_pending, False
        if is_pending:
            self(signal.SIGINT, None)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT within a `with` block, unless the program handles it."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self)
        self.thread = threading.get_ident()
        try:
            yield
        finally:
            self.thread = None
            if signal.getsignal(signal.SIGINT) is self:
                signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interruptible(
    end: Callable[[int], None], *, clock: Clock = SYSTEM_CLOCK, announce: bool = True
) -> Iterator[Interruption]:
    """Call `end(signum)` at the first signal instead of raising, within a `with` block.

    Signals that the program already handles are left alone, as are signals on threads other than
    the main one, where no handler can be set. `end` runs on a separate thread; `announce` prints
    that the run ends after this step.
    """
    interruption, process = Interruption(), os.getpid()

    def handle(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # `multiprocessing.Pool`, for one, ends its children by SIGTERM
            handle_as_new_program(signum)
            return
        now, name = clock.now(), signal.Signals(signum).name
        if signum == signal.SIGHUP:
            if interruption.signum is not None:
                return
            signum = signal.SIGTERM
        if interruption.signum == signum and now - interruption.at < REPEAT_S:
            return
        if interruption.signum is not None:
            interruption.signum = signum
            interruption.raise_if_any()
        interruption.signum, interruption.at = signum, now
        respond = partial(_announce, name=name, end=end) if announce else end
        # Handlers interrupt any code, also code that holds a lock which `end` needs.
        threading.Thread(target=respond, args=(signum,), name="interrupt").start()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in ENDING:
            if not _is_the_programs(signal.getsignal(signum)):
                before[signum] = signal.signal(signum, handle)
    try:
        with interruption.entered():
            yield interruption
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _is_the_programs(handler: object) -> bool:
    if isinstance(handler, partial):  # that of `asyncio.run`: its loop does nothing meanwhile
        return not isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
    known = (signal.default_int_handler, signal.SIG_DFL)
    return handler not in known and type(handler) is not DeferredSigint


def _announce(signum: int, *, name: str, end: Callable[[int], None]) -> None:
    end(signum)
    if logger.hasHandlers():
        logger.warning("%s: the run ends after this step; once more ends it at once", name)
    else:  # each process of a job would write the warning
        _write_to_terminal("Ctrl-C" if signum == signal.SIGINT else name)


def _write_to_terminal(name: str) -> None:
    """Write to standard error, if it is a terminal and a user has started this process."""
    from multiprocessing import parent_process  # not before: it is slow to import

    if parent_process() is not None:
        return
    with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        if sys.stderr.isatty():
            sys.stderr.write(f"\n{name}: the run ends after this step; once more ends it at once\n")
            sys.stderr.flush()
