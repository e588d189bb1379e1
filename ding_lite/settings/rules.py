"""Rules of the values of settings, and the error that lists all faults.

A field of a config is made with the rules of its values: `lr: float = setting(1e-3, STEP_SIZE)`.
Rules are the checks `positive`, `at_least`, `inside`, `whole`, `one_of` and others, which
`check_settings` runs for all fields.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ding_lite.errors import ConfigError, did_you_mean

MOST = 2**63 - 1
"""The maximum of an integer setting: checkpoints and messages hold signed 64-bit integers."""
Rule: TypeAlias = Callable[..., list[str]]
"""Takes values by name, and returns a fault for each that is wrong."""


def setting(default: Any, *rules: Rule, optional: bool = False) -> Any:
    """Make the field of a setting; `check_settings` checks its values by the rules.

    A rule gets the value by its name and returns faults. None passes if it is the default, in the
    class or in a base, or if `optional`. A subclass with another default keeps the rules.
    """
    return dataclasses.field(default=default, metadata={"rules": rules, "optional": optional})


def check_settings(config: Any) -> None:
    """Raise one error for all values of a config that break the rules of their fields."""
    check_all(
        *(
            rule(**{name: value})
            for name, (rules, optional) in _rules_of(config.__class__).items()
            if not ((value := getattr(config, name)) is None and optional)
            for rule in rules
        )
    )


@functools.cache
def _rules_of(config_type: Any) -> dict[str, tuple[tuple[Rule, ...], bool]]:
    """Return the rules of each field, and whether None passes; cached, as it takes long."""
    found: dict[str, tuple[tuple[Rule, ...], bool]] = {}
    for base in filter(dataclasses.is_dataclass, reversed(config_type.__mro__)):
        for field in dataclasses.fields(base):
            rules, optional = found.get(field.name, ((), False))
            optional |= field.default is None or field.metadata.get("optional", False)
            found[field.name] = field.metadata.get("rules", rules), optional
    own_first = (
        name for base in config_type.__mro__ for name in vars(base).get("__annotations__", ())
    )
    return {name: found[name] for name in dict.fromkeys(own_first) if name in found}


def check_all(*faults: Iterable[str]) -> None:
    """Raise one error that lists all faults, one sentence each; return if there are none."""
    sentences = list(dict.fromkeys(fault for group in faults for fault in group))
    if sentences:
        stopped = (s if s.endswith((".", "?")) else f"{s}." for s in sentences)
        raise ConfigError(" ".join(stopped))


def positive(**named: float) -> list[str]:
    """Return a fault for each value that is not above 0; NaN is a fault."""
    return _faults(named, lambda value: value > 0, "be above 0")


def at_least(low: float, **named: float) -> list[str]:
    """Return a fault for each value below `low`; NaN is a fault."""
    return _faults(named, lambda value: value >= low, f"be at least {low}")


def inside(low: float, high: float, **named: float) -> list[str]:
    """Return a fault for each value outside of [`low`, `high`]; NaN is a fault."""
    return _faults(named, lambda value: low <= value <= high, f"lie between {low} and {high}")


def finite(**named: float) -> list[str]:
    return _faults(named, lambda value: math.isfinite(_as_float(value)), "be finite")


def not_nan(**named: float) -> list[str]:
    """Return a fault for each value that is NaN, or an integer that is larger than any float."""
    return _faults(named, lambda value: not math.isnan(_as_float(value)), "not be NaN")


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # of an integer
        return math.nan


def whole(low: int, **named: Any) -> list[str]:
    """Return a fault for each value that is no integer from `low` to `MOST`; bools are faults."""
    return [
        f"`{name}` is {value!r:.100}; it must be a whole number from {low} on"
        + (f", and at most {MOST}" if is_a(numbers.Integral, value) and value > MOST else "")
        for name, value in named.items()
        if not is_a(numbers.Integral, value) or not low <= value <= MOST
    ]


def one_of(choices: Iterable[Any], **named: Any) -> list[str]:
    """Return a fault for each value that is not among the choices; it suggests the closest one."""
    choices = list(choices)
    listed = ", ".join(repr(choice) for choice in choices)
    return [
        f"`{name}` is {value!r}; it must be one of: {listed}."
        + did_you_mean(str(value), [str(choice) for choice in choices])
        for name, value in named.items()
        if value not in choices
    ]


def step_size(**named: float) -> list[str]:
    """Return a fault for each value that is not above 0 and finite."""
    return positive(**named) or finite(**named)


def widths(**named: Any) -> list[str]:
    """Return the faults of widths of layers: a list of whole numbers from 1 on, at least one."""
    faults: list[str] = []
    for name, value in named.items():
        if isinstance(value, Sequence) and not isinstance(value, str) and value:
            for width in value:
                faults += whole(1, **{name: width})
        else:
            faults.append(f"`{name}` is {value!r}; widths were expected, such as (64, 64)")
    return faults


def choice(*choices: Any) -> Rule:
    """Return the rule that a value is one of the choices, or of those of a `Literal`."""
    return functools.partial(one_of, typing.get_args(choices[0]) or choices)


COUNT, NATURAL = (functools.partial(whole, low) for low in (1, 0))
NOT_NEGATIVE = functools.partial(at_least, 0.0)
SHARE = functools.partial(inside, 0.0, 1.0)
STEP_SIZE = step_size


def _faults(
    named: Mapping[str, Any], is_right: Callable[[Any], bool], what_it_must: str
) -> list[str]:
    return [
        f"`{name}` is {value!r:.100}; it must {what_it_must if is_number else 'be a number'}"
        for name, value in named.items()
        if not ((is_number := is_a(numbers.Real, value)) and is_right(value))
    ]


def is_a(kind: type[Any], value: Any) -> bool:
    """Return whether a value is a number of this kind, also of NumPy; bools are not numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)
