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

from ding_lite.cli.exit_codes import DONE, INTERRUPTED
from ding_lite.cli.tables import print_table
from ding_lite.log import configure
from ding_lite.recipes.plan import Choices, RunPlan, make_plan
from ding_lite.recipes.training import run_plan


def train_policy(options: argparse.Namespace) -> int:
    """Train as the command line says.

    Args:
        options: What `ding_lite.cli.main.parse` has read.

    Returns:
        The exit code: whether it was solved does not matter to it.

    Raises:
        DingLiteError: What a user can mend, in a sentence.
    """
    plan = make_plan(options.policy, options.env, dict(options.set), choices_of(options))
    if options.settings:
        show_settings(plan)
        return DONE
    return run_and_tell(lambda: run_plan(plan).numbers)


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
    )


def run_and_tell(run: Callable[[], Mapping[str, Any]]) -> int:
    """Make a run, and print its numbers as the last line; return the exit code."""
    configure("info")
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
