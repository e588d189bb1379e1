"""Read values that are written as words, on the command line or in a file of settings."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ding_lite.io.files import path_fault

MOST = 2**63 - 1
"""The maximum whole number: checkpoints and messages hold signed 64-bit integers."""
OPTIONS_ELSEWHERE = {"total_timesteps": "max_env_steps", "n_envs": "num_envs"}
"""Names of options in other libraries, with their names here."""
_MOST_SHOWN = 60
_WHOLE = re.compile(r"[0-9]+(_[0-9]+)*(e[0-9]{1,2})?", re.IGNORECASE)
_SEARCHED = (
    "expected is LOW:HIGH, both whole or both not, LOW:HIGH:log for all orders of magnitude, or "
    "several values with `|`: lr=1e-4:1e-2:log, batch_size=8:64, 'loss=huber|mse'"
)


def whole_number(low: int, high: int = MOST) -> Callable[[str], int]:
    """Return a reader of whole numbers, which may be written as 1_000 or 1e3, too."""

    def read(word: str) -> int:
        is_number = _WHOLE.fullmatch(word) is not None and len(word) <= _MOST_SHOWN
        value = read_value(word) if is_number else None
        number = value if isinstance(value, int) else low - 1
        if not low <= number <= high:
            most = f", and at most {high}" if number > high else ""
            raise argparse.ArgumentTypeError(
                f"found {show(word)}; a whole number from {low} on was expected{most}."
            )
        return number

    return read


def show(word: str) -> str:
    """Quote a word of the command line, shortened if it is long."""
    if len(word) <= _MOST_SHOWN:
        return repr(word)
    return f"{word[: _MOST_SHOWN // 2] + '...'!r} ({len(word)} characters)"


def path(word: str) -> str:
    if fault := path_fault(word):
        raise argparse.ArgumentTypeError(f"found {show(word)}; {fault}")
    return os.path.expanduser(word)  # no shell does it in `--out=~/run`


def number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"found {show(word)}; a number was expected.")
    return value


def assignment(word: str) -> tuple[str, object]:
    """Read a name and its value: a number, true, false, none, a word, or several with commas.

    Example:
        >>> assignment("lr=3e-4"), assignment("hidden=64,64"), assignment("double=false")
        (('lr', 0.0003), ('hidden', (64, 64)), ('double', False))
    """
    name, equals, text = (part.strip() for part in word.partition("="))
    if not equals or not name.isidentifier() or not text:
        raise argparse.ArgumentTypeError(
            f"found {show(word)}; expected is a name, `=` and a value, such as lr=3e-4."
        )
    value = read_value(text)
    for one in value if isinstance(value, tuple) else (value,):
        if not _is_held(one):
            raise argparse.ArgumentTypeError(
                f"found {show(word)}; a number was expected that is held by 64 bits."
            )
    return name, value


class Pairs(argparse.Action):
    """Collects assignments in a dict; the last value of a name counts."""

    def __call__(self, parser: object, namespace: object, pair: Any, *_: object) -> None:  # noqa: ANN401
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), pair[0]: pair[1]})


def _is_held(value: object) -> bool:
    """Return whether 64 bits hold a number; floats that are too large are read as infinity."""
    if isinstance(value, int):
        return abs(value) <= MOST
    return not isinstance(value, float) or math.isfinite(value)


def read_value(text: str) -> object:
    """Read the value of an assignment.

    Example:
        >>> read_value("1e5"), read_value("1.0"), read_value("none")
        (100000, 1.0, None)
    """
    if "," in text:
        inner = text.removeprefix("(").removeprefix("[").removesuffix(")").removesuffix("]")
        return tuple(read_value(part.strip()) for part in inner.split(",") if part.strip())
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


class Searched(NamedTuple):
    """A searched setting, as it is given on the command line."""

    name: str
    values: tuple[object, ...]
    """The two bounds of a range, or all choices."""
    is_log: bool
    is_range: bool


def searched(word: str) -> Searched:
    """Read the search range or the choices of a setting.

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
        raise argparse.ArgumentTypeError(f"found {show(word)}; {_SEARCHED}.")
    values = tuple(assignment(f"{name}={part}")[1] for part in texts)
    is_number = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if is_range and not is_number:
        raise argparse.ArgumentTypeError(f"found {word!r}; {_SEARCHED}.")
    return Searched(name, values, is_log, is_range)
