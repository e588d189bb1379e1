"""`ding-lite train` and `evolve`: train by a policy's name, and end with one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ding_lite.cli.tables import print_table
from ding_lite.evolution.search import Search
from ding_lite.exit_codes import DONE, INTERRUPTED
from ding_lite.io.importing import look_here
from ding_lite.log import configure
from ding_lite.options.derived import sentences_of
from ding_lite.options.run_options import RunOptions
from ding_lite.options.words import Searched
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.evolve import plan_evolution, run_evolution
from ding_lite.recipes.plan import RunPlan, make_plan
from ding_lite.recipes.saved_options import parameter_of
from ding_lite.recipes.training import run_plan
from ding_lite.settings.rules import check_all


def train_policy(options: argparse.Namespace) -> int:
    """Train a policy as the command line says; return the exit code, 0 also if not solved."""
    look_here()
    plan = make_plan(options.policy, options.env, options.set, Choices(**vars(options)))
    return carry_out(options, plan, lambda: run_plan(plan).numbers)


def evolve_policies(options: argparse.Namespace) -> int:
    """Evolve a population as the command line says; return the exit code, 0 also if not solved."""
    look_here()
    search = search_of(options.search) if options.search else None
    plan = plan_evolution(
        options.policy, options.env, search, options.set, Choices(**vars(options))
    )
    return carry_out(options, plan, lambda: run_evolution(plan).numbers)


def search_of(given: Sequence[Searched]) -> Search:
    """Make the search from the options `--search`; refuse a setting that is given twice."""
    names = [one.name for one in given]
    check_all(
        f"`--search {name}` was given {names.count(name)} times; once was expected"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    )
    return Search(**{one.name: parameter_of(one) for one in given})


def carry_out(
    options: argparse.Namespace, plan: RunPlan, run: Callable[[], Mapping[str, Any]]
) -> int:
    """Run and print the numbers as the last line, or only show settings; return the exit code."""
    if options.settings:
        show_settings(plan)
        return DONE
    if not options.quiet:
        configure("warning")
    try:
        numbers = run()
    except KeyboardInterrupt:  # the run has printed how to resume it
        return INTERRUPTED
    print(json.dumps(numbers))
    sys.stdout.flush()
    return DONE


def show_settings(plan: RunPlan) -> None:
    """Print all settings with their values, the sources of these, and their meanings.

    The options that presets may contain are among them, named as on the command line.
    """
    meanings = sentences_of(plan.recipe.policy_config) | sentences_of(plan.recipe.config)
    rows = [
        (name, _format(value), plan.values.source(name), meanings.get(name, ""))
        for name, value in plan.settings.items()
    ]
    rows += [
        (
            f"--{name.replace('_', '-')}",
            _format(getattr(plan.options, name)),
            plan.values.source(name),
            sentences_of(RunOptions)[name],
        )
        for name in ("num_envs", "max_env_steps", "target")
    ]
    print_table(
        ("setting", "value", "source", "meaning"),
        rows,
        bold=[source != "default" for _, _, source, _ in rows],
    )


def _format(value: object) -> str:
    """Write a value in the syntax of `--set`."""
    if isinstance(value, tuple):
        return ",".join(map(_format, value)) + ("," if len(value) == 1 else "")
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
