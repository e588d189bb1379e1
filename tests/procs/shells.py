"""Shells that run one typed line, for programs that are started by hand or by a launcher."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.procs.programs import PREAMBLE, PROGRAMS, Forked, Program
from tests.warm import Warm


class Shell(Program):
    """A shell that runs one typed line."""

    def __init__(self, folder: Path, line: str, **environ: str) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._start(folder, ("sh", "-c", line), {"PATH": path, **environ})

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()


Type = Callable[..., Program]


class Shells:
    """Types lines into shells, or forks what they start; all of it ends with its `stack`.

    Args:
        folder: Where programs and keys are kept.
        stack: What ends the shells.
        port: What stands for 50515 in each line.
        warm: What forks the programs; by default a shell starts them.
    """

    def __init__(self, folder: Path, stack: ExitStack, port: int, warm: Warm | None = None) -> None:
        self._folder = folder
        self._stack = stack
        self._port = port
        self._warm = warm

    def type_line(
        self,
        line: str,
        port: int | None = None,
        *,
        source: str = "",
        program: str = "",
        **environ: str,
    ) -> Program:
        """Type a line that starts `train.py`, with a free port in place of 50515.

        Args:
            line: What is typed.
            port: Another port than that of all lines.
            source: What is in `train.py`.
            program: One of `tests/programs` instead of it.
            environ: More variables.
        """
        own = Path(tempfile.mkdtemp(dir=self._folder))
        if program:
            line = line.replace("train.py", str(PROGRAMS / f"{program}.py"))
        else:
            (own / "train.py").write_text(PREAMBLE + source)
        line = line.replace("50515", str(port or self._port))
        environ["XDG_STATE_HOME"] = str(self._folder / "state")
        if self._warm is None:
            return self._stack.enter_context(Shell(own, line, **environ))
        assigned, _, command = line.partition("python ")
        environ |= dict(word.split("=", 1) for word in assigned.split())
        forked = Forked(self._warm, own, "", *command.split(), variables=environ)
        return self._stack.enter_context(forked)
