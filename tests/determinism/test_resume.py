"""A run that is killed at any moment, and resumed, ends as if it had never been killed."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ding_lite.middleware.report.throughput import MEASURED, is_measured
from ding_lite.nest import leaves
from ding_lite.rl.checkpoint.save_load import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
COMMON: dict[str, Any] = {
    **{"env": "CartPole-v1", "num_envs": 4, "seed": 3, "max_env_steps": 240, "target": 1e6},
    **{"hidden": [16], "eval_every": 80, "eval_episodes": 2},
    **{"checkpoint_every": 40, "log_every": 8},
}
CARTPOLE: dict[str, Any] = {
    **{**COMMON, "policy": "dqn", "n_step": 3, "batch_size": 16, "update_ratio": 0.5},
    **{"warmup": 40, "capacity": 150, "epsilon_steps": 200},
}
PENDULUM: dict[str, Any] = {
    **{"env": "Pendulum-v1", "batch_size": 16, "update_ratio": 0.5, "warmup": 40},
    **{"capacity": 150, "eval_every": 200},
}
OTHERS: dict[str, dict[str, Any]] = {
    "an array program": {"num_envs": 32, "max_env_steps": 960, "log_every": 32},
    "images": {"env": "ding_lite/Catch-v0", "frame_stack": 2, "max_env_steps": 160},
    "normalized": {
        **{"normalize_obs": True, "normalize_rewards": True, "dueling": True},
        **{"prioritized": True, "lr_end": 1e-5, "lr_updates": 80},
    },
    "a2c": {"policy": "a2c", "unroll": 5, "lr_end": 1e-5, "lr_updates": 8},
    "ppo": {
        **{"policy": "ppo", "env": "Pendulum-v1", "unroll": 5, "normalize_obs": True},
        **{"batch_size": 6, "epochs": 2, "normalize_rewards": True},
    },
    "impala": {"policy": "impala", "unroll": 4, "epochs": 2},
    "ddpg": {"policy": "ddpg", **PENDULUM},
    "td3": {"policy": "td3", **PENDULUM, "policy_delay": 3, "prioritized": True, "n_step": 3},
    "sac": {"policy": "sac", **PENDULUM, "normalize_obs": True},
}
"""Kinds of runs, by what they change; those of another policy change `COMMON`."""

pytestmark = pytest.mark.procs
SLOW = pytest.mark.slow


class Runs:
    """Starts runs, one after the other, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, directory: Path, **given: Any) -> int:
        """Start or resume a run; return its process id."""
        assert self._process.stdin is not None
        base = COMMON if "policy" in given else CARTPOLE
        line = json.dumps({**base, **given, "out": str(directory), "resume": True})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._read())

    def kill(self, directory: Path, *, rows: int, **given: Any) -> None:
        """Start or resume a run, and kill it when its metrics have so many rows."""
        pid, answers = self.start(directory, **given), self._process.stdout
        assert answers is not None
        ended = False
        while num_rows(directory) < rows and not ended:
            ended = bool(select.select([answers], [], [], 0.002)[0])
        os.kill(pid, signal.SIGKILL)
        assert self.end() == -signal.SIGKILL

    def end(self) -> int:
        """Wait for the end of the run that was started; return its exit code."""
        return int(self._read())

    def to_the_end(self, directory: Path, **given: Any) -> int:
        """Run until it has ended; return the exit code."""
        self.start(directory, **given)
        return self.end()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.determinism.runs"],
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "Agg"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Runs(process)
        process.communicate()


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that was not killed."""
    directory = tmp_path_factory.mktemp("whole")
    assert runs.to_the_end(directory) == 0
    return directory


def num_rows(directory: Path) -> int:
    with suppress(FileNotFoundError):
        return (directory / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def flat(state: Any) -> dict[Any, Any]:
    """Return all leaves of a checkpoint by path, without those that depend on time."""
    found = {}
    for path, leaf in leaves(state):
        # `auto` takes the mode that is faster, and the curve shows how fast it was.
        if {"wall_s", "file_bytes", "mode", "stage_seconds", *MEASURED} & set(path):
            continue
        is_tensor = isinstance(leaf, torch.Tensor | np.ndarray)
        found[tuple(path)] = np.asarray(leaf).tobytes() if is_tensor else leaf
    return found


def rows_of(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "wall_s" and not is_measured(k)} for row in rows]


def assert_same_end(directory: Path, whole: Path) -> None:
    """Compare the final states of two runs, bit for bit."""
    found = load_checkpoint(directory / "checkpoint")
    expected = load_checkpoint(whole / "checkpoint")
    assert found.meta == expected.meta
    for part in ("envs", "eval_envs"):  # `auto` may have found another mode to be faster
        if found.state[part]["mode"] != expected.state[part]["mode"]:
            del found.state[part]["source"], expected.state[part]["source"]
    assert flat(found.state["policy"]) == flat(expected.state["policy"])
    different = [
        path
        for path, leaf in flat(expected.state).items()
        if flat(found.state).get(path, "missing") != leaf
    ]
    assert different == []
    assert rows_of(directory) == rows_of(whole)
    best, best_of_whole = (load_checkpoint(run / "best") for run in (directory, whole))
    assert best.meta == best_of_whole.meta
    assert flat(best.state) == flat(best_of_whole.state)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=SLOW) for n in range(2, 8))])
def test_a_run_that_is_killed_again_and_again_ends_like_an_uninterrupted_one(
    runs: Runs, whole: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    while (rows := num_rows(tmp_path)) < num_rows(whole) - 8:
        # At first at any moment, then behind the next checkpoint.
        runs.kill(tmp_path, rows=(rows and rows + rng.randrange(6, 9)) or rng.randrange(9))
    assert runs.to_the_end(tmp_path) == 0
    assert_same_end(tmp_path, whole)


def test_a_run_may_be_killed_at_any_operation_on_a_file(
    runs: Runs, whole: Path, tmp_path: Path
) -> None:
    for operation in (1, 2, 3, 5, 8, 13, 21, 34):
        assert runs.to_the_end(tmp_path, kill_at_operation=operation) == -signal.SIGKILL
    assert runs.to_the_end(tmp_path) == 0
    assert_same_end(tmp_path, whole)


# DDPG is TD3 with less of it, and the tests of policies compare its states.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=SLOW if kind == "ddpg" else ()) for kind in OTHERS]
)
def test_runs_of_every_policy_resume_exactly(runs: Runs, tmp_path: Path, kind: str) -> None:
    changes = OTHERS[kind]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert runs.to_the_end(whole, **changes) == 0
    runs.kill(killed, rows=num_rows(whole) // 2, **changes)
    assert runs.to_the_end(killed, **changes) == 0
    assert_same_end(killed, whole)


def test_a_run_resumes_after_a_full_disk(runs: Runs, whole: Path, tmp_path: Path) -> None:
    for size in (3_000, 6_000):
        assert runs.to_the_end(tmp_path, largest_file=size) == 1
        assert num_rows(tmp_path) < num_rows(whole)
    assert num_rows(tmp_path) > 0
    assert runs.to_the_end(tmp_path) == 0
    assert_same_end(tmp_path, whole)
