"""The directory of a run: its files, and the lock of the process that writes to it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.io.files import replacing
from ding_lite.io.importing import find_again
from ding_lite.io.reading import read_json_object
from ding_lite.io.signature import is_signed
from ding_lite.rl.checkpoint.folder import MANIFEST, files_in, remove

CONFIG, METRICS, CHECKPOINT, CURVE = "config.json", "metrics.jsonl", "checkpoint", "curve.png"
PIPELINE, NODES, RESULT = "pipeline.txt", "nodes.jsonl", "result.json"
"""The pipeline as `Task.draw` prints it, the counts of the nodes over time, and the last line."""
BEST, BEST_EVALUATED = "best", "best_evaluated"
"""The policy that a run delivers; and that of the best evaluation, if the last one is better."""
EVENTS = "events.out.tfevents.*"
_MOST_SHOWN = 120
_MOST_BYTES = 16 << 20
_TYPES: dict[str, type | UnionType] = {
    **dict.fromkeys(("example", "env", "criterion"), str),
    **dict.fromkeys(("seed", "max_env_steps", "num_envs", "nodes", "population"), int),
    "target": int | float,
    "env_args": dict,
    **dict.fromkeys(("report", "wrappers", "imports"), list),
}
"""The values in a run's description and their types; null stands for a missing value."""


def make_next(parent: Path) -> Path:
    """Make the directory with the lowest free number; safe if several processes call it at once."""
    make_directory(parent)
    number = 1
    while True:
        directory = parent / str(number)
        try:
            directory.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _not_made(directory, error) from error
        else:
            return directory


def make_directory(directory: Path) -> None:
    """Make a directory unless it exists; raise ConfigError if that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(directory, error) from error


def _not_made(directory: Path, error: OSError) -> ConfigError:
    reason = "it is there, and no directory" if error.errno == errno.EEXIST else error.strerror
    return ConfigError(
        f"The directory {_shortened(directory)} cannot be made: {reason}. Choose another one that "
        f"you may write to (`--out DIR` for a run)."
    )


def _shortened(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def saved_description(directory: Path) -> dict[str, Any] | None:
    """Read the description of a run; None if there is no run.

    A run that was killed while it wrote its description, before any training, does not count.
    """
    try:
        return read_description(directory / CONFIG)
    except (OSError, ValueError) as error:
        if has_checkpoint(directory):
            raise ConfigError(
                f"{directory} has a checkpoint, but its {CONFIG} is missing or damaged, so that "
                f"what it is of is not known: {error}. Put the file back, or begin another run."
            ) from error
        if isinstance(error, FileNotFoundError | ValueError):
            return None
        raise ConfigError(
            f"{_shortened(directory)} is no directory of a run, or cannot be read: "
            f"{error.strerror}."
        ) from error


def saved_report(description: Mapping[str, Any]) -> tuple[str, ...]:
    names = (description.get("options") or {}).get("report") or []
    if names and not is_signed({"report": names}, description.get("report_signature")):
        raise ConfigError(
            f"The run reports to {', '.join(map(str, names))}, and comes from elsewhere, so that "
            f"this is not imported. If it is yours, say so: --report {names[0]}."
        )
    return tuple(find_again(str(name)) for name in names)


def read_description(file: Path) -> dict[str, Any]:
    """Read the `config.json` of a run; raise OSError or ValueError if that is not possible."""
    described = read_json_object(file, most=_MOST_BYTES)
    for name in ("options", "config", "versions"):
        if not isinstance(described.get(name), dict | None):
            raise ValueError(f"its `{name}` is no JSON object")
    saved = {"example": described.get("example"), **(described.get("options") or {})}
    for name, kind in _TYPES.items():
        if saved.get(name) is not None and not isinstance(saved[name], kind):
            raise ValueError(f"its `{name}` is {saved[name]!r:.80}")
    return described


def code_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that name the user's code: wrappers and imports."""
    return {name: options[name] for name in ("wrappers", "imports") if options.get(name)}


def describe(directory: Path, description: Mapping[str, Any]) -> None:
    """Write the description of a run atomically."""
    try:
        with replacing(directory / CONFIG) as unfinished:
            unfinished.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"The directory {directory} cannot be written to: {error.strerror}. Choose another "
            f"one (`--out`, in Python `out=`)."
        ) from error


def has_checkpoint(directory: Path) -> bool:
    return (directory / CHECKPOINT / MANIFEST).exists()


def has_best(directory: Path) -> bool:
    return (directory / BEST / MANIFEST).exists()


def put_best_aside(directory: Path) -> None:
    """Keep the policy of the best evaluation for a resumed run, where another one is delivered."""
    (directory / BEST).rename(directory / BEST_EVALUATED)


def put_back_best(directory: Path) -> None:
    """Undo `put_best_aside`: a resumed run goes on with the policy of its best evaluation."""
    if (directory / BEST_EVALUATED / MANIFEST).exists():
        if (directory / BEST).exists():
            shutil.rmtree(directory / BEST)
        (directory / BEST_EVALUATED).rename(directory / BEST)


def remove_unfinished(directory: Path) -> None:
    """Remove the temporary files of a run that was killed while it replaced one of its files."""
    for path in map(Path, (CONFIG, CURVE, RESULT)):
        remove(directory.glob(f".{path.stem}.unfinished-*{path.suffix}"))


def begin_anew(directory: Path) -> None:
    """Remove the files of a run that was killed before its first checkpoint."""
    files = [directory / name for name in (METRICS, CURVE, NODES, RESULT)]
    files += [*directory.glob(EVENTS), directory / BEST / MANIFEST, *files_in(directory / BEST)]
    for leftover in files:
        leftover.unlink(missing_ok=True)


class Lock:
    """A lock of a run's directory against other processes."""

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
        """Release the lock, also if a process forked meanwhile has the descriptor too."""
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def is_locked(directory: Path) -> bool:
    """Return whether a process works on a run, according to the kernel's list of locks.

    Trying the lock instead could prevent a run from starting. Processes in other containers are not
    found.
    """
    try:
        inode = str(directory.stat().st_ino)
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(
        words[1:2] == ["FLOCK"] and inode in words[5].split(":")[2:]
        for words in map(str.split, locks)
    )
