"""Wall-clock time of `ding-lite` commands, each in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from tests.bench.harness import ROOT, Row, measure


def run() -> list[Row]:
    start_to_end = partial(measure, unit="s", clock="wall")
    looks = partial(call, "doctor")
    return [
        start_to_end(
            "ding-lite --help, start to end", partial(call, "--help"), target=0.5, tracked=True
        ),
        start_to_end("ding-lite doctor, start to end", looks, repeats=5, target=5.0),
    ]


def call(word: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ding_lite", word],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
