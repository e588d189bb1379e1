"""The options of a run, as they were chosen, and as every training program takes them."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite.cli.options.run import SMOKE_ENV_STEPS, RunOptions, add_options
from ding_lite.errors import ConfigError
from ding_lite.io.importing import look_here
from ding_lite.recipes.runs.directory import saved_description
from ding_lite.rl.envs.making import EnvLike, EnvMaker
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.settings import at_least, check_all, whole


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """The options of a run, as chosen on the command line or in a call.

    `target` is infinity where there is none.
    """

    def __post_init__(self) -> None:
        check_all(
            whole(0, seed=self.seed),
            whole(1, max_env_steps=self.max_env_steps, nodes=self.nodes),
            whole(1, population=self.population, num_envs=self.num_envs),
            at_least(-math.inf, target=self.target),
        )
        if self.resume and self.out is None:
            raise ConfigError(
                "`resume` goes on with the run in `out`, and `out` was not given. Name the "
                "directory of the run: --resume --out runs/..."
            )

    @property
    def goal(self) -> float | None:
        """The target, None where it is infinity."""
        return self.target if math.isfinite(self.target) else None

    @property
    def env_description(self) -> dict[str, Any]:
        """The environment in plain values, by which it is found again: `env`, `env_args`, ...."""
        if isinstance(self.env, str):
            return {"env": self.env}
        about = self.env.described()
        return about if about["env"] is not None else {**about, "env": self.env.name}

    def seed_for(self, use: str) -> int:
        """Return a seed of its own for a use, such as `evaluation`; it follows from `seed`."""
        [own] = spawn_seeds(self.seed, use, count=1)
        return own

    def has_ended(self, counters: Mapping[str, Any]) -> bool:
        """Whether a run had reached its end where these are what `resume` has found."""
        is_solved = counters.get("eval_value", -math.inf) >= self.target
        is_solved &= self.criterion == "greedy"
        return bool(is_solved or counters["env_step"] >= self.max_env_steps)


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

    With `--resume`, options that are not given are those that the run was begun with. Modules of
    the current folder are found from then on, as `ding-lite` finds them.

    Args:
        description: What the program does; its docstring.
        env: The environment unless another is chosen.
        max_env_steps: Where the run ends at the latest, unless chosen otherwise.
        target: What counts as solved, unless chosen otherwise.
        nodes: How many processes share the work, unless chosen otherwise; without it the
            program has one, and no such option.
        seed_goal: The environment and the target with `--criterion seed`, unless chosen
            otherwise; without it there is no such option.
        population: How many agents there are, unless chosen otherwise; without it there is one,
            and no such option.
        num_envs: How many environments they share, unless chosen otherwise; likewise.
        arguments: What was typed after the program's name; that of this process by default.

    Raises:
        ConfigError: A number is out of range.
    """
    look_here()
    given: dict[str, Any] = {"env": env, "max_env_steps": max_env_steps, "target": target}
    more = {"nodes": nodes, "population": population, "num_envs": num_envs}
    given |= {name: value for name, value in more.items() if value is not None}
    parser = argparse.ArgumentParser(description=description)
    if seed_goal is not None:
        given["criterion"] = "greedy"
        parser.epilog = f"With --criterion seed, --env is {seed_goal[0]} and --target "
        parser.epilog += f"{seed_goal[1]:g} unless chosen otherwise."
    add_options(parser, of="program", given=given)

    chosen = vars(parser.parse_args(arguments))
    if seed_goal is not None and chosen["criterion"] == "seed":
        parser.set_defaults(env=seed_goal[0], target=seed_goal[1])
        chosen = vars(parser.parse_args(arguments))
    if chosen["resume"] and chosen["out"] is not None:
        begun_with = (saved_description(Path(chosen["out"])) or {}).get("options") or {}
        names = chosen.keys() & begun_with.keys() - {"smoke"}  # of which its `max_env_steps` came
        known = {name: begun_with[name] for name in names if begun_with[name] is not None}
        parser.set_defaults(**known)
        chosen = vars(parser.parse_args(arguments))
    chosen["env"], out = as_chosen(chosen["env"]), chosen["out"]
    return settled(Options(**{**chosen, "out": None if out is None else Path(out)}))


def settled(options: Options) -> Options:
    """Return options with a target that is a float, and shortened where they are for a trial."""
    steps = options.max_env_steps
    most = min(steps, SMOKE_ENV_STEPS) if options.smoke else steps
    return dataclasses.replace(options, target=float(options.target), max_env_steps=most)


def as_chosen(env: EnvLike) -> str | EnvMaker:
    """Return an environment as `Options` has it: its id where that says all, else its maker."""
    maker = EnvMaker.of(env)
    return maker.env if maker.is_plain and isinstance(maker.env, str) else maker
