"""The options of `ding-lite evolve`."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from ding_lite.cli.options import arguments
from ding_lite.cli.options.run import add_policy_and_env, add_run_options

_EXPECTED = (
    "expected is LOW:HIGH, both whole or both not, LOW:HIGH:log for all orders of magnitude, or "
    "several values with `|`: lr=1e-4:1e-2:log, batch_size=8:64, loss=huber|mse"
)


class Searched(NamedTuple):
    """A setting that agents differ in, as it was typed."""

    name: str
    values: tuple[object, ...]
    """The two bounds, or all there are."""
    is_log: bool
    is_range: bool


def searched(word: str) -> Searched:
    """Read what is to be searched of a setting.

    Example:
        >>> searched("lr=1e-4:1e-2:log")
        Searched(name='lr', values=(0.0001, 0.01), is_log=True, is_range=True)
        >>> searched("loss=huber|mse").values
        ('huber', 'mse')
    """
    name, _, text = (part.strip() for part in word.partition("="))
    is_range = ":" in text
    parts = [part.strip() for part in text.split(":" if is_range else "|")]
    is_log = is_range and len(parts) == 3 and parts[2] == "log"
    texts = parts[:2] if is_log else parts
    if not name.isidentifier() or not all(texts) or len(texts) < 2 or (is_range and len(texts) > 2):
        raise argparse.ArgumentTypeError(f"found {arguments.show(word)}; {_EXPECTED}.")
    values = tuple(arguments.assignment(f"{name}={part}")[1] for part in texts)
    is_number = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if is_range and not is_number:
        raise argparse.ArgumentTypeError(f"found {word!r}; {_EXPECTED}.")
    return Searched(name, values, is_log, is_range)


def add_evolve(parser: argparse.ArgumentParser) -> None:
    """Add what `ding-lite evolve` takes."""
    add_policy_and_env(parser, verb="evolve")
    add = parser.add_argument
    add(
        "--population",
        type=arguments.whole_number(1),
        metavar="N",
        help="how many agents there are (default: 6)",
    )
    add(
        "--search",
        type=searched,
        action="append",
        default=[],
        metavar="KEY=LOW:HIGH",
        help="a setting in which agents differ: lr=1e-4:1e-2:log, batch_size=8:64, "
        "loss=huber|mse; may be given several times (default: step sizes and batch sizes)",
    )
    add_run_options(
        parser,
        verb="evolve",
        settings="a setting of the policy or of evolution that all agents share, such as "
        "gamma=0.98 or mutation_sd=0.2; may be given several times",
        num_envs="environments that are stepped together, in which agents take turns",
        target="the mean return of 20 greedy episodes of one agent that counts as solved, which "
        "ends the run",
        max_env_steps="where the run ends at the latest; env steps of evaluations count, too "
        "(default: 200000, or that of a preset)",
        out="runs/evolve-POLICY/ENV",
    )
