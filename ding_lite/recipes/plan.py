"""Make the plan of a run from given values, presets and defaults, in this order."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.io.reading import read_json_object
from ding_lite.recipes.options import SMOKE_ENV_STEPS, Options, as_chosen
from ding_lite.recipes.recipe import Recipe, TrainConfig
from ding_lite.recipes.runs.directory import saved_description
from ding_lite.recipes.table import find_recipe, name_of_policy
from ding_lite.rl.envs.atari import ATARI_ARGS, FRAME_STACK, play_atari
from ding_lite.rl.envs.making import EnvLike, EnvMaker, maker_again
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.weights.compiled import Compile
from ding_lite.settings import as_config, check_all, default_values, whole

NUM_ENVS = 8
MAX_ENV_STEPS = 100_000
_OPTIONS = (
    *("num_envs", "seed", "target", "max_env_steps", "device", "compile", "config", "use"),
    *("out", "resume", "smoke", "quiet"),
)
OF_FILES = ("num_envs", "seed", "target", "max_env_steps", "device", "compile")
"""Options that a file of settings may have."""
MOST_BYTES = 1 << 20
_EVALUATIONS = ("eval_every", "eval_episodes")
"""Settings that ask for evaluations, which are then played however many env steps they take."""
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
    device: str | None = None
    compile: Compile = None
    config: Path | None = None
    """A file of settings and options."""
    parts: Mapping[str, object] = field(default_factory=dict)
    """The parts of the policy that the user gives: `network`, `actor`, `critic`, `optimizer`."""
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
    vector: VectorEnv[Any, Any, Any] | None = None
    """The vector environment to learn from, where one was given."""
    policy_config: Any
    config: TrainConfig
    sources: Mapping[str, str]
    """The source of the value of each setting: `given`, `file`, `run`, `preset`, `space` (it suits
    the spaces of an environment without a preset) or `default`."""
    has_preset: bool = True
    """Whether there is a preset for the environment, or the run goes on with what it had."""
    device: str = "cpu"
    compile: Compile = None
    parts: Mapping[str, object] = field(default_factory=dict)
    """The parts of the policy that the user gives."""

    def make_policy(self, spec: EnvSpec) -> Policy:
        """Make the policy.

        Raises:
            ConfigError: It does not take what was given.
        """
        more = {**self.parts, **self._computing}
        try:
            return self.recipe.policy(spec, self.policy_config, **more)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise ConfigError(
                f"{self.kind} does not take all of: {', '.join(more)} ({error}). Leave that out, "
                f"or give a function of the spec that makes the policy."
            ) from error

    @property
    def kind(self) -> str:
        """The name of the policy's class or function."""
        return str(getattr(self.recipe.policy, "__name__", self.name))

    @property
    def described(self) -> dict[str, Any]:
        """All settings by name, and what else is remembered of a run."""
        computing = {name: one for name, one in self._computing.items() if not callable(one)}
        return {"num_envs": self.num_envs, **computing, **self.settings}

    @property
    def _computing(self) -> dict[str, object]:
        """The device and the compiler of the policy, where they are not the usual ones."""
        device = {} if self.device == "cpu" else {"device": self.device}
        return {**device, "compile": self.compile} if self.compile else {**device}

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, those of training behind those of the policy."""
        values = {**_values(self.policy_config), **_values(self.config)}
        return {name: value for name, value in values.items() if name not in _OPTIONS}

    @property
    def note(self) -> str | None:
        """A sentence about the settings of an environment without a preset; None with one."""
        if self.has_preset or self.recipe.sizes is None:
            return None
        fitted = ", ".join(name for name, source in self.sources.items() if source == "space")
        return (
            f"{self.kind} has no preset for {self.options.env}; "
            + (f"sizes suit its spaces ({fitted}), and " if fitted else "")
            + f"other settings have defaults, which `ding-lite train {self.name} "
            f"{self.options.env} --settings` lists."
        )

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of all settings that have one."""
        return {
            **default_values(self.recipe.policy_config),
            **default_values(self.recipe.config),
        }

    @property
    def title(self) -> str:
        """The title of the run in a picture."""
        return f"{self.kind} on {self.options.env}"


def make_plan(
    policy: object,
    env: EnvLike,
    settings: Mapping[str, Any],
    choices: Choices,
    *,
    recipe: Recipe[Any] | None = None,
) -> RunPlan:
    """Make the plan of a run.

    A run that goes on has the settings that it was begun with, but for those that are given.

    Args:
        policy: Its name, such as `dqn`, its class, or a function of the spec that makes it.
        env: The environment, as `make_envs` takes it.
        settings: Settings of the policy and of training that were given.
        choices: The options that were.
        recipe: How the policy is trained; what the table of policies says by default.

    Raises:
        ConfigError: A name is not known, a value is out of range, or there is no such policy or
            environment.
    """
    maker, vector = maker_of(env), env if isinstance(env, VectorEnv) else None
    recipe = find_recipe(policy, maker.spec) if recipe is None else recipe
    name = name_of_policy(policy)
    known = _known_settings(recipe)
    _check_names(name, settings, known)

    preset: Mapping[str, Any] = recipe.presets.get(maker.name, {})
    saved = (saved_description(choices.out) if choices.resume and choices.out else None) or {}
    begun_with = saved.get("config") or {}
    in_file = {} if choices.config is None else read_config(choices.config)
    _check_names(name, {k: v for k, v in in_file.items() if k not in OF_FILES}, known)
    has_preset = bool(preset or begun_with)
    sizes = {} if has_preset or recipe.sizes is None else recipe.sizes(maker.spec())
    layers = {
        **{"given": settings, "file": in_file, "run": begun_with},
        **{"preset": preset, "space": sizes},
    }
    if begun_with:  # what it has not saved was its default, whatever presets say today
        del layers["preset"]
    sources = {
        key: next((name for name, layer in layers.items() if key in layer), "default")
        for key in known
    }
    values = {key: layers[of][key] for key, of in sources.items() if of != "default"}
    if values.get("atari") is True:
        maker = EnvMaker.of(maker, args=ATARI_ARGS, wrappers=[play_atari])
        values = {"frame_stack": FRAME_STACK, **values}
    asked = next((sources[key] for key in _EVALUATIONS if sources.get(key) in layers), None)
    if asked is not None and sources.get("eval_share") == "default":
        values["eval_share"], sources["eval_share"] = None, asked

    chosen = {key: value for key, value in vars(choices).items() if value is not None}
    options = {
        **{"seed": 0, "num_envs": NUM_ENVS, "max_env_steps": MAX_ENV_STEPS},
        **{"target": maker.reward_threshold},
        **{**preset, **begun_with, **(saved.get("options") or {}), **in_file, **chosen},
    }
    seed = options["seed"]
    check_all(whole(0, seed=seed), whole(1, num_envs=options["num_envs"]))
    return RunPlan(
        name=name,
        recipe=recipe,
        options=_options(as_chosen(maker), options, choices),
        num_envs=options["num_envs"] if vector is None else vector.num_envs,
        vector=vector,
        policy_config=as_config(
            recipe.policy_config, {**_only(values, recipe.policy_config), "seed": seed}
        ),
        config=as_config(recipe.config, _only(values, recipe.config)),
        sources=sources,
        has_preset=has_preset,
        device=str(options.get("device") or "cpu"),
        compile=options.get("compile"),
        parts=choices.parts,
    )


def read_config(path: Path) -> dict[str, Any]:
    """Read settings and options from a TOML file, or from the `config.json` of a run.

    Raises:
        ConfigError: There is no such file, or it is neither.
    """
    try:
        if path.suffix == ".json":
            about = read_json_object(path, most=MOST_BYTES)
            options = about.get("options") or {}
            values = {key: options[key] for key in OF_FILES if key in options}
            values |= about.get("config") or {}
            values.pop("search", None)  # of an evolution: it is given as such
            return values
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`config` is {str(path)!r}, which cannot be read: {error}. A TOML file with lines "
            f"such as `lr = 1e-3`, or the config.json of a run, was expected."
        ) from error


def maker_of(env: EnvLike) -> EnvMaker:
    """Return what makes the environments of a run, or others as those of a vector environment.

    Raises:
        ConfigError: It is a vector environment of which no others can be made.
    """
    if not isinstance(env, VectorEnv):
        return EnvMaker.of(env)
    if (maker := maker_again(env)) is None:
        raise ConfigError(
            f"The environment is a {type(env).__name__}, and a run needs more of them, for its "
            f"evaluations. Give a function that makes them: "
            f"lambda num_envs: gymnasium.make_vec(..., num_envs=num_envs)."
        )
    return maker


def _options(env: str | EnvMaker, values: Mapping[str, Any], choices: Choices) -> Options:
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


def given_parts(**parts: object) -> dict[str, object]:
    """Return the parts of a policy that were given."""
    return {name: part for name, part in parts.items() if part is not None}
