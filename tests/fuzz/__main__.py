"""Break every file and frame that this package reads, in a process that may crash.

    python -m tests.fuzz FOLDER [--mutants 1000000] [--first 0] [--only manifests ...]

The seed of each mutant is its number, and FOLDER/at says which one was read last: so a crash has a
name, and a run that was stopped goes on with `--first`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ding_lite.errors import DingLiteError
from tests.fuzz import files, frames

MIB = 1 << 20
MOST_BYTES = 48 * MIB
"""Memory for reading one; the largest file has 1 MiB, and JSON of lists takes 30 times its size."""
NUM_MEASURED = 25


TARGETS: dict[str, tuple[Callable[[Path], Iterator[files.Attempt]], int]] = {
    "messages": (frames.messages, 640),
    "chunks": (frames.chunks, 80),
    "broadcasts": (frames.broadcasts, 40),
    "segments": (files.segments, 80),
    "node records": (files.node_records, 40),
    "keys": (files.keys, 20),
    "traces": (files.traces, 20),
    "configs": (files.configs, 10),
    "metric rows": (files.metric_rows, 20),
    "manifests": (files.manifests, 20),
    "outer manifests": (files.outer_manifests, 10),
    "tensor files": (files.tensor_files, 12),
    "row files": (files.row_files, 4),
    "policies": (files.policies, 2),
    "runs": (files.runs, 2),
}
"""Kinds of input, each with a way to break one, and how many of a thousand mutants it gets."""


def fuzz(name: str, folder: Path, *, first: int, count: int) -> Counter[str]:
    """Read `count` mutants of a target; return what became of them."""
    folder.mkdir(parents=True)
    fates: Counter[str] = Counter()
    at = os.open(folder.parent / "at", os.O_WRONLY | os.O_CREAT, 0o600)
    with contextmanager(TARGETS[name][0])(folder) as attempt:
        for seed in range(first, first + count):
            os.pwrite(at, f"{name} {seed}\n".encode(), 0)
            if measured := seed < first + NUM_MEASURED:
                tracemalloc.start()
            try:
                attempt(random.Random(f"{name} {seed}"))
                fates["read"] += 1
            except (DingLiteError, files.UnreadError) as error:
                check_words(error)
                fates["refused"] += 1
            except BaseException as error:
                error.add_note(f"{name}, seed {seed}")
                raise
            if measured:
                taken = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert taken < MOST_BYTES, f"{name}, seed {seed}: {taken} bytes"
    os.close(at)
    return fates


def check_words(error: Exception) -> None:
    """Hold an error to a few lines: what was found may be of any size."""
    assert len(str(error)) < 2_000, str(error)[:500]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    chosen = parser.parse_args()
    faulthandler.enable()
    for name in chosen.only:
        count = max(1, chosen.mutants * TARGETS[name][1] // 1_000)
        fates = fuzz(name, chosen.folder / name, first=chosen.first, count=count)
        sys.stdout.write(json.dumps({"target": name, **fates}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
