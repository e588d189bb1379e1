"""A program at a terminal: what its user sees, and what its user types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Self

from tests.cli.calls import environment
from tests.procs.programs import PREAMBLE

CTRL_C = "\x03"


class Terminal:
    """A program with one controlling terminal for its input, output and errors."""

    def __init__(
        self, folder: Path, source: str, *command: str, columns: int = 100, lines: int = 40
    ) -> None:
        (folder / "program.py").write_text(PREAMBLE + source)
        environ = environment(TMPDIR=str(folder), TERM="xterm")
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environ.pop(name, None)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *(command or ("program.py",))],
            cwd=folder,
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str, *, times: int = 1) -> str:
        """Read on until a text has been shown so often; return all that has been shown."""
        while self.shown.count(text) < times:
            if not (more := self._read()):
                raise AssertionError(f"the program ended without showing {text!r}:\n{self.shown}")
            self.seen += more
        return self.shown

    @property
    def shown(self) -> str:
        """The output without colours; a new line begins where the cursor moved elsewhere."""
        text = re.sub(r"\r\n|\r|\x1b\[[0-9]*[A-H]", "\n", self.seen)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    def modes(self) -> list[object]:
        """How the terminal treats keys at the moment."""
        return termios.tcgetattr(self._ours)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and all that was shown."""
        while more := self._read():
            self.seen += more
        return self.process.wait(), self.shown

    def _read(self) -> str:
        try:
            return os.read(self._ours, 65_536).decode(errors="replace")
        except OSError:  # what Linux says when the other side has been closed
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self.process:
            if self.process.poll() is None:
                self.process.kill()
        os.close(self._ours)
