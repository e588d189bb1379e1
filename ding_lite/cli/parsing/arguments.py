"""Parse and check the values on the command line that are not those of runs.

The names of topologies and protocols are repeated here, because importing their own modules would
slow down `--help`. A test compares them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.options.words import show

PROTOCOLS = ("ipc", "tcp")
EXPORT_FORMATS = ("onnx", "torch")
SORTED_BY = (
    *("run", "policy", "env", "seed", "steps"),
    *("last", "best", "final", "time", "state", "when"),
)
"""The columns of `ding-lite runs`."""
MOST_SECONDS = 1e9
"""About 30 years; the system's clocks end at ten times that."""

Roles: TypeAlias = tuple[tuple[str, ...], ...]
Topology: TypeAlias = str | tuple[tuple[int, int], ...]
"""One of TOPOLOGIES, `tree:4` or the like, or the pairs of connected nodes."""


def one_of(choices: Sequence[str]) -> Callable[[str], str]:

    def read(word: str) -> str:
        if word not in choices:
            raise argparse.ArgumentTypeError(
                f"found {show(word)}; expected is one of: {', '.join(choices)}."
                f"{did_you_mean(word, choices)}"
            )
        return word

    return read


def seconds(word: str) -> float:
    return _seconds(word, "")


def seconds_or_none(word: str) -> float | None:
    """Read a number of seconds above 0, or `none`."""
    return None if word.lower() == "none" else _seconds(word, ", or `none` to wait for ever")


def _seconds(word: str, or_else: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"found {show(word)}; expected are seconds, a number above 0{or_else}."
        )
    return number


def names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"found {show(text)}; expected are names, separated by commas: gpu,fast."
        )
    return found


def topology(text: str) -> Topology:
    # Not above, as `--help` and slips wait for no import of the settings.
    from ding_lite.settings.environment import topology_of

    try:
        return topology_of(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def ports(text: str) -> int | tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    digits = all(word.isascii() and word.isdigit() and len(word) < 6 for word in words)
    if not digits or not all(0 < int(word) < 65_536 for word in words):
        raise argparse.ArgumentTypeError(
            f"found {show(text)}; expected is a port from 1 to 65535, from which the nodes count "
            f"on, or that of each node, separated by commas: 7000,7001."
        )
    numbers = tuple(map(int, words))
    return numbers[0] if len(numbers) == 1 else numbers


def roles(text: str) -> Roles:
    """Read the roles of the nodes.

    Example:
        >>> roles("learner+evaluator, collector*2")
        (('learner', 'evaluator'), ('collector',), ('collector',))
    """
    # Not above, as `--help` and slips wait for no import of the settings.
    from ding_lite.settings.environment import MOST_OF_A_ROLE, repeated

    nodes: list[tuple[str, ...]] = []
    for entry in text.split(","):
        alike = [tuple(map(str.strip, of_one.split("+"))) for of_one in repeated(entry)]
        if not alike or not all(alike[0]):
            raise argparse.ArgumentTypeError(
                f"found {show(entry.strip())} in {show(text)}; expected is a role, several joined "
                f"by `+`, or either of them with `*` and a count from 1 to {MOST_OF_A_ROLE}: "
                f"learner,collector*3."
            )
        nodes += alike
    return tuple(nodes)
