"""Run a program's `main`; errors that the user can fix are shown without a traceback."""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.exit_codes import INTERRUPTED, SLIPS, exit_code_of
from ding_lite.log import write_to_stderr


def run_program(main: Callable[[], object]) -> None:
    """Run `main`; an error that the user can fix becomes one sentence and an exit code.

    The exit code is 2 for a wrong option, a missing package and a checkpoint that cannot be read, 1
    for a checkpoint that cannot be written, and 130 for Ctrl-C. Other errors keep their traceback.
    """
    try:
        main()
    except SLIPS as error:
        write_to_stderr(f"error: {error}\n")
        raise SystemExit(exit_code_of(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
