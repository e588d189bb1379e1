"""`ding-lite train`: train a policy by its name, and end with one line of JSON."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ding_lite import middleware as mw
from ding_lite.cli.exit_codes import DONE, INTERRUPTED
from ding_lite.cli.tables import print_table
from ding_lite.errors import ConfigError
from ding_lite.io.importing import find_member, look_here
from ding_lite.log import configure
from ding_lite.recipes.plan import Choices, RunPlan, make_plan
from ding_lite.recipes.training import run_plan
from ding_lite.rl.envs.making import EnvMaker
from ding_lite.runtime.middleware import Middleware


def train_policy(options: argparse.Namespace) -> int:
    """Train as the command line says.

    Args:
        options: What `ding_lite.cli.main.parse` has read.

    Returns:
        The exit code: whether it was solved does not matter to it.

    Raises:
        DingLiteError: What a user can mend, in a sentence.
    """
    plan = make_plan(options.policy, env_of(options), dict(options.set), choices_of(options))
    if options.settings:
        show_settings(plan)
        return DONE
    use = reporters_of(plan)
    return run_and_tell(lambda: run_plan(plan, use=use).numbers)


def reporters_of(plan: RunPlan) -> list[Middleware]:
    """Return the middleware that call functions of the user with the metrics of a run.

    Raises:
        ConfigError: There is no such function.
    """
    steps = plan.config.steps_per_update(plan.num_envs)  # 0 of an option that is refused later
    every = max(1, plan.config.log_every // max(1, steps))
    return [mw.report(_function(name), every=every) for name in plan.options.report]


def _function(place_and_name: str) -> Any:  # noqa: ANN401 - `mw.report` checks it
    place, _, name = place_and_name.rpartition(":")
    if not place:
        raise ConfigError(
            f"`--report` is {place_and_name!r}; a function was expected, named with its file or "
            f"module: path/to/file.py:{place_and_name}."
        )
    return find_member(place, name)


def env_of(options: argparse.Namespace) -> EnvMaker:
    """Return what makes the environment; modules of the working directory are found, too."""
    look_here()
    return EnvMaker.of(options.env, args=dict(options.env_arg), imports=options.imports)


def choices_of(options: argparse.Namespace) -> Choices:
    """Return what was chosen of a run."""
    return Choices(
        num_envs=options.num_envs,
        seed=options.seed,
        target=options.target,
        max_env_steps=options.max_env_steps,
        out=None if options.out is None else Path(options.out),
        resume=options.resume,
        smoke=options.smoke,
        device=options.device,
        report=None if options.report is None else tuple(options.report),
        compile=getattr(options, "compile", None),  # populations have none
        config=None if options.config is None else Path(options.config),
    )


def run_and_tell(run: Callable[[], Mapping[str, Any]]) -> int:
    """Make a run, and print its numbers as the last line; return the exit code."""
    configure("warning")
    try:
        numbers = run()
    except KeyboardInterrupt:  # the run has said where it can go on
        return INTERRUPTED
    print(json.dumps(numbers))
    sys.stdout.flush()
    return DONE


def show_settings(plan: RunPlan) -> None:
    """Print all settings, their values, where those come from, and what they mean."""
    meanings = {**_meanings(plan.recipe.policy_config), **_meanings(plan.recipe.config)}
    rows = [
        (name, _spell(value), plan.sources[name], " ".join(meanings[name].split()))
        for name, value in plan.settings.items()
    ]
    print_table(
        ("setting", "value", "source", "meaning"),
        rows,
        bold=[source != "default" for _, _, source, _ in rows],
    )


def _spell(value: object) -> str:
    """Write a value as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(_spell, value)) + ("," if len(value) == 1 else "")
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _meanings(config: type) -> dict[str, str]:
    """Read the sentences below the fields of a config, those that it inherits included."""
    meanings = {}
    for cls in reversed(config.__mro__[:-1]):
        [definition] = ast.parse(inspect.getsource(cls)).body
        if isinstance(definition, ast.ClassDef):
            for field, text in zip(definition.body, definition.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    meanings[ast.unparse(field.target)] = str(ast.literal_eval(text.value))
    return meanings
