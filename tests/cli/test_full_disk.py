"""Disks that are full or read-only: one sentence that names the file and the system's reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.slips import TRAIN, words_of
from tests.warm import Output, Warm

pytestmark = pytest.mark.procs
SLOW = pytest.mark.slow
LONG = f"{TRAIN} --max-env-steps 2000 --target 1000 --set checkpoint_every=64 --set log_every=8"


def on_a_disk_of_its_own(process: Warm, folder: Path, options: str, line: str) -> Output:
    """Type a line in `disk`, a file system that is mounted with options for this one process."""
    (folder / "disk").mkdir()
    return process.call(words_of(line), folder / "disk", disk=options, seconds=60.0)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f"{TRAIN} --out run", "The directory run cannot be made: Read-only file system. Choose"),
        (TRAIN, "The directory runs/dqn/CartPole-v1 cannot be made: Read-only file system."),
        ("keygen job.key", "The key file job.key cannot be written: Read-only file system."),
    ],
)
def test_a_read_only_disk_is_reported_before_the_run_begins(process, tmp_path, line, fault) -> None:
    done = on_a_disk_of_its_own(process, tmp_path, "ro", line)
    assert done.code == 2, done.err
    assert f"ding-lite {line.split()[0]}: {fault}" in done.err
    assert "Traceback" not in done.err, done.err


def test_a_disk_without_room_for_a_run_is_reported_before_it_begins(process, tmp_path) -> None:
    done = on_a_disk_of_its_own(process, tmp_path, "size=4k,nr_inodes=2", f"{TRAIN} --out run")
    assert done.code == 2, done.err
    assert "The directory run cannot be written to: No space left on device." in done.err
    assert "Traceback" not in done.err, done.err


@pytest.mark.parametrize("kilobytes", [*(pytest.param(k, marks=SLOW) for k in (16, 80)), 40])
def test_a_disk_that_fills_up_ends_the_run_with_one_sentence(process, tmp_path, kilobytes) -> None:
    done = on_a_disk_of_its_own(process, tmp_path, f"size={kilobytes}k", f"{LONG} --out run")
    assert done.code == 1, done.err
    assert "Traceback" not in done.err, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("ding-lite train: ")
    assert "No space left on device" in last
    assert "run/" in last


@pytest.mark.parametrize(
    "file_bytes", [3_000, 12_000, *(pytest.param(k, marks=SLOW) for k in (6_000, 40_000))]
)
def test_a_file_that_may_not_grow_ends_the_run_with_one_sentence(process, tmp_path, file_bytes):
    line = f"{LONG} --set hidden=64,64 --out run"
    fault = process.call(words_of(line), tmp_path, file_bytes=file_bytes)
    assert fault.code == 1, fault.err
    assert "Traceback" not in fault.err
    last = fault.err.splitlines()[-1]
    assert last.startswith("ding-lite train: ")
    assert "File too large" in last
