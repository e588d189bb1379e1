"""Make the plan of a run: given values override presets, and presets override defaults."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, did_you_mean, kind_of
from ding_lite.io.files import path_fault
from ding_lite.io.importing import find_member, refuse_while_importing
from ding_lite.options import elsewhere
from ding_lite.options.run_options import NO_SETTINGS, NUM_ENVS, OF_ENVS, OF_FILES, PARTS
from ding_lite.recipes.options import Options, as_chosen, settled
from ding_lite.recipes.recipe import Recipe, TrainConfig
from ding_lite.recipes.runs.directory import make_next
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.saved_options import SavedOptions, read_config, run_begun
from ding_lite.recipes.table import find_recipe, name_of_policy
from ding_lite.rl.envs.atari import ATARI_ARGS, FRAME_STACK, check_is_game, play_atari
from ding_lite.rl.envs.making import EnvLike, EnvMaker, maker_again
from ding_lite.rl.envs.naming import full_name
from ding_lite.rl.policies.open_policy import without_unused
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.task import Task
from ding_lite.settings.config import as_config, default_values
from ding_lite.settings.rules import check_all

_OF_THE_USER = ("given", "file", "run")
"""Sources of `eval_every` that disable the default `eval_share`."""
OF_PRESETS = ("num_envs", "max_env_steps", "target")
"""Options that presets may contain."""


class Choices:
    """The options that were chosen for a run, by name; None means that an option was not chosen."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - they have types of their own
        known = {*OF_ENVS, *PARTS, *NO_SETTINGS, "population"} - {"env"}
        self.given = {n: one for n, one in given.items() if n in known and one is not None}
        for name in self.given.keys() & {"out", "config"}:
            self.given[name] = _path(name, self.given[name])
        self.given["report"] = tuple(map(full_name, given.get("report") or ()))
        use = given.get("use", ())
        if not isinstance(use, list | tuple):
            raise ConfigError(
                f"`use` is {kind_of(use)}; a list of middleware was expected: "
                f"use=[mw.report(fn, every=50)]."
            )

    @cached_property
    def in_file(self) -> SavedOptions:
        return read_config(self.given["config"]) if "config" in self.given else SavedOptions()

    @cached_property
    def begun(self) -> SavedOptions:
        out = self.given.get("out")
        return run_begun(out) if out and self.given.get("resume") else SavedOptions()


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run: its recipe, its options and all its settings."""

    name: str
    recipe: Recipe
    options: Options
    vector: VectorEnv[Any, Any, Any] | None = None
    policy_config: Any
    config: TrainConfig
    sources: Mapping[str, str]
    """The source of the value of each setting, and of each option in `OF_PRESETS`: `given`, `file`,
    `run`, `preset`, `space` (chosen for the spaces of an environment without a preset) or
    `default`."""
    use: Sequence[Middleware]
    """The user's middleware, and those that report metrics to functions of the user."""
    has_preset: bool = True
    """Whether there is a preset for the environment, or the settings of a resumed run."""

    @property
    def parts(self) -> dict[str, Any]:
        return _given_parts(vars(self.options))

    def make_policy(self, spec: EnvSpec) -> Policy:
        """Make the policy; raise ConfigError if it does not accept a given part."""
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

    def check_env(self) -> None:
        """Refuse `atari` for environments that are not Atari games."""
        if self.config.atari:
            maker = EnvMaker.of(self.options.env)
            args = {name: maker.args[name] for name in maker.args if name not in ATARI_ARGS}
            env = EnvMaker.of(maker.env, args=args, imports=maker.imports)()
            try:
                check_is_game(env)
            finally:
                env.close()

    @property
    def kind(self) -> str:
        return str(getattr(self.recipe.policy, "__name__", self.name))

    @property
    def described(self) -> dict[str, Any]:
        """All settings by name, with the number of environments, the device and the compiler."""
        computing = {name: one for name, one in self._computing.items() if not callable(one)}
        return {"num_envs": self.options.num_envs, **computing, **self.settings}

    @property
    def _computing(self) -> dict[str, object]:
        """The device and the compiler of the policy, if they are not the defaults."""
        device, how = self.options.device, self.options.compile
        return {
            **({} if device == "cpu" else {"device": device}),
            **({"compile": how} if how else {}),
        }

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by name, those of the policy before those of training."""
        return {
            field.name: getattr(config, field.name)
            for config in (self.policy_config, self.config)
            for field in dataclasses.fields(config)
            if field.name not in NO_SETTINGS
        }

    @property
    def note(self) -> str | None:
        """A sentence about the settings of an environment without a preset; None with one."""
        if self.has_preset or self.recipe.sizes is None:
            return None
        fitted = ", ".join(name for name, source in self.sources.items() if source == "space")
        return (
            f"{self.kind} has no preset for {EnvMaker.of(self.options.env)}; "
            + (f"sizes suit its spaces ({fitted}), and " if fitted else "")
            + f"{'other' if fitted else 'all'} settings have their defaults, which `--settings` "
            f"lists."
        )

    @property
    def defaults(self) -> dict[str, Any]:
        return {
            **default_values(self.recipe.policy_config),
            **default_values(self.recipe.config),
        }

    @property
    def title(self) -> str:
        return f"{self.kind} on {self.options.env}"

    @contextmanager
    def open_run(self, program: str) -> Iterator[Run]:
        """Open the directory of the run: the chosen one, or the next number under its program."""
        refuse_while_importing()
        options = self.options
        if options.out is None:
            out = make_next(Path("runs", program, str(options.env)))
            options = dataclasses.replace(options, out=out)
        with Run(program, options, config=self.described, defaults=self.defaults) as run:
            if self.note is not None:
                run.tell(self.note)
            yield run

    def save_and_report(
        self, task: Task, run: Run, parts: Mapping[str, object], every: Callable[[int], int]
    ) -> None:
        """Add the middleware that save checkpoints, measure the run and report metrics.

        `every` converts env steps to steps of the pipeline.
        """
        log_every = every(self.config.log_every)
        task.use(mw.checkpoint(parts, run.checkpoint, every=every(self.config.checkpoint_every)))
        task.use(mw.throughput(every=log_every))
        task.use(run.time(task, every=log_every))
        for middleware in self.use:
            task.use(middleware)
        task.use(mw.report(run, every=log_every, title=self.title))


def make_plan(
    policy: object,
    env: EnvLike,
    settings: Mapping[str, Any],
    choices: Choices,
    *,
    recipe: Recipe | None = None,
) -> RunPlan:
    """Make the plan of a run.

    A resumed run keeps the settings of its start, except for those that are given.
    """
    maker, vector = maker_of(env, choices), env if isinstance(env, VectorEnv) else None
    name = name_of_policy(policy)
    program = name if recipe is None else f"evolve-{name}"
    _check_program(choices.begun, program)
    recipe = find_recipe(policy, maker.spec) if recipe is None else recipe
    fields = (*dataclasses.fields(recipe.policy_config), *dataclasses.fields(recipe.config))
    known = [field.name for field in fields if field.name not in NO_SETTINGS]
    _check_names(name, settings, known)
    in_file = choices.in_file.values_for(maker)
    of_file = {k: v for k, v in in_file.items() if k not in OF_FILES}
    if not of_file.keys() <= set(known):
        _check_program(choices.in_file, program)
    _check_names(name, of_file, known)

    unchosen, parts = _unchosen(recipe, maker, choices.begun.settings), _given_parts(choices.given)
    fitting = {of: without_unused(layer, parts) for of, layer in unchosen.items()}
    values, sources = _first_of({"given": settings, "file": in_file, **fitting}, known)
    if values.get("atari") is True:
        maker = EnvMaker.of(maker, args=ATARI_ARGS, wrappers=[play_atari])
        values = {"frame_stack": FRAME_STACK, **values}
    asked = sources.get("eval_every")
    if asked in _OF_THE_USER and sources.get("eval_share") == "default":
        values["eval_share"], sources["eval_share"] = None, asked

    begun_with = {**choices.begun.settings, **choices.begun.options}
    usual = {"max_env_steps": recipe.max_env_steps, "target": maker.reward_threshold}
    layers = {"given": choices.given, "file": in_file, **unchosen, "run": begun_with}
    layers["default"] = {"seed": 0, "num_envs": NUM_ENVS, **usual}
    chosen, of_options = _first_of(layers, OF_FILES)
    options = _options(choices, maker, vector, chosen)
    for key in OF_PRESETS:
        is_changed = chosen[key] not in (None, getattr(options, key))  # for a trial or a vector
        sources[key] = "given" if is_changed else of_options[key]
    config = as_config(recipe.config, _only(values, recipe.config))
    steps = max(1, config.steps_per_update(options.num_envs))  # 0 if a later check refuses it
    every = max(1, config.log_every // steps)
    of_policy = {**_only(values, recipe.policy_config), "seed": options.seed}
    return RunPlan(
        name=name,
        recipe=recipe,
        options=options,
        vector=vector,
        policy_config=as_config(recipe.policy_config, of_policy),
        config=config,
        sources=sources,
        use=[*options.use, *(mw.report(_function(name), every=every) for name in options.report)],
        has_preset=bool(unchosen["run"] or unchosen["preset"]),
    )


def _unchosen(
    recipe: Recipe, maker: EnvMaker, begun_with: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Return what counts where nothing is given, by source: at most one of them has values."""
    # Settings that a resumed run has not saved had their defaults, not today's presets.
    preset = {} if begun_with else recipe.presets.get(maker.name, {})
    has_others = bool(begun_with or preset)
    sizes = {} if has_others or recipe.sizes is None else recipe.sizes(maker.spec())
    return {"run": begun_with, "preset": preset, "space": sizes}


def _first_of(
    layers: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the first layers that have them, and which layers these are."""
    sources = {n: next((of for of in layers if n in layers[of]), "default") for n in names}
    values = {n: layers[of][n] for n, of in sources.items() if n in layers.get(of, ())}
    return values, sources


def _options(
    choices: Choices,
    maker: EnvMaker,
    vector: VectorEnv[Any, Any, Any] | None,
    chosen: Mapping[str, Any],
) -> Options:
    """Return the options of a run, of which `chosen` are those that a file may have."""
    options = {name: value for name, value in chosen.items() if value is not None}
    if vector is not None:
        asked = {**choices.in_file.values, **choices.given}.get("num_envs")
        if asked not in (None, vector.num_envs):
            raise ConfigError(
                f"`num_envs` is {asked}, and the vector environment has {vector.num_envs}. "
                f"Leave `num_envs` out, or make the vector environment with {asked}."
            )
        options["num_envs"] = vector.num_envs
    own = {n: one for n, one in choices.given.items() if n in (*PARTS, *NO_SETTINGS)}
    own["report"] = own["report"] or choices.begun.report
    return settled(Options(**{"target": math.inf, **own, **options, "env": as_chosen(maker)}))


def _check_program(saved: SavedOptions, program: str) -> None:
    """Refuse the description of a run of another policy, or of one policy for a population."""
    other = saved.described.get("example", program)
    if other != program:
        raise ConfigError(
            f"The settings in {saved.place} are those of `{other}`, and `{program}` has others. Go "
            f"on with that run by `{other}`, or write what both have into a TOML file."
        )


def _function(place_and_name: str) -> Any:  # noqa: ANN401 - `mw.report` checks it
    place, _, name = place_and_name.rpartition(":")
    if not place:
        raise ConfigError(
            f"`--report` is {place_and_name!r}; a function was expected, named with its file or "
            f"module: path/to/file.py:{place_and_name}."
        )
    return find_member(place, name)


def maker_of(env: EnvLike, choices: Choices) -> EnvMaker:
    """Return the maker of a run's environments, or of further ones like a vector environment's.

    Arguments, wrappers and imports that are not given come from the file of settings, or from the
    start of the resumed run.
    """
    about: dict[str, Any] = {n: choices.given[n] for n in OF_ENVS if choices.given.get(n)}
    if not isinstance(env, VectorEnv):
        args = about.pop("env_args", None)
        return choices.begun.complete(
            choices.in_file.complete(EnvMaker.of(env, args=args, **about))
        )
    if about:
        raise ConfigError(
            f"`env_args`, `wrappers` and `imports` are for environments that are yet to be made, "
            f"and the environment is {kind_of(env)}. Give a function that makes it, "
            f"arguments and wrappers included: lambda num_envs: gymnasium.make_vec(..., "
            f"num_envs=num_envs)."
        )
    if (maker := maker_again(env)) is None:
        raise ConfigError(
            f"The environment is {kind_of(env)}, and a run needs more of them, for its "
            f"evaluations. Give a function that makes them: "
            f"lambda num_envs: gymnasium.make_vec(..., num_envs=num_envs)."
        )
    return maker


def _check_names(policy: str, given: Mapping[str, Any], known: list[str]) -> None:
    faults = []
    for key in map(str, given):
        if (option := elsewhere.OPTIONS.get(key, key)) in NO_SETTINGS:
            faults.append(
                f'"{option}" is an option and no setting: --{option.replace("_", "-")} on the '
                f"command line, train(..., {option}=...) in Python"
            )
        elif key not in known:
            setting = elsewhere.known_setting(key, known)
            meant = f' Did you mean "{setting}"?' if setting else did_you_mean(key, known)
            faults.append(f'Unknown setting "{key}".{meant}')
            faults.append(f"The settings of {policy} are: {', '.join(known)}")
    check_all(faults)


def _only(values: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if name in names}


def checked_settings(settings: object) -> Mapping[str, Any]:
    """Return the argument `settings`; an empty mapping for None."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"`settings` is {kind_of(settings)}; a dict or an EasyDict was expected: "
            f'settings={{"lr": 1e-3}}.'
        )
    return settings


def _given_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in PARTS if options.get(name) is not None}


def _path(name: str, value: Any) -> Path:  # noqa: ANN401 - whatever is given
    try:
        path = Path(os.path.expanduser(value))
    except TypeError as error:
        raise ConfigError(f"`{name}` is {value!r}; a path was expected.") from error
    if fault := path_fault(os.fspath(value)):
        raise ConfigError(f"`{name}` is {value!r:.120}; {fault}")
    return path
