"""`ding-lite evolve`: evolve a population of policies, and end with one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ding_lite.cli.evolve_options import Searched
from ding_lite.cli.main import DONE, INTERRUPTED
from ding_lite.cli.train import show_settings
from ding_lite.evolution.search import Parameter, Search, choice, integer, log_uniform, uniform
from ding_lite.log import configure
from ding_lite.recipes.evolve import plan_evolution, run_evolution
from ding_lite.recipes.plan import Choices


def evolve_policies(options: argparse.Namespace) -> int:
    """Evolve as the command line says.

    Args:
        options: What `ding_lite.cli.main.parse` has read.

    Returns:
        The exit code: whether it was solved does not matter to it.

    Raises:
        DingLiteError: What a user can mend, in a sentence.
    """
    choices = Choices(
        num_envs=options.num_envs,
        seed=options.seed,
        target=options.target,
        max_env_steps=options.max_env_steps,
        out=None if options.out is None else Path(options.out),
        resume=options.resume,
        smoke=options.smoke,
    )
    settings = dict(options.set)
    if options.population is not None:
        settings["population"] = options.population
    search = search_of(options.search) if options.search else None
    evolution = plan_evolution(options.policy, options.env, search, settings, choices)
    if options.settings:
        show_settings(evolution.plan)
        return DONE
    configure("info")
    try:
        result = run_evolution(evolution)
    except KeyboardInterrupt:  # the run has said where it can go on
        return INTERRUPTED
    print(json.dumps(result.numbers))
    sys.stdout.flush()
    return DONE


def search_of(given: Sequence[Searched]) -> Search:
    """Make the search that was typed."""
    return Search(**{one.name: _parameter(one) for one in given})


def _parameter(one: Searched) -> Parameter:
    values: tuple[Any, ...] = one.values
    if not one.is_range:
        return choice(*values)
    low, high = values
    if one.is_log:
        return log_uniform(low, high)
    is_whole = isinstance(low, int) and isinstance(high, int)
    return integer(low, high) if is_whole else uniform(low, high)
