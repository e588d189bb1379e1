"""Run a program's `main`, and show errors that a user can mend without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ding_lite.errors import CheckpointError, ConfigError, MissingExtraError, SaveError

_FAILED, _USAGE = 1, 2
_INTERRUPTED = 130


def run_program(main: Callable[[], object]) -> None:
    """Run `main`; an error that a user can mend ends it with a sentence.

    A wrong option, a missing package and a checkpoint that cannot be read end it with exit code 2,
    a checkpoint that cannot be written with 1, and Ctrl-C with 130. Any other error keeps its
    traceback.
    """
    try:
        main()
    except (CheckpointError, ConfigError, MissingExtraError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(_FAILED if isinstance(error, SaveError) else _USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
