"""What a word on the command line may be, and what is said when it is not.

The names of topologies and protocols stand here a second time: those who own them import far
more than `--help` has time for. A test compares them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ding_lite.errors import did_you_mean

TOPOLOGIES = ("star", "mesh", "alone")
PROTOCOLS = ("ipc", "tcp")
MOST_OF_A_ROLE = 999

Roles: TypeAlias = tuple[tuple[str, ...], ...]
"""The roles of each node."""


def whole_number(low: int) -> Callable[[str], int]:
    """Return what reads a whole number from `low` on."""

    def read(word: str) -> int:
        number = int(word) if word.isascii() and word.isdigit() else low - 1
        if number < low:
            raise argparse.ArgumentTypeError(
                f"found {word!r}; a whole number from {low} on was expected."
            )
        return number

    return read


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Return what reads one of several words."""

    def read(word: str) -> str:
        if word not in choices:
            raise argparse.ArgumentTypeError(
                f"found {word!r}; expected is one of: {', '.join(choices)}."
                f"{did_you_mean(word, choices)}"
            )
        return word

    return read


def seconds(word: str) -> float | None:
    """Read a number of seconds above 0, or `none`."""
    if word.lower() == "none":
        return None
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(
            f"found {word!r}; expected are seconds, a number above 0, or `none` to wait for ever."
        )
    return number


def roles(text: str) -> Roles:
    """Read the roles of the nodes.

    Example:
        >>> roles("learner+evaluator, collector*2")
        (('learner', 'evaluator'), ('collector',), ('collector',))
    """
    nodes: list[tuple[str, ...]] = []
    for entry in text.split(","):
        names, times, count = (part.strip() for part in entry.partition("*"))
        together = tuple(name.strip() for name in names.split("+"))
        is_number = count.isascii() and count.isdigit() and len(count) <= len(str(MOST_OF_A_ROLE))
        if not all(together) or (times and not (is_number and int(count) > 0)):
            raise argparse.ArgumentTypeError(
                f"found {entry.strip()!r} in {text!r}; expected is a role, several joined by `+`, "
                f"or either of them with `*` and a count from 1 to {MOST_OF_A_ROLE}: "
                f"learner,collector*3."
            )
        nodes += [together] * (int(count) if times else 1)
    return tuple(nodes)
