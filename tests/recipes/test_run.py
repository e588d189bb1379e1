"""What a run leaves behind: its directory, its verdict and its last line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.recipes import Options, Run
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs import make_envs
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.runtime.task import Task
from ding_lite.testing import ManualClock

KEYS = [
    *("example", "env", "seed", "solved", "env_steps", "episodes"),
    *("train_iter", "wall_s", "eval_return", "nodes"),
]


class Balancer(DQN):
    """A DQN that balances by rule."""

    def act(
        self, obs: NumpyArray, *, explore: bool = True, epsilon: float | None = None
    ) -> NumpyArray:
        return (obs[:, 2] + 0.3 * obs[:, 3] + 0.02 * obs[:, 0] > 0).astype(np.int64)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def options(**changes: Any) -> Options:
    values = {
        "env": "CartPole-v1",
        "seed": 0,
        "max_env_steps": 100,
        "target": 475.0,
        "smoke": False,
        "out": None,
    }
    return Options(**{**values, **changes})


def make_policy(kind: type[DQN] = DQN) -> DQN:
    with make_envs("CartPole-v1", 1) as envs:
        return kind(envs.spec, DQNConfig(hidden=(8,), n_step=1))


def test_each_run_gets_the_next_number() -> None:
    for number in (1, 2, 3):
        with Run("mine", options()) as run:
            assert run.directory == Path("runs/mine") / str(number)


def test_a_directory_of_ones_own_is_used_as_it_is(tmp_path: Path) -> None:
    with Run("mine", options(out=tmp_path / "here")) as run:
        assert run.directory == tmp_path / "here"
        assert run.checkpoint == tmp_path / "here" / "checkpoint"


def test_a_directory_with_another_run_is_refused(tmp_path: Path) -> None:
    with Run("mine", options(out=tmp_path / "here")):
        pass
    with pytest.raises(ConfigError, match="holds another run already"):
        Run("mine", options(out=tmp_path / "here")).__enter__()


def test_the_settings_of_the_run_are_written_down() -> None:
    with Run("mine", options(seed=3), config=DQNConfig(lr=0.5, hidden=(7,))) as run:
        said = json.loads((run.directory / "config.json").read_text())
    assert said["example"] == "mine"
    assert said["options"]["seed"] == 3
    assert (said["config"]["lr"], said["config"]["hidden"]) == (0.5, [7])
    assert set(said["versions"]) == {"python", "torch"}


def test_the_last_line_has_every_key_in_order(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run("mine", options(), clock=clock) as run, make_envs("CartPole-v1", 4) as envs:
        policy = make_policy(Balancer)
        with Task() as task:
            task.use(mw.collect(policy, envs, steps=4))
            task.use(mw.train(policy))
            task.use(mw.log(every=10, path=run.metrics, quiet=True))
            task.run(max_step=620)
        clock.advance(12.5)
        run.conclude(policy)

    out = capsys.readouterr().out
    assert out.count("\n") == 1
    line = json.loads(out)
    assert list(line) == KEYS
    assert line == {
        "example": "mine",
        "env": "CartPole-v1",
        "seed": 0,
        "solved": True,
        "env_steps": 2480,
        "episodes": 4,
        "train_iter": 620,
        "wall_s": 12.5,
        "eval_return": 500.0,
        "nodes": 1,
    }


def test_what_has_no_meaning_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    with Run("mine", options()) as run:
        run.conclude(make_policy())
    line = json.loads(capsys.readouterr().out)
    assert list(line) == KEYS
    assert line["solved"] is False
    assert line["eval_return"] < 475.0
    assert (line["env_steps"], line["episodes"], line["train_iter"]) == (None, None, None)


def test_a_person_is_told_what_there_is_and_what_to_try(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Run("mine", options()) as run, make_envs("CartPole-v1", 4) as envs:
        policy = make_policy(Balancer)
        with Task() as task:
            task.use(mw.collect(policy, envs, steps=4))
            task.use(mw.checkpoint(policy, run.checkpoint, every=100))
            task.use(mw.log(every=10, path=run.metrics, quiet=True))
            task.use(mw.tensorboard(run.directory))
            task.run(max_step=10)
        run.conclude(policy, try_next="Try next: more.")

    said = capsys.readouterr().err.splitlines()
    assert said[1].startswith("Solved CartPole-v1: a mean return of 500.0 in 20 greedy episodes")
    assert said[2:] == [
        "  metrics      runs/mine/1/metrics.jsonl",
        "  checkpoint   runs/mine/1/checkpoint",
        "  TensorBoard  tensorboard --logdir runs/mine/1",
        "Try next: more.",
    ]


def test_ctrl_c_ends_with_130_and_says_where_the_checkpoint_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> None:
        with Run("mine", options()) as run:
            run.checkpoint.mkdir()
            (run.checkpoint / "manifest.json").touch()
            raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        interrupted()
    assert ended.value.code == 130
    assert "the checkpoint is in runs/mine/1/checkpoint" in capsys.readouterr().err


def test_ctrl_c_before_the_first_save_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), Run("mine", options()):
        raise KeyboardInterrupt
    assert "nothing was saved yet" in capsys.readouterr().err


def test_other_exceptions_come_out_as_they_are() -> None:
    with pytest.raises(ValueError, match="a bug"), Run("mine", options()):
        raise ValueError("a bug")
