"""Measure a candidate beside its baseline, interleaved in one process: every row is a ratio.

A benchmark is a file `tests/bench/bench_<question>.py` with one function::

    def run() -> list[Row]:
        return [
            compare("step, 5 functions", ours, plain, number=2_000, unit="us", per=5, target=3.0)
        ]

`ours` and `plain` are callables without arguments; `compare` runs them in turn, many times, and
takes medians. `make bench` runs all files, each in a fresh process. Every number is a cost: lower
is better (give seconds per item, not items per second).
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Literal

from ding_lite.settings.environment import limit_torch_threads

ClockName = Literal["cpu", "wall"]
Unit = Literal["s", "ms", "us", "ns", "MB", "env steps", "exponent"]

ROOT = Path(__file__).resolve().parents[2]
MIN_REPEATS = 5
_CLOCKS: dict[ClockName, Callable[[], float]] = {
    "cpu": time.process_time,
    "wall": time.perf_counter,
}
_PER_SECOND: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a cost, and what it is compared with."""

    name: str
    """The measured operation, in words; unique within its file and stable from run to run."""
    unit: Unit
    """Unit of `median`, `spread` and `baseline`."""
    median: float
    """The candidate's cost."""
    spread: float
    """Distance between the candidate's quartiles: half of the samples lie within it."""
    n: int
    """Samples of each side."""
    baseline: float | None = None
    """The baseline's median cost, measured in the same run."""
    baseline_name: str = ""
    """The baseline, in words."""
    ratio: float | None = None
    """Median of candidate / baseline over the pairs; below 1 the candidate is cheaper."""
    target: float | None = None
    """The upper bound: for the ratio if there is one, otherwise for the median."""
    tracked: bool = False
    """Whether `make bench-compare` fails when this row gets worse by more than a fifth."""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return (self.median if self.ratio is None else self.ratio) <= self.target


def compare(
    name: str,
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    baseline_name: str = "",
    unit: Unit = "us",
    number: int = 1,
    per: int = 1,
    repeats: int = 15,
    clock: ClockName = "cpu",
    target: float | None = None,
    tracked: bool = False,
) -> Row:
    """Time two callables in turn and make their row.

    Args:
        name: What was done, in words.
        candidate: Ours.
        baseline: What it is held against; does the same work.
        baseline_name: What that is, in words.
        unit: Unit of the row.
        number: Calls per sample; raise it until a sample takes some milliseconds.
        per: Items that one call handles; the row's cost is per item.
        repeats: Samples of each side, at least 5.
        clock: `cpu` counts this process's work (also on a busy machine), `wall` also its waiting.
        target: Highest ratio that is good enough.
        tracked: Whether `make bench-compare` guards this row.
    """
    ours, theirs = sample_pairs(
        candidate, baseline, number=number, per=per, repeats=repeats, clock=clock
    )
    return row_from_samples(
        name,
        ours,
        baseline=theirs,
        baseline_name=baseline_name,
        unit=unit,
        target=target,
        tracked=tracked,
    )


def measure(
    name: str,
    candidate: Callable[[], object],
    *,
    unit: Unit = "us",
    number: int = 1,
    per: int = 1,
    repeats: int = 15,
    clock: ClockName = "cpu",
    target: float | None = None,
    tracked: bool = False,
) -> Row:
    """Time one callable that has nothing to be held against; arguments as for `compare`."""
    _check_repeats(repeats)
    limit_torch_threads()
    candidate()
    samples = [_sample(candidate, number, _CLOCKS[clock]) / per for _ in range(repeats)]
    return row_from_samples(name, samples, unit=unit, target=target, tracked=tracked)


def sample_pairs(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    number: int = 1,
    per: int = 1,
    repeats: int = 15,
    clock: ClockName = "cpu",
) -> tuple[list[float], list[float]]:
    """Time two callables in turn; return the seconds per item of each.

    For rows that are not a ratio, as what one thing adds to another::

        timed, bare = sample_pairs(with_timer, without, number=500, per=5)
        extra = [a - b for a, b in zip(timed, bare, strict=True)]
        row = row_from_samples("StepTimer adds", extra, unit="us", target=0.5)
    """
    _check_repeats(repeats)
    limit_torch_threads()
    tick = _CLOCKS[clock]
    candidate()
    baseline()
    gc.collect()
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(repeats):
        sides = [(candidate, ours), (baseline, theirs)]
        # The first of a pair finds colder caches; let each side be first as often.
        for call, samples in sides if turn % 2 else reversed(sides):
            samples.append(_sample(call, number, tick) / per)
    return ours, theirs


def row_from_samples(
    name: str,
    samples: Sequence[float],
    *,
    baseline: Sequence[float] | None = None,
    baseline_name: str = "",
    unit: Unit = "us",
    target: float | None = None,
    tracked: bool = False,
) -> Row:
    """Make a row of costs measured elsewhere: seconds, or MB or env steps if that is the unit.

    `baseline` holds as many samples as `samples`, taken beside them; without one the target is
    one for the median.
    """
    _check_repeats(len(samples))
    scale = _PER_SECOND.get(unit, 1.0)
    quarter, _, three_quarters = quantiles(samples, n=4, method="inclusive")
    ratio = None
    if baseline is not None:
        ratio = median(ours / theirs for ours, theirs in zip(samples, baseline, strict=True))
    return Row(
        name=name,
        unit=unit,
        median=median(samples) * scale,
        spread=(three_quarters - quarter) * scale,
        n=len(samples),
        baseline=None if baseline is None else median(baseline) * scale,
        baseline_name=baseline_name,
        ratio=ratio,
        target=target,
        tracked=tracked,
    )


def run_program(source: str, *arguments: str, launcher: Sequence[str] = (), **environ: str) -> str:
    """Run a program in a folder of its own; return what it has printed.

    Args:
        source: The program, which imports ding_lite from this checkout.
        arguments: Its arguments.
        launcher: Words between the interpreter and the program, such as `-m` and a module.
        environ: Further environment variables.

    Raises:
        RuntimeError: It has not ended in order; the message has its errors.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(source)
        finished = subprocess.run(
            [sys.executable, *launcher, "program.py", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            capture_output=True,
            text=True,
        )
    if finished.returncode:
        raise RuntimeError(f"The program has ended with {finished.returncode}:\n{finished.stderr}")
    return finished.stdout


def _sample(call: Callable[[], object], number: int, tick: Callable[[], float]) -> float:
    started = tick()
    for _ in range(number):
        call()
    return (tick() - started) / number


def _check_repeats(repeats: int) -> None:
    if repeats < MIN_REPEATS:
        raise ValueError(f"{repeats} samples are too few for a median; take {MIN_REPEATS} or more.")
