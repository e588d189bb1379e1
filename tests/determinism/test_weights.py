"""The same seed gives the same weights, bit for bit, also in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.determinism.weights import RUNS, first_hash, trained_hash

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("run", RUNS)
def test_the_same_seed_gives_the_same_weights_bit_for_bit(run):
    assert trained_hash(run) == first_hash(run)
    assert trained_hash(run, seed=1) != first_hash(run)


@pytest.mark.procs
def test_a_fresh_process_with_another_hash_seed_gives_the_same_weights():
    printed = subprocess.run(
        [sys.executable, "-m", "tests.determinism.weights"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed == "".join(f"{run} {first_hash(run)}\n" for run in RUNS)
