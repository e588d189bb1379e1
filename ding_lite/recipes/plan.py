"""Make the plan of a run: given values override presets, and presets override defaults.

`Choices` are what a user has chosen. `Layers` have the values of all sources. `Options` and the
configs of a recipe are made from these, which checks the values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError, kind_of
from ding_lite.io.importing import find_member, refuse_while_importing
from ding_lite.options.run_options import HOW_GIVEN, NO_SETTINGS, NUM_ENVS, OF_FILES, PARTS
from ding_lite.options.words import OPTIONS_ELSEWHERE
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.layers import Layers
from ding_lite.recipes.options import Options, as_chosen, settled
from ding_lite.recipes.runs.directory import make_next
from ding_lite.recipes.runs.run import Run
from ding_lite.recipes.saved_options import SavedOptions
from ding_lite.recipes.table import Recipe, find_recipe, name_of_policy
from ding_lite.recipes.train_config import TrainConfig
from ding_lite.rl.envs.atari import ATARI_ARGS, FRAME_STACK, check_is_game, play_atari
from ding_lite.rl.envs.making import EnvLike, EnvMaker
from ding_lite.rl.networks.precision import computing_in
from ding_lite.rl.policies.base.config import without_unused
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.task import Task
from ding_lite.settings.config import as_config, default_values
from ding_lite.settings.elsewhere import meant_setting
from ding_lite.settings.rules import check_all


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run: its recipe, its options and all its settings."""

    program: str
    """The name of the run's program, such as `dqn` or `evolve-dqn`."""
    recipe: Recipe
    options: Options
    vector: VectorEnv[Any, Any, Any] | None = None
    policy_config: Any
    config: TrainConfig
    values: Layers
    """The values of settings and options by their sources: `given`, `file`, `run`, `preset`,
    `space` (chosen for the spaces of an environment without a preset), or `default`."""
    reports: Sequence[Middleware]
    """The middleware that report metrics to functions of the user."""

    @property
    def has_preset(self) -> bool:
        """Whether there is a preset for the environment, or a resumed run."""
        return self.values.has("preset") or self.values.has("run")

    @property
    def parts(self) -> dict[str, Any]:
        return _given_parts(vars(self.options))

    def make_policy(self, spec: EnvSpec) -> Policy:
        return self.recipe.policy(spec, self.policy_config, **self.parts, **self._computing)

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
        return str(getattr(self.recipe.policy, "__name__", self.program))

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
        fitted = ", ".join(n for n in self.settings if self.values.source(n) == "space")
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
    def open_run(self) -> Iterator[Run]:
        """Open the directory of the run: the chosen one, or the next number under its program."""
        refuse_while_importing()
        options = self.options
        if options.out is None:
            out = make_next(Path("runs", self.program, str(options.env)))
            options = dataclasses.replace(options, out=out)
        with (
            computing_in(self.config.precision),
            Run(self.program, options, config=self.described, defaults=self.defaults) as run,
        ):
            if self.note is not None:
                run.tell(self.note)
            yield run

    def save_and_report(
        self, task: Task, run: Run, parts: Mapping[str, object], config: TrainConfig
    ) -> None:
        """Add the middleware that save checkpoints, measure the run and report metrics."""
        every = partial(config.every, num_envs=self.options.num_envs)
        log_every = every(config.row_every(self.options.max_env_steps))
        task.use(mw.checkpoint(parts, run.checkpoint, every=every(config.checkpoint_every)))
        task.use(mw.throughput(every=log_every))
        task.use(run.time(task, every=log_every))
        for middleware in (*self._made_by_user(parts), *self.reports):
            task.use(middleware)
        task.use(mw.report(run, every=log_every, title=self.title))

    def _made_by_user(self, parts: Mapping[str, object]) -> Sequence[Middleware]:
        use = self.options.use
        if not callable(use):
            return use
        advice = "`use=[fn]` is for a single middleware; `use=make` is called once, with the parts "
        advice += f"of the run ({', '.join(parts)}), and returns a list of middleware"
        try:
            made = use(dict(parts))
        except (AttributeError, KeyError) as error:
            error.add_note(advice)
            raise
        if not isinstance(made, list | tuple):
            raise ConfigError(
                f"The function `use` returned {kind_of(made)}; a list of middleware was expected. "
                f"{advice}."
            )
        return made


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
    maker, vector = choices.maker(env), env if isinstance(env, VectorEnv) else None
    name = name_of_policy(policy)
    program = name if recipe is None else f"evolve-{name}"
    _check_program(choices.begun, program)
    recipe = find_recipe(policy, maker.spec) if recipe is None else recipe
    _check_all_names(name, program, settings, choices.in_file, recipe)

    values = Layers(
        given={**settings, **choices.values},
        file=choices.in_file.values_for(maker),
        **_unchosen(recipe, maker, choices),
    )
    usual: dict[str, Any] = {"seed": 0, "num_envs": NUM_ENVS, "max_env_steps": recipe.max_env_steps}
    if values.get("atari") is True:
        maker = EnvMaker.of(maker, args=ATARI_ARGS, wrappers=[play_atari])
        usual["frame_stack"] = FRAME_STACK
    values = values.but("default", **usual, target=maker.reward_threshold)
    values = _without_usual_share(values, choices)
    if vector is not None:
        values = _of_vector(vector, values)

    options = _options(choices, maker, values)
    if options.max_env_steps != values["max_env_steps"]:  # a trial
        values = values.but("given", max_env_steps=options.max_env_steps)
    config = as_config(recipe.config, _only(values, recipe.config))
    every = config.every(config.row_every(options.max_env_steps), options.num_envs)
    of_policy = {**_only(values, recipe.policy_config), "seed": options.seed}
    return RunPlan(
        program=program,
        recipe=recipe,
        options=options,
        vector=vector,
        policy_config=as_config(recipe.policy_config, of_policy),
        config=config,
        values=values,
        reports=[mw.report(_function(name), every=every) for name in options.report],
    )


def _without_usual_share(values: Layers, choices: Choices) -> Layers:
    """Return the values without an `eval_share` by default, if `eval_every` was chosen."""
    source = values.source("eval_every")
    if source not in ("given", "file", "run"):
        return values
    is_asked = "eval_share" in values
    if source == "given" and values.source("eval_share") == "file" and choices.in_file.described:
        is_asked = False  # the config.json of a run has a share in any case
    return values if is_asked else values.but(source, eval_share=None)


def _unchosen(recipe: Recipe, maker: EnvMaker, choices: Choices) -> dict[str, Mapping[str, Any]]:
    """Return the values for all that was not given, by source, of which one has settings."""
    # Settings that a resumed run has not saved had their defaults, not today's presets.
    begun = choices.begun
    preset = {} if begun.settings else recipe.presets.get(maker.name, {})
    has_others = bool(begun.settings or preset)
    sizes = {} if has_others or recipe.sizes is None else recipe.sizes(maker.spec())
    layers = {"run": begun.values, "preset": preset, "space": sizes}
    parts = _given_parts(choices.given)
    return {source: without_unused(values, parts) for source, values in layers.items()}


def _of_vector(vector: VectorEnv[Any, Any, Any], values: Layers) -> Layers:
    """Return the values with the number of environments in a vector environment."""
    asked = values["num_envs"]
    if values.source("num_envs") in ("given", "file") and asked != vector.num_envs:
        raise ConfigError(
            f"`num_envs` is {asked}, and the vector environment has {vector.num_envs}. "
            f"Leave `num_envs` out, or make the vector environment with {asked}."
        )
    return values.but("given", num_envs=vector.num_envs)


def _options(choices: Choices, maker: EnvMaker, values: Layers) -> Options:
    own = {n: one for n, one in choices.given.items() if n in (*PARTS, *NO_SETTINGS)}
    own["report"] = own["report"] or choices.begun.report
    of_files = {name: values[name] for name in OF_FILES if values.get(name) is not None}
    return settled(Options(**{"target": math.inf, **own, **of_files, "env": as_chosen(maker)}))


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
        is_file = name.endswith(".py")
        raise ConfigError(
            f"`--report` is {name!r}; a function was expected, named with its file or module: "
            f"{f'{name}:my_logger' if is_file else f'path/to/file.py:{name}'}."
        )
    return find_member(place, name)


def _check_all_names(
    policy: str, program: str, settings: Mapping[str, Any], in_file: SavedOptions, recipe: Recipe
) -> None:
    fields = (*dataclasses.fields(recipe.policy_config), *dataclasses.fields(recipe.config))
    known = [field.name for field in fields if field.name not in NO_SETTINGS]
    _check_names(policy, settings, known)
    of_file = [name for name in in_file.values if name not in OF_FILES]
    if not set(of_file) <= set(known):
        _check_program(in_file, program)
    for name in of_file:
        if name not in known and isinstance(in_file.values[name], dict):
            raise ConfigError(
                f"{in_file.place} has a table [{name}]; settings were expected at its top. Write "
                f"the lines of the table there, without its heading."
            )
    _check_names(policy, of_file, known, OF_FILES)
    if in_file.searched is not None and "population" not in known:
        raise ConfigError(
            f"`search` in {in_file.place} is of `evolve`, which has agents to search with; `train` "
            f"has one. Leave it out, or evolve."
        )
    if in_file.values.get("compile") and "population" in known:
        raise ConfigError(
            f"`compile` in {in_file.place} is of `train`; networks that evolve are not compiled. "
            f"Leave it out."
        )


def _check_names(
    policy: str, given: Iterable[str], known: list[str], options: Iterable[str] = ()
) -> None:
    """Refuse what is no setting; the known one that is meant may also be one of `options`."""
    faults = []
    for key in map(str, given):
        if (option := OPTIONS_ELSEWHERE.get(key, key)) in HOW_GIVEN and option not in known:
            what = f'"{key}" is an option and no setting'
            if key != option:
                what = f'"{key}" is unknown. Did you mean the option "{option}"'
            faults.append(f"{what}: {HOW_GIVEN[option]}" + "?" * (key != option))
        elif key in ("policy", "env") and key not in known:
            faults.append(f'"{key}" is no setting, but an argument: ding-lite train POLICY ENV')
        elif key not in known:
            meant = meant_setting(key.replace("-", "_"), [*known, *options])
            faults.append(f'Unknown setting "{key}".{meant}')
            faults.append(f"The settings of {policy} are: {', '.join(known)}")
    check_all(faults)


def _only(values: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if name in names}


def _given_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in PARTS if options.get(name) is not None}
