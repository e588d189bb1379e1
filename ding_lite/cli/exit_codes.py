"""The exit codes of `ding-lite`."""

from __future__ import annotations

DONE, FAILED, WRONG_USAGE = 0, 1, 2
INTERRUPTED = 130
"""The exit code of Ctrl-C in a shell: 128 plus the number of SIGINT."""
