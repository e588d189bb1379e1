"""The exit codes of `ding-lite` and of training programs."""

from __future__ import annotations

from ding_lite.errors import CheckpointError, ConfigError, MissingExtraError, SaveError

DONE, FAILED, WRONG_USAGE = 0, 1, 2
INTERRUPTED = 130
"""The exit code of Ctrl-C in a shell: 128 plus the number of SIGINT."""
SLIPS = (CheckpointError, ConfigError, MissingExtraError)
"""Errors that a user can fix."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of an error: that of a slip came before anything was begun."""
    is_slip = isinstance(error, SLIPS) and not isinstance(error, SaveError)
    return WRONG_USAGE if is_slip else FAILED
