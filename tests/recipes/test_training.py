"""Training by name, in one call."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from easydict import EasyDict

import ding_lite
from ding_lite.errors import ConfigError
from ding_lite.recipes import TrainResult, load_policy
from ding_lite.rl.checkpoint.save_load import load_checkpoint
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.evaluation import mean_return
from ding_lite.rl.policies.dqn import DQN
from ding_lite.rl.protocols import Policy

QUICK: dict[str, Any] = {"max_env_steps": 160, "hidden": (8,), "batch_size": 8, "warmup": 20}


def train(env: str = "CartPole-v1", settings: Any = None, **more: Any) -> TrainResult:
    return ding_lite.train("dqn", env, settings, quiet=True, **{**QUICK, **more})


def test_it_returns_the_policy_and_leaves_a_whole_run() -> None:
    result = train(num_envs=4)
    assert isinstance(result.policy, DQN)
    assert result.policy.config.hidden == (8,)
    assert result.directory == Path("runs/dqn/CartPole-v1/1")
    left = {path.name.partition(".out.")[0] for path in result.directory.iterdir()}
    assert left == {"config.json", "metrics.jsonl", "checkpoint", "curve.png", "events"}
    assert result.solved is False
    assert result.numbers["env_steps"] == 160
    assert result.numbers["train_iter"] > 0
    saved = load_checkpoint(result.directory / "checkpoint")
    assert saved.state.keys() == {"policy", "envs", "eval_envs", "task", "replay"}
    assert train().directory == Path("runs/dqn/CartPole-v1/2")


def test_the_best_policy_is_kept_and_speed_and_memory_are_reported() -> None:
    result = train(eval_every=40, target=1e6)
    evaluations = {}
    for line in (result.directory / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["memory_mb"] > 10.0
        assert row["steps_per_s"] > 0.0
        evaluations[row["eval_env_step"]] = row["eval_return"]
    best = load_checkpoint(result.directory / "best").meta
    assert best["eval_value"] >= max(evaluations.values())
    assert load_policy(result.directory).config == result.policy.config


def test_what_comes_back_is_the_policy_of_the_best_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = iter([1.0, 3.0, 2.0])
    module = import_module("ding_lite.middleware.evaluate")
    monkeypatch.setattr(module, "mean_return", lambda *args, **more: next(values))
    result = train(eval_every=40, max_env_steps=120, target=1e6)
    assert load_checkpoint(result.directory / "best").meta["eval_value"] == 3.0
    last = load_policy(result.directory, last=True)
    best = load_policy(result.directory)
    assert result.policy.state_dict()["train_iter"] == best.state_dict()["train_iter"]
    assert best.state_dict()["train_iter"] < last.state_dict()["train_iter"]


def test_it_says_nothing_when_it_is_to_be_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    train()
    assert capsys.readouterr() == ("", "")


def test_it_says_how_it_went_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ding_lite.train("dqn", "CartPole-v1", **{**QUICK, "seed": 1})
    out, err = capsys.readouterr()
    assert out == ""
    assert "160/160 env steps" in err
    assert "Did not solve CartPole-v1: a mean return of " in err
    assert "  checkpoint   runs/dqn/CartPole-v1/1/checkpoint" in err


def test_keywords_win_over_a_dict_or_an_easydict() -> None:
    for settings in ({"lr": 0.5, "gamma": 0.9}, EasyDict(lr=0.5, gamma=0.9)):
        config = train(settings=settings, lr=0.25).policy.config
        assert isinstance(config, type(DQN(train().policy.spec).config))
        assert (config.lr, config.gamma) == (0.25, 0.9)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="`settings` is a list; a dict or an EasyDict was"):
        train(settings=[1])


def test_the_same_seed_trains_the_same_policy() -> None:
    one, two, other = (train(seed=seed).policy.weights() for seed in (1, 1, 2))
    assert all(bool((one[name] == two[name]).all()) for name in one)
    assert any(bool((one[name] != other[name]).any()) for name in one)


def test_it_stops_where_the_target_is_reached() -> None:
    result = train(target=5.0, eval_every=40)
    assert result.solved is True
    assert result.numbers["env_steps"] == 64  # 24 of them random


def test_it_goes_on_where_the_target_is_not_exceeded_by_the_margin() -> None:
    result = train(target=1.0, target_margin=500.0, eval_every=40)
    assert result.solved is True
    assert result.numbers["env_steps"] == 160
    with pytest.raises(ConfigError, match=r"`target_margin` is -1\.0; it must be at least 0\.0"):
        train(target_margin=-1.0)


@pytest.mark.parametrize(("confirm", "expected"), [(60, [20, 60]), (0, [20])])
def test_what_would_end_a_run_is_confirmed_by_as_many_episodes_as_are_asked_for(
    confirm: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []

    def recorded(policy: Policy, envs: Envs, *, episodes: int) -> float:
        played.append(episodes)
        return mean_return(policy, envs, episodes=episodes)

    # The package has a function of the module's name.
    module = import_module("ding_lite.middleware.evaluate")
    monkeypatch.setattr(module, "mean_return", recorded)
    train(target=5.0, eval_every=40, confirm_episodes=confirm)
    assert played == expected


@pytest.mark.parametrize("settings", [{"prioritized": True}, {"update_ratio": 0.05, "warmup": 0}])
def test_a_run_of_another_kind_learns_too(settings: dict[str, Any]) -> None:
    assert train(**settings).numbers["train_iter"] > 0


BOX: dict[str, Any] = {"td3": {"hidden": (8,)}, "sac": {"prioritized": True}, "ddpg": {"n_step": 3}}
"""Settings that the policies for box actions are tried out with."""


@pytest.mark.parametrize("name", BOX)
def test_policies_for_box_actions_are_trained_saved_and_resumed(name: str) -> None:
    settings = {**QUICK, **BOX[name]}
    result = ding_lite.train(name, "Pendulum-v1", quiet=True, num_envs=4, out="here", **settings)
    assert type(result.policy).__name__ == name.upper()
    assert result.numbers["train_iter"] > 0
    assert result.numbers["eval_return"] < -200.0
    again = ding_lite.train(
        name, "Pendulum-v1", quiet=True, out="here", resume=True, max_env_steps=200
    )
    assert again.numbers["env_steps"] == 200
    policy = load_policy("here")
    assert policy.config == result.policy.config
    weights = again.policy.weights()
    assert all(bool((value == weights[key]).all()) for key, value in policy.weights().items())


def test_choices_are_refused_for_box_actions() -> None:
    with pytest.raises(ConfigError, match="SAC gives numbers within bounds, but CartPole-v1 has"):
        ding_lite.train("sac", "CartPole-v1", quiet=True, **QUICK)


def test_images_and_stacks_of_them_are_learned_from() -> None:
    result = train("ding_lite/Catch-v0", num_envs=2, max_env_steps=60)
    assert result.policy.spec.frame_stack == 2
    assert result.numbers["eval_return"] < 9.0


def test_a_run_that_had_ended_goes_on_when_it_may_become_longer() -> None:
    first = train(out="here")
    again = train(out="here", resume=True)
    assert again.numbers["env_steps"] == first.numbers["env_steps"] == 160
    assert again.numbers["eval_return"] == first.numbers["eval_return"]
    longer = ding_lite.train(
        "dqn", "CartPole-v1", quiet=True, out="here", resume=True, max_env_steps=240
    )
    assert longer.numbers["env_steps"] == 240
    assert longer.numbers["train_iter"] > first.numbers["train_iter"]


def test_to_go_on_with_another_setting_is_refused() -> None:
    train(out="here")
    with pytest.raises(ConfigError, match=r"`lr` is 0\.5, and was 0\.003"):
        train(out="here", resume=True, lr=0.5)
    with pytest.raises(ConfigError, match="holds another run already"):
        train(out="here")


def test_an_environment_that_cannot_be_made_leaves_no_run() -> None:
    with pytest.raises(ConfigError, match="Discrete"):
        train("Pendulum-v1")
    assert not Path("runs").exists()


def test_what_was_trained_can_be_loaded_again() -> None:
    result = train(prioritized=True)
    for directory in (result.directory, result.directory / "checkpoint"):
        policy = load_policy(directory)
        assert type(policy) is DQN
        assert policy.config == result.policy.config
        weights = result.policy.weights()
        assert all(bool((value == weights[name]).all()) for name, value in policy.weights().items())


def test_the_description_of_a_run_has_all_its_settings() -> None:
    result = train(num_envs=2, seed=3)
    said = json.loads((result.directory / "config.json").read_text())
    assert said["example"] == "dqn"
    assert (said["options"]["seed"], said["config"]["num_envs"]) == (3, 2)
    assert said["config"]["hidden"] == [8]
    assert said["config"]["checkpoint_every"] == 10_000


def test_an_episode_limit_cuts_what_is_learned_from_and_no_evaluation() -> None:
    result = train(episode_limit=5, eval_every=40, log_every=40, target=1e6)
    rows = [
        json.loads(line) for line in (result.directory / "metrics.jsonl").read_text().splitlines()
    ]
    assert {row["episode_length"] for row in rows if "episode_length" in row} == {5.0}
    assert max(row["eval_return"] for row in rows if "eval_return" in row) > 5.0
    assert result.numbers["eval_return"] > 5.0
    assert load_policy(result.directory).config == result.policy.config
    with pytest.raises(ConfigError, match="`episode_limit` is 0"):
        train(episode_limit=0)
