import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.determinism.dqn_weights import trained_hash

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mode", ["native", "sync"])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(mode):
    assert trained_hash(seed=0, mode=mode) == trained_hash(seed=0, mode=mode)
    assert trained_hash(seed=0, mode=mode) != trained_hash(seed=1, mode=mode)


@pytest.mark.procs
def test_a_fresh_process_with_another_hash_seed_gives_the_same_weights():
    printed = subprocess.run(
        [sys.executable, "-m", "tests.determinism.dqn_weights"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed == trained_hash(seed=0) + "\n"
