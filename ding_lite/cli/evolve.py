"""`ding-lite evolve`: evolve a population of policies, and end with one line of JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ding_lite.cli.train import carry_out
from ding_lite.evolution.search import Search
from ding_lite.io.importing import look_here
from ding_lite.options.words import Searched
from ding_lite.recipes.choices import Choices
from ding_lite.recipes.evolve import plan_evolution, run_evolution
from ding_lite.recipes.saved_options import parameter_of
from ding_lite.settings.rules import check_all


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
