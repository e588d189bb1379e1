"""Make the plan of a run from given values, presets and defaults, in this order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.recipes.options import SMOKE_ENV_STEPS, Options
from ding_lite.recipes.recipe import Recipe, TrainConfig
from ding_lite.recipes.runs.directory import saved_description
from ding_lite.recipes.table import find_recipe
from ding_lite.rl.envs.making import find_registered
from ding_lite.settings import as_config, check_all, whole

NUM_ENVS = 8
MAX_ENV_STEPS = 100_000
_OPTIONS = ("num_envs", "seed", "target", "max_env_steps", "out", "resume", "smoke", "quiet")
_ELSEWHERE = {
    "learning_rate": "lr",
    "discount": "gamma",
    "discount_factor": "gamma",
    "buffer_size": "capacity",
    "memory_size": "capacity",
    "replay_size": "capacity",
    "learning_starts": "warmup",
    "start_steps": "warmup",
    "gradient_steps": "update_ratio",
    "train_freq": "update_ratio",
    "train_frequency": "update_ratio",
    "target_update_interval": "target_every",
    "net_arch": "hidden",
    "hidden_size": "hidden",
    "hidden_sizes": "hidden",
    "lr": "actor_lr",
    "tau": "target_tau",
    "action_noise": "noise",
    "exploration_noise": "noise",
    "policy_noise": "target_noise",
    "noise_clip": "target_noise_clip",
    "policy_freq": "policy_delay",
    "ent_coef": "alpha",
}
"""Names of settings in other libraries."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The values chosen for a run; None for those that were not chosen."""

    num_envs: int | None = None
    seed: int | None = None
    target: float | None = None
    max_env_steps: int | None = None
    out: Path | None = None
    resume: bool = False
    smoke: bool = False


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run: its recipe, its options and all its settings."""

    name: str
    recipe: Recipe[Any]
    options: Options
    num_envs: int
    policy_config: Any
    config: TrainConfig
    sources: Mapping[str, str]
    """The source of the value of each setting: `given`, `preset`, `run` or `default`."""

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, those of training behind those of the policy."""
        values = {**_values(self.policy_config), **_values(self.config)}
        return {name: value for name, value in values.items() if name not in _OPTIONS}

    @property
    def title(self) -> str:
        """The title of the run in a picture."""
        return f"{self.recipe.policy_config.__name__.removesuffix('Config')} on {self.options.env}"


def make_plan(
    name: str,
    env: str,
    settings: Mapping[str, Any],
    choices: Choices,
    *,
    recipe: Recipe[Any] | None = None,
) -> RunPlan:
    """Make the plan of a run.

    A run that goes on has the settings that it was begun with, but for those that are given.

    Args:
        name: The policy, such as `dqn`.
        env: The environment's id.
        settings: Settings of the policy and of training that were given.
        choices: The options that were.
        recipe: How the policy is trained; what the table of policies says by default.

    Raises:
        ConfigError: A name is not known, a value is out of range, or there is no such policy or
            environment.
    """
    recipe = find_recipe(name) if recipe is None else recipe
    registered = find_registered(env)
    known = _known_settings(recipe)
    _check_names(name, settings, known)

    preset = recipe.presets.get(registered.id, {})
    saved = (saved_description(choices.out) if choices.resume and choices.out else None) or {}
    begun_with = saved.get("config") or {}
    layers = {"given": settings, "run": begun_with, "preset": preset}
    sources = {
        key: next((name for name, layer in layers.items() if key in layer), "default")
        for key in known
    }
    values = {key: layers[of][key] for key, of in sources.items() if of != "default"}

    chosen = {key: value for key, value in vars(choices).items() if value is not None}
    options = {
        **{"seed": 0, "num_envs": NUM_ENVS, "max_env_steps": MAX_ENV_STEPS},
        **{"target": registered.reward_threshold},
        **{**preset, **begun_with, **(saved.get("options") or {}), **chosen},
    }
    seed = options["seed"]
    check_all(whole(0, seed=seed), whole(1, num_envs=options["num_envs"]))
    return RunPlan(
        name=name.lower(),
        recipe=recipe,
        options=_options(registered.id, options, choices),
        num_envs=options["num_envs"],
        policy_config=as_config(
            recipe.policy_config, {**_only(values, recipe.policy_config), "seed": seed}
        ),
        config=as_config(recipe.config, _only(values, recipe.config)),
        sources=sources,
    )


def _options(env: str, values: Mapping[str, Any], choices: Choices) -> Options:
    target, max_env_steps = values["target"], values["max_env_steps"]
    check_all(whole(1, max_env_steps=max_env_steps))
    return Options(
        env=env,
        seed=values["seed"],
        max_env_steps=min(max_env_steps, SMOKE_ENV_STEPS) if choices.smoke else max_env_steps,
        target=math.inf if target is None else float(target),
        smoke=choices.smoke,
        out=choices.out,
        resume=choices.resume,
    )


def _known_settings(recipe: Recipe[Any]) -> list[str]:
    names = [
        field.name
        for config in (recipe.policy_config, recipe.config)
        for field in dataclasses.fields(config)
    ]
    return [name for name in names if name not in _OPTIONS]


def _check_names(policy: str, given: Mapping[str, Any], known: list[str]) -> None:
    faults = []
    for key in map(str, given):
        if key in _OPTIONS:
            option = key.replace("_", "-")
            faults.append(
                f'"{key}" is an option and no setting: --{option} on the command line, '
                f"train(..., {key}=...) in Python"
            )
        elif key not in known:
            elsewhere = _ELSEWHERE.get(key.lower())
            meant = f' Did you mean "{elsewhere}"?' if elsewhere in known else ""
            faults.append(f'Unknown setting "{key}".{meant or did_you_mean(key, known)}')
            faults.append(f"The settings of {policy} are: {', '.join(known)}")
    check_all(dict.fromkeys(faults))


def _only(values: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if name in names}


def _values(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass of any kind
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def checked_settings(settings: object) -> Mapping[str, Any]:
    """Return settings that were given as one value; without them an empty mapping.

    Raises:
        ConfigError: They are no mapping.
    """
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"`settings` is a {type(settings).__name__}; a dict or an EasyDict was expected: "
            f'settings={{"lr": 1e-3}}.'
        )
    return settings
