"""Training runs of the algorithms in examples/own, which take a minute each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_examples import ROOT, started

pytestmark = [pytest.mark.slow, pytest.mark.procs, pytest.mark.deadline(400)]


@pytest.mark.parametrize("name", ["qr_dqn", "rainbow", "discrete_sac", "recurrent_ppo"])
def test_an_own_algorithm_solves_cartpole(name: str, tmp_path: Path) -> None:
    with started(ROOT / "examples" / "own" / f"{name}.py", cwd=tmp_path) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["solved"]
