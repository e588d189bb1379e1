"""The frame around a program's `main`: what a user can mend is said without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ding_lite.errors import ConfigError, MissingExtraError

_USAGE = 2
_INTERRUPTED = 130


def run_program(main: Callable[[], object]) -> None:
    """Run `main`; a wrong option or a missing package ends it with a sentence and exit code 2.

    Ctrl-C ends it with exit code 130. Any other error keeps its traceback.
    """
    try:
        main()
    except (ConfigError, MissingExtraError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(_USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
