"""From what was chosen to what a run will do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import ding_lite
from ding_lite.errors import ConfigError
from ding_lite.io import memory
from ding_lite.middleware.checkpoints.description import describe
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.evolve import plan_evolution
from ding_lite.recipes.plan import RunPlan, make_plan
from ding_lite.recipes.presets.dqn import DQN_PRESETS
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.table import RECIPES
from ding_lite.recipes.train_config import OffPolicyConfig
from ding_lite.rl.checkpoint.save_load import load_checkpoint, save_checkpoint
from ding_lite.rl.envs.vector import make_envs
from ding_lite.rl.policies.dqn import DQNConfig
from ding_lite.runtime.task import Task
from ding_lite.settings.config import as_config


def plan(env: str = "CartPole-v1", settings: Any = None, **choices: Any) -> RunPlan:
    return make_plan("dqn", env, settings or {}, Choices(**choices))


def test_an_environment_without_a_preset_has_the_defaults() -> None:
    found = plan("FrozenLake-v1")
    assert found.policy_config == DQNConfig()
    assert found.config == OffPolicyConfig()
    assert (found.options.num_envs, found.options.seed) == (8, 0)
    assert (found.options.max_env_steps, found.options.target) == (100_000, 0.7)
    assert set(map(found.values.source, [*found.values, *found.settings])) == {"default"}
    assert found.note is not None
    assert found.note == (
        "DQN has no preset for FrozenLake-v1; all settings have their defaults, which `--settings` "
        "lists."
    )


def test_an_evolution_has_its_own_default_of_env_steps() -> None:
    evolved = plan_evolution("dqn", "FrozenLake-v1", None, {}, Choices())
    assert evolved.options.max_env_steps == 200_000  # as `ding-lite evolve --help` says


def test_a_preset_wins_over_defaults_and_yields_to_given_values() -> None:
    preset = DQN_PRESETS["CartPole-v1"]
    found = plan(settings={"capacity": 77})
    assert found.policy_config.lr == preset["lr"] != DQNConfig().lr
    assert found.options.max_env_steps == preset["max_env_steps"]
    assert found.settings["capacity"] == 77
    assert (found.values.source("lr"), found.values.source("capacity")) == ("preset", "given")
    assert found.values.source("gamma") == "default"
    options = ("num_envs", "max_env_steps", "target")
    assert [found.values.source(name) for name in options] == ["default", "preset", "default"]
    trial = plan(smoke=True, num_envs=4)
    assert [trial.values.source(name) for name in options] == ["given", "given", "default"]
    assert found.note is None


def test_a_preset_says_nothing_of_what_the_user_replaces() -> None:
    assert {"hidden", "lr_end"} <= DQN_PRESETS["LunarLander-v3"].keys()
    parts = {"network": object(), "optimizer": lambda params: params}
    found = plan("LunarLander-v3", **parts)
    assert found.policy_config.hidden == DQNConfig().hidden
    assert found.policy_config.lr_end is None
    assert found.policy_config.loss == "mse"
    chosen = plan("LunarLander-v3", {"hidden": (8,)}, **parts)
    assert chosen.policy_config.hidden == (8,)  # which the policy refuses


class Robot(gymnasium.Env[Any, Any]):
    """Has as many numbers as HalfCheetah-v5; it is never stepped."""

    observation_space: Box[Any] = Box(-np.inf, np.inf, (17,), np.float32)
    action_space: gymnasium.Space[Any] = Box(-1.0, 1.0, (6,), np.float32)


class Screen(Robot):
    observation_space: Box[Any] = Box(0, 255, (84, 84, 3), np.uint8)
    action_space = Discrete(4)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_robots_without_a_preset_get_the_sizes_of_robots(name: str) -> None:
    found = make_plan(name, Robot, {"warmup": 7}, Choices())
    assert found.settings["hidden"] == (256, 256)
    assert (found.settings["capacity"], found.settings["warmup"]) == (1_000_000, 7)
    assert (found.values.source("capacity"), found.values.source("gamma")) == ("space", "default")
    assert found.note is not None
    assert "no preset for Robot; sizes suit its spaces (" in found.note
    small = make_plan(name, "Pendulum-v1", {}, Choices()).settings
    assert small["hidden"] == (64, 64)


class EpisodeRecorder(Robot):
    observation_space: Box[Any] = Box(0, 255, (96, 96, 3), np.uint8)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_the_replay_of_images_fits_into_memory_and_networks_for_them_are_not_mutated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * 10**9)
    found = make_plan(name, EpisodeRecorder, {}, Choices())
    assert (found.settings["hidden"], found.values.source("capacity")) == ((256, 256), "space")
    assert 10_000 < found.settings["capacity"] < 100_000
    with make_envs(EpisodeRecorder, 1) as envs:
        assert found.config.start(Task(), envs, found.make_policy(envs.spec), 0) is not None
        several = plan_evolution(name, EpisodeRecorder, None, {"hidden": (8,)}, Choices())
        several.config.mutation(several.search, 0).check(several.make_policy(envs.spec))
    assert "mutate_architecture, mutate_weights," in (several.note or "")


@pytest.mark.parametrize("name", ["dqn", "a2c", "ppo", "impala"])
def test_pictures_without_a_preset_get_the_usual_layer_behind_convolutions(name: str) -> None:
    assert make_plan(name, Screen, {}, Choices()).settings["hidden"] == (512,)
    assert make_plan(name, Screen, {"hidden": (8,)}, Choices()).settings["hidden"] == (8,)


@pytest.mark.parametrize("name", RECIPES)
def test_every_preset_has_a_target_and_is_made_of_things_that_there_are(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.presets
    fields = {
        config: config.__dataclass_fields__.keys()
        for config in (recipe.policy_config, recipe.config)
    }
    for env, preset in recipe.presets.items():  # their packages need not be installed
        known = set().union(*fields.values())
        assert "target" in preset or gymnasium.registry[env].reward_threshold is not None, env
        assert preset.keys() <= known | {"max_env_steps", "num_envs", "target"}
        for config, names in fields.items():
            as_config(config, {key: value for key, value in preset.items() if key in names})


@pytest.mark.parametrize("name", RECIPES)
def test_settings_of_every_preset_are_read_again_as_they_were(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    for number, preset in enumerate(recipe.presets.values()):
        for kind in (recipe.policy_config, recipe.config):
            names = preset.keys() & kind.__dataclass_fields__.keys()
            config = as_config(kind, {name: preset[name] for name in names})
            save_checkpoint(
                tmp_path / "checkpoint", {}, meta=describe(SimpleNamespace(config=config))
            )
            saved = load_checkpoint(tmp_path / "checkpoint").meta["config"]
            assert as_config(kind, saved) == config
            out = tmp_path / f"{kind.__name__}{number}"
            with Run("dqn", plan(out=out).options, config=vars(config)):
                assert (
                    as_config(kind, json.loads((out / "config.json").read_text())["config"])
                    == config
                )


@pytest.mark.parametrize("name", RECIPES)
def test_no_setting_of_a_policy_has_the_name_of_one_of_training(name: str) -> None:
    recipe = RECIPES[name]
    of_policy = recipe.policy_config.__dataclass_fields__.keys()
    assert "seed" in of_policy
    assert not of_policy & recipe.config.__dataclass_fields__


def test_only_a_user_lifts_the_share_of_evaluations(tmp_path: Path) -> None:
    (file := tmp_path / "slow.toml").write_text("eval_every = 700\n")
    (chosen := tmp_path / "few.toml").write_text("eval_share = 0.3\n")
    run = begun(tmp_path, eval_every=700, eval_share=0.1) / "config.json"
    for given, config, share in (
        ({}, None, 0.1),  # a preset says how often they may be due
        ({"eval_episodes": 1}, None, 0.1),
        ({"eval_every": 500}, None, None),
        ({}, file, None),
        ({"eval_every": 500, "eval_share": 0.2}, None, 0.2),
        ({"eval_every": 500}, chosen, 0.3),
        ({}, run, 0.1),
        ({"eval_every": 500}, run, None),
        ({"eval_every": 500, "eval_share": 0.2}, run, 0.2),
    ):
        made = make_plan("dqn", "CartPole-v1", given, Choices(config=config))
        assert made.settings["eval_share"] == share, given


def test_an_environment_without_a_threshold_has_no_target() -> None:
    options = plan("Pendulum-v1").options
    assert (options.target, options.goal) == (math.inf, None)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dqn", {"learning_rate": 1.0}, '"learning_rate". Did you mean "lr"? The settings of dqn'),
        ("dqn", {"zzz": 1.0}, 'Unknown setting "zzz". The settings of dqn are: gamma, normalize_'),
        ("dqn", {"n_envs": 1}, '"n_envs" is unknown. Did you mean the option "num_envs": --num'),
        ("dqn", {"total_timesteps": 9}, '"total_timesteps" is unknown. Did you mean the option "'),
        ("dqn", {"num_envs": 1}, "--num-envs on the command line, train(..., num_envs=...) in Py"),
        # Only forms that exist.
        ("dqn", {"use": []}, '"use" is an option and no setting: train(..., use=...) in Python'),
        ("dqn", {"network": []}, "an option and no setting: train(..., network=...) in Python"),
        ("dqn", {"report": []}, "--report on the command line, train(..., use=[mw.report(fn, eve"),
        ("dqn", {"env_args": {}}, "--env-arg on the command line, train(..., env_args=...) in P"),
        ("dqn", {"population": 2}, "--population of `ding-lite evolve`, evolve(..., populatio"),
        ("dqn", {"lr": "fast"}, "`lr` is 'fast'; `float` was expected"),
        ("dqn", {"double": "no"}, "`double` is 'no'; `bool` (true or false) was expected"),
        ("dqn", {"hidden": "32"}, "is '32'; `tuple[int, ...]`, such as `64,` or `64,64`, was exp"),
        ("dqn", {"capacity": 0}, "`capacity` is 0; it must be a whole number from 1 on"),
        # What other libraries call it.
        ("sac", {"lr": 0.1}, '"lr". Did you mean "actor_lr"'),
        ("sac", {"ent_coef": 0.1}, '"ent_coef". Did you mean "alpha"'),
        ("td3", {"tau": 0.1}, '"tau". Did you mean "target_tau"'),
        ("td3", {"policy_freq": 0.1}, '"policy_freq". Did you mean "policy_delay"'),
        ("ddpg", {"action_noise": 0.1}, '"action_noise". Did you mean "noise"'),
        ("ppo", {"n_steps": 0.1}, '"n_steps". Did you mean "unroll"'),
        ("sac", {"learning_rate": 0.1}, '"learning_rate". Did you mean "actor_lr"'),
    ],
)
def test_a_slip_in_the_settings_is_explained(name, settings, message) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(name, "CartPole-v1" if name == "dqn" else "Pendulum-v1", settings, Choices())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("report", "meant"),
    [("loggers.py", r"loggers\.py:my_logger\."), ("tell", r"path/to/file\.py:tell\.")],
)
def test_a_logger_without_its_file_or_its_name_is_refused(report: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"`--report` is '{report}'; .* or module: {meant}$"):
        make_plan("dqn", "CartPole-v1", {}, Choices(report=[report]))


def begun(directory: Path, **config: Any) -> Path:
    """Write what a run says that was begun with seed 5 and 4 envs."""
    options = {"env": "CartPole-v1", "seed": 5, "max_env_steps": 123, "target": 9.0, "smoke": True}
    described = {"example": "dqn", "options": options, "config": {"num_envs": 4, **config}}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(described))
    return directory


def test_a_resumed_run_keeps_its_settings_unless_others_are_given(tmp_path: Path) -> None:
    out = begun(tmp_path, lr=0.25, hidden=[8])
    found = plan(out=out, resume=True)
    assert (found.policy_config.lr, found.policy_config.hidden) == (0.25, (8,))
    assert (found.options.num_envs, found.options.seed, found.policy_config.seed) == (4, 5, 5)
    assert (found.options.max_env_steps, found.options.target) == (123, 9.0)
    assert found.options.smoke is False
    assert found.values.source("lr") == "run"
    found = plan(settings={"lr": 0.5}, out=out, resume=True, max_env_steps=500, seed=6)
    assert (found.policy_config.lr, found.values.source("lr")) == (0.5, "given")
    assert (found.options.max_env_steps, found.options.seed) == (500, 6)
    assert plan(out=out).options.seed == 0


def test_a_setting_that_the_resumed_run_did_not_know_has_its_default(tmp_path: Path) -> None:
    assert plan().policy_config.lr != DQNConfig().lr  # that of the preset
    found = plan(out=begun(tmp_path), resume=True)
    assert (found.policy_config.lr, found.values.source("lr")) == (DQNConfig().lr, "default")


def test_an_option_that_the_resumed_run_did_not_save_has_its_default(tmp_path: Path) -> None:
    described = {"example": "dqn", "options": {"env": "CartPole-v1"}, "config": {"num_envs": 4}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    found = plan(out=tmp_path, resume=True)
    assert found.options.max_env_steps == found.recipe.max_env_steps
    assert plan().options.max_env_steps != found.recipe.max_env_steps  # that of the preset


def test_atari_wraps_every_game_and_changes_only_what_is_learned_from() -> None:
    found = plan(env="CartPole-v1", settings={"atari": True})
    assert found.options.env_description == {
        "env": "CartPole-v1",
        "env_args": {"frameskip": 1},
        "wrappers": [{"name": "ding_lite.rl.envs.atari:play_atari"}],
    }
    assert found.config.frame_stack == 4
    assert found.config.learning_from["clip_rewards"]
    assert found.config.learning_from["end_at_life_loss"]
    assert plan(settings={"atari": True, "frame_stack": 2}).config.frame_stack == 2


@pytest.mark.parametrize("train", [ding_lite.train, ding_lite.evolve])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"wrappers": [gymnasium.wrappers.vector.ClipReward]}, "is a .*Vector.*Give a function"),
        ({"env_args": {"a": 1}}, r"is a .*Vector.*Give a function that makes it"),
        ({"num_envs": 5}, "`num_envs` is 5, and the vector environment has 2"),
    ],
)
def test_a_vector_that_has_been_made_takes_no_arguments_and_wrappers(train, more, message) -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigError, match=message):
        train("dqn", vector, **more)
