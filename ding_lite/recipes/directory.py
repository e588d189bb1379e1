"""The directory of a run: what lies in it, and who may write to it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.rl.checkpoint import MANIFEST

CONFIG, METRICS, CHECKPOINT, CURVE = "config.json", "metrics.jsonl", "checkpoint", "curve.png"
BEST = "best"
"""Where the policy lies whose evaluation was the best one."""
EVENTS = "events.out.tfevents.*"


def make_next(parent: Path) -> Path:
    """Make the first directory with a number that no run has taken; several may ask at once."""
    number = 1
    while True:
        directory = parent / str(number)
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return directory


def saved_description(directory: Path) -> dict[str, Any] | None:
    """Read what a run has written about itself; None where there is no run.

    A run that was killed while it wrote that, before it had done anything, is none.

    Raises:
        ConfigError: It cannot be read, though the run has saved a checkpoint.
    """
    try:
        described: dict[str, Any] = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        if has_checkpoint(directory):
            raise ConfigError(
                f"{directory} has a checkpoint, but its {CONFIG} is missing or damaged, so nobody "
                f"can tell what it is of: {error}. Put the file back, or begin another run."
            ) from error
        return None
    return described


def describe(directory: Path, description: Mapping[str, Any]) -> None:
    """Write what a run says about itself, whole or not at all."""
    unfinished = directory / f".{CONFIG}.unfinished"
    unfinished.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(directory / CONFIG)


def has_checkpoint(directory: Path) -> bool:
    """Tell whether a run has saved anything yet."""
    return (directory / CHECKPOINT / MANIFEST).exists()


def has_best(directory: Path) -> bool:
    """Tell whether a run has kept the policy of its best evaluation."""
    return (directory / BEST / MANIFEST).exists()


def begin_anew(directory: Path) -> None:
    """Remove what a run has left that was killed before its first checkpoint."""
    best = directory / BEST
    files = (directory / METRICS, directory / CURVE, *directory.glob(EVENTS), *best.glob("*"))
    for leftover in files:
        leftover.unlink(missing_ok=True)


class Lock:
    """Keeps other processes out of a run's directory, for as long as this one lives.

    Args:
        directory: Of the run.

    Raises:
        ConfigError: Another process works on the run.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise ConfigError(
                f"Another process works on the run in {directory}. Wait until it has ended, or "
                f"choose another directory with `--out`."
            ) from error
        except OSError:  # some file systems have no locks
            pass

    def release(self) -> None:
        """Let others in."""
        os.close(self._descriptor)
