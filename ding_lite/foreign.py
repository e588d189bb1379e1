"""Errors of functions and classes that belong to the program, and not to this package."""

from __future__ import annotations

import threading


def is_for_program(error: BaseException) -> bool:
    """Return whether an error must go on to the program, on any thread of ours.

    A signal's handler raises on the main thread, KeyboardInterrupt or SystemExit. On any other
    thread such an error is one of the function that was called, like every other.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, Exception)


def words_of(error: BaseException) -> str:
    """Return the message of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001 - the class of an error is the program's own
        return f"(no message: {type(raised).__name__} was raised instead)"
