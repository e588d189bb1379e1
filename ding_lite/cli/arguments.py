"""What a word on the command line may be, and what is said when it is not.

The names of topologies and protocols stand here a second time: those who own them import far
more than `--help` has time for. A test compares them.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ding_lite.errors import did_you_mean

TOPOLOGIES = ("star", "mesh", "tree", "alone")
PROTOCOLS = ("ipc", "tcp")
MOST_OF_A_ROLE = 999

Roles: TypeAlias = tuple[tuple[str, ...], ...]
"""The roles of each node."""
Topology: TypeAlias = str | tuple[tuple[int, int], ...]
"""One of TOPOLOGIES, `tree:4` or the like, or the pairs of connected nodes."""


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


def seconds(word: str) -> float:
    """Read a number of seconds above 0."""
    return _seconds(word, "")


def seconds_or_none(word: str) -> float | None:
    """Read a number of seconds above 0, or `none`."""
    return None if word.lower() == "none" else _seconds(word, ", or `none` to wait for ever")


def _seconds(word: str, or_else: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(
            f"found {word!r}; expected are seconds, a number above 0{or_else}."
        )
    return number


def names(text: str) -> tuple[str, ...]:
    """Read names that are separated by commas.

    Example:
        >>> names("gpu, fast")
        ('gpu', 'fast')
    """
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"found {text!r}; expected are names, separated by commas: gpu,fast."
        )
    return found


def topology(text: str) -> Topology:
    """Read who is connected to whom.

    Example:
        >>> topology("star")
        'star'
        >>> topology("0-1, 1-2")
        ((0, 1), (1, 2))
    """
    if text in TOPOLOGIES or re.fullmatch(r"tree:[1-9][0-9]{0,5}", text):
        return text
    pairs = []
    for entry in text.split(","):
        pair = re.fullmatch(r"\s*([0-9]{1,6})\s*-\s*([0-9]{1,6})\s*", entry)
        if pair is None or int(pair[1]) == int(pair[2]):
            is_word = text.replace("-", "").isalpha()
            raise argparse.ArgumentTypeError(
                f"found {text!r}; expected is one of: {', '.join(TOPOLOGIES)}, or the pairs of "
                f"connected nodes: 0-1,1-2."
                + (did_you_mean(text, TOPOLOGIES) if is_word else f" {entry!r} is no such pair.")
            )
        pairs.append((int(pair[1]), int(pair[2])))
    return tuple(pairs)


def ports(text: str) -> int | tuple[int, ...]:
    """Read one port, or that of each node.

    Example:
        >>> ports("50515"), ports("7000,7001")
        (50515, (7000, 7001))
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 65_536 for word in words):
        raise argparse.ArgumentTypeError(
            f"found {text!r}; expected is a port from 1 to 65535, from which the nodes count on, "
            f"or that of each node, separated by commas: 7000,7001."
        )
    numbers = tuple(map(int, words))
    return numbers[0] if len(numbers) == 1 else numbers


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


def number(word: str) -> float:
    """Read a number.

    Example:
        >>> number("-110")
        -110.0
    """
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"found {word!r}; a number was expected.")
    return value


def assignment(word: str) -> tuple[str, object]:
    """Read a name and its value: a number, true, false, none, several with commas, or a word.

    Example:
        >>> assignment("lr=3e-4"), assignment("hidden=64,64"), assignment("double=false")
        (('lr', 0.0003), ('hidden', (64, 64)), ('double', False))
    """
    name, equals, text = (part.strip() for part in word.partition("="))
    if not equals or not name.isidentifier() or not text:
        raise argparse.ArgumentTypeError(
            f"found {word!r}; expected is the name of a setting, `=` and its value: lr=3e-4."
        )
    return name, _value(text)


def _value(text: str) -> object:
    if "," in text:
        inner = text.removeprefix("(").removeprefix("[").removesuffix(")").removesuffix("]")
        return tuple(_value(part.strip()) for part in inner.split(",") if part.strip())
    words: dict[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            found = kind(text)
        except ValueError:
            continue
        is_whole = isinstance(found, float) and found.is_integer() and abs(found) < 2**53
        return int(found) if is_whole and "." not in text else found  # 1e5 is a count, too
    return text
