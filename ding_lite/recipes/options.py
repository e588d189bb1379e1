"""The options of a run, and their parser for training programs."""

from __future__ import annotations

import argparse
import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError
from ding_lite.io.importing import look_here
from ding_lite.middleware.checkpoints.description import describe_maker
from ding_lite.middleware.env_step_budget import spent
from ding_lite.options.derived import add_options
from ding_lite.options.run_options import SMOKE_ENV_STEPS, RunOptions
from ding_lite.recipes.layers import Layers
from ding_lite.recipes.runs.directory import saved_description
from ding_lite.rl.envs.making import EnvLike, EnvMaker
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.settings.rules import check_all, not_nan, one_of, whole


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """The options of a run, as chosen on the command line or in a call.

    `target` is infinity if there is no target.
    """

    def __post_init__(self) -> None:
        most: Any = self.max_env_steps
        if isinstance(most, float) and most.is_integer():  # 1e6 is usual for env steps
            object.__setattr__(self, "max_env_steps", int(most))
        flags = {one.name: vars(self)[one.name] for one in fields(self) if one.type == "bool"}
        check_all(
            one_of((False, True), **flags),
            whole(0, seed=self.seed),
            whole(1, max_env_steps=self.max_env_steps, nodes=self.nodes),
            whole(1, population=self.population, num_envs=self.num_envs),
            not_nan(target=self.target),
        )
        if self.resume and self.out is None:
            raise ConfigError(
                "`resume` goes on with the run in `out`, and `out` was not given. Name the "
                "directory of the run: --resume --out runs/..."
            )

    @property
    def goal(self) -> float | None:
        """The target; None if it is infinity."""
        return self.target if math.isfinite(self.target) else None

    @property
    def env_description(self) -> dict[str, Any]:
        """The environment in plain values, from which it can be made again: `env`, `env_args`."""
        if isinstance(self.env, str):
            return {"env": self.env}
        about = describe_maker(self.env)
        return about if about["env"] is not None else {**about, "env": self.env.name}

    def seed_for(self, use: str) -> int:
        """Return the seed for a purpose, such as `evaluation`, derived from `seed`."""
        [own] = spawn_seeds(self.seed, use, count=1)
        return own

    def has_ended(self, counters: Mapping[str, Any], *, stop_at: float | None = None) -> bool:
        """Return whether a run had reached its end, by the counters that `resume` has returned.

        Args:
            counters: The counters.
            stop_at: The mean return of an evaluation that ends the run; the target by default.
        """
        goal = self.target if stop_at is None else stop_at
        is_solved = counters.get("eval_value", -math.inf) >= goal
        is_solved &= self.criterion == "greedy" and counters.get("finish", True)
        return bool(is_solved or spent(counters) >= self.max_env_steps)


def parse_options(  # noqa: PLR0913 - all by name, and few at a time
    description: str | None,
    *,
    env: str,
    max_env_steps: int,
    target: float,
    nodes: int | None = None,
    seed_goal: tuple[str, float] | None = None,
    population: int | None = None,
    num_envs: int | None = None,
    arguments: Sequence[str] | None = None,
) -> Options:
    """Read the options from the command line; `--help` explains them and ends the program.

    With `--resume`, options that are not given keep their values from the start of the run. The
    current folder is added to the import path, as `ding-lite` does.

    Args:
        description: The description of the program in `--help`, usually its docstring.
        env: The default environment.
        max_env_steps: The default maximum of env steps.
        target: The default mean return that counts as solved.
        nodes: The default number of processes; without it the program runs in one process and has
            no option `--nodes`.
        seed_goal: The default environment and target with `--criterion seed`; without it there is
            no option `--criterion`.
        population: The default number of agents; without it there is one agent and no option
            `--population`.
        num_envs: The default number of environments; without it there is no option `--num-envs`.
        arguments: The words after the program's name; those of this process by default.

    Raises:
        ConfigError: A number is out of range.
    """
    look_here()
    usual: dict[str, Any] = {"env": env, "max_env_steps": max_env_steps, "target": target}
    more = {"nodes": nodes, "population": population, "num_envs": num_envs}
    usual |= {name: value for name, value in more.items() if value is not None}
    parser = argparse.ArgumentParser(description=description, argument_default=argparse.SUPPRESS)
    if seed_goal is not None:
        usual["criterion"] = "greedy"
        parser.epilog = f"With --criterion seed, --env is {seed_goal[0]} and --target "
        parser.epilog += f"{seed_goal[1]:g} unless chosen otherwise."
    names = add_options(parser, of="program", given=usual)

    given = vars(parser.parse_args(arguments))
    given = {name: Path(one) if name == "out" else one for name, one in given.items()}
    begun = _begun(given["out"]) if given.keys() >= {"resume", "out"} else {}
    begun = {name: begun[name] for name in names if begun.get(name) is not None}
    chosen = Layers(given=given, run=begun, default=usual)
    if seed_goal is not None and chosen["criterion"] == "seed":
        chosen = chosen.but("default", env=seed_goal[0], target=seed_goal[1])
    return settled(Options(**{**chosen, "env": as_chosen(chosen["env"])}))


def _begun(out: Path) -> dict[str, Any]:
    """Return the options with which the run in a directory was begun."""
    options = dict((saved_description(out) or {}).get("options") or {})
    options.pop("smoke", None)  # saved as `max_env_steps`
    if options.get("target", 0.0) is None:
        options["target"] = math.inf
    return options


def settled(options: Options) -> Options:
    """Return options with ints and floats, also for NumPy's; `smoke` reduces `max_env_steps`."""
    kinds: dict[object, Callable[[Any], Any]] = {"int": operator.index, "float": float}
    numbers = {
        one.name: kinds[one.type](getattr(options, one.name))
        for one in fields(options)
        if one.type in kinds
    }
    if options.smoke:
        numbers["max_env_steps"] = min(numbers["max_env_steps"], SMOKE_ENV_STEPS)
    return dataclasses.replace(options, **numbers)


def as_chosen(env: EnvLike) -> str | EnvMaker:
    """Return an environment as `Options` stores it: its id if that suffices, else its maker."""
    maker = EnvMaker.of(env)
    return maker.env if maker.is_plain and isinstance(maker.env, str) else maker
