"""Runs for the tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from ding_lite.cli.main import main
from tests.recipes.conftest import leave_pictures_empty

QUICK = ["--max-env-steps", "320", "--set", "hidden=8,", "--quiet"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three seeds of a DQN, another learning rate, and a population."""
    folder = tmp_path_factory.mktemp("reported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        leave_pictures_empty(patch)
        every = ["--set", "eval_every=100", "--set", "log_every=40"]
        dqn = ["train", "dqn", "CartPole-v1", *QUICK, *every]
        for seed in ("0", "1", "2"):
            assert main([*dqn, "--seed", seed]) == 0
        assert main([*dqn, "--set", "lr=0.25"]) == 0
        evolve = ["evolve", "dqn", "CartPole-v1", *QUICK, "--population", "3"]
        assert main([*evolve, "--max-env-steps", "2000", "--set", "eval_every=100"]) == 0
    return folder
