"""How long `ding-lite --help` takes: wall clock of a fresh process, what a user waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.harness import Row, measure

ROOT = Path(__file__).resolve().parent.parent.parent


def run() -> list[Row]:
    """Ask for help, many times."""
    return [
        measure(
            "ding-lite --help, start to end",
            ask_for_help,
            unit="s",
            clock="wall",
            target=0.5,
            tracked=True,
        )
    ]


def ask_for_help() -> None:
    """Start a process that prints the help."""
    subprocess.run(
        [sys.executable, "-m", "ding_lite", "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
