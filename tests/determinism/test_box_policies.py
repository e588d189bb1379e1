import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.determinism.box_weights import trained_hash

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("ddpg", "td3", "sac")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights_bit_for_bit(name):
    assert trained_hash(name, seed=0) == trained_hash(name, seed=0)
    assert trained_hash(name, seed=0) != trained_hash(name, seed=1)


@pytest.mark.procs
def test_a_fresh_process_with_another_hash_seed_gives_the_same_weights():
    printed = subprocess.run(
        [sys.executable, "-m", "tests.determinism.box_weights", *NAMES],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed == "".join(f"{name} {trained_hash(name, seed=0)}\n" for name in NAMES)
