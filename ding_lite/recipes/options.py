"""The options that every training program takes."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ding_lite.errors import ConfigError
from ding_lite.io.files import path_fault
from ding_lite.io.importing import look_here
from ding_lite.recipes.runs.directory import saved_description
from ding_lite.rl.envs.making import EnvLike, EnvMaker
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.settings import at_least, check_all, whole

SMOKE_ENV_STEPS = 2_000
CriterionName: TypeAlias = Literal["greedy", "seed"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run, as chosen on the command line."""

    env: str | EnvMaker
    """The environment's id in gymnasium's registry, or what makes it."""
    seed: int
    """Decides everything that is random."""
    max_env_steps: int
    """Where the run ends at the latest."""
    target: float
    """The mean return of 20 greedy episodes that counts as solved; infinity: never."""
    smoke: bool
    """Whether this is only a test that the program runs."""
    out: Path | None
    """The directory of the run; a new one under `runs` where it is not given."""
    nodes: int = 1
    """How many processes share the work."""
    resume: bool = False
    """Whether the run in `out` goes on, if there is one."""
    criterion: CriterionName = "greedy"
    """Which episodes tell whether it is solved: greedy ones, or (`seed`) those of collectors."""
    population: int = 1
    """How many agents there are."""
    num_envs: int = 1
    """How many environments the agents share, where the program leaves that open."""
    report: tuple[str, ...] = ()
    """Functions that get the metrics, each as `path/to/file.py:name`."""

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
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add(
        "--env",
        default=env,
        metavar="ID",
        help="an environment of gymnasium's registry, module:Env-v0, or path/to/file.py:MyEnv "
        "(default: %(default)s)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="decides everything that is random (default: %(default)s)",
    )
    add(
        "--max-env-steps",
        type=int,
        default=max_env_steps,
        metavar="N",
        help="where the run ends at the latest (default: %(default)s)",
    )
    add(
        "--target",
        type=float,
        default=target,
        metavar="RETURN",
        help="the mean return of 20 greedy episodes that counts as solved (default: %(default)g)",
    )
    if nodes is not None:
        add(
            "--nodes",
            type=int,
            default=nodes,
            metavar="N",
            help="how many processes share the work; 1 does all in one (default: %(default)s)",
        )
    for name, default, what in (
        ("--population", population, "how many agents there are"),
        ("--num-envs", num_envs, "how many environments they share"),
    ):
        if default is not None:
            text = f"{what} (default: %(default)s)"
            add(name, type=int, default=default, metavar="N", help=text)
    if seed_goal is not None:
        add(
            "--criterion",
            choices=get_args(CriterionName),
            default="greedy",
            help="what counts as solved: greedy episodes, or (seed) that the smoothed return of "
            f"one collector is above the target five times in a row, by default that of "
            f"{seed_goal[0]}, {seed_goal[1]:g} (default: %(default)s)",
        )
    add("--smoke", action="store_true", help=f"only try it out, for {SMOKE_ENV_STEPS:,} env steps")
    add(
        "--out",
        type=_path,
        metavar="DIR",
        help="the directory of the run (default: the next number under runs/<program>)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with the run in --out where its last checkpoint was saved; begin it if "
        "there is none",
    )
    chosen = vars(parser.parse_args(arguments))
    if seed_goal is not None and chosen["criterion"] == "seed":
        parser.set_defaults(env=seed_goal[0], target=seed_goal[1])
        chosen = vars(parser.parse_args(arguments))
    if chosen["resume"] and chosen["out"] is not None:
        begun_with: dict[str, Any] = (saved_description(chosen["out"]) or {}).get("options") or {}
        names = chosen.keys() & begun_with.keys() - {"smoke"}  # of which its `max_env_steps` came
        known = {name: begun_with[name] for name in names if begun_with[name] is not None}
        parser.set_defaults(**known)
        chosen = vars(parser.parse_args(arguments))
    if chosen["smoke"]:
        chosen["max_env_steps"] = min(chosen["max_env_steps"], SMOKE_ENV_STEPS)
    return Options(**{**chosen, "env": as_chosen(chosen["env"])})


def as_chosen(env: EnvLike) -> str | EnvMaker:
    """Return an environment as `Options` has it: its id where that says all, else its maker."""
    maker = EnvMaker.of(env)
    return maker.env if maker.is_plain and isinstance(maker.env, str) else maker


def _path(word: str) -> Path:
    if fault := path_fault(word):
        raise argparse.ArgumentTypeError(f"found {word!r}; {fault}")
    return Path(word)
