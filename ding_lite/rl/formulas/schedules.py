"""Values that change over a run: a schedule maps env steps to a value."""

from __future__ import annotations

import math
from typing import Literal, Protocol

from ding_lite.settings.rules import check_all, one_of, positive


class Schedule(Protocol):
    """A function from the number of env steps so far to a value."""

    def __call__(self, env_step: float, /) -> float:
        """Return the value at an env step."""


def constant(value: float) -> Schedule:
    """Make a schedule that stays at one value.

    Example:
        >>> constant(0.1)(5_000)
        0.1
    """
    return lambda env_step: value


def linear(start: float, end: float, *, steps: float) -> Schedule:
    """Make a schedule that goes linearly from one value to another, and stays there.

    Args:
        start: The value at env step 0.
        end: The value from env step `steps` on.
        steps: The number of env steps between the two values.

    Raises:
        ConfigError: If `steps` is not above 0.

    Example:
        >>> epsilon = linear(1.0, 0.05, steps=10_000)
        >>> epsilon(0), epsilon(5_000), epsilon(20_000)
        (1.0, 0.525, 0.05)
    """
    check_all(positive(steps=steps))

    def _linear(env_step: float) -> float:
        share = min(max(env_step / steps, 0.0), 1.0)
        return start * (1.0 - share) + end * share

    return _linear


def exponential(start: float, end: float, *, decay: float) -> Schedule:
    """Make an exponential schedule: `end + (start - end) * exp(-env_step / decay)`.

    Args:
        start: The value at env step 0.
        end: The value it approaches.
        decay: The number of env steps after which 63 % of the change is done. Higher is slower.

    Raises:
        ConfigError: If `decay` is not above 0.

    Example:
        >>> epsilon = exponential(1.0, 0.0, decay=1_000)
        >>> round(epsilon(1_000), 3)
        0.368
    """
    check_all(positive(decay=decay))

    return lambda env_step: (start - end) * math.exp(-env_step / decay) + end


def get_epsilon_greedy_fn(
    start: float, end: float, decay: int, type_: Literal["exp", "linear"] = "exp"
) -> Schedule:
    """Make a schedule of the share of random actions, with DI-engine's name and arguments.

    Args:
        start: The share at env step 0.
        end: The final share.
        decay: The number of env steps after which a linear fall ends, or an exponential fall has
            done 63 % of the change.
        type_: `exp` for `(start - end) * exp(-env_step / decay) + end`, `linear` for a straight
            line.

    Raises:
        ConfigError: If the type is not one of the two, or `decay` is not above 0.

    Example:
        >>> epsilon_greedy = get_epsilon_greedy_fn(0.95, 0.1, 10_000)
        >>> round(epsilon_greedy(0), 2), round(epsilon_greedy(10_000), 3)
        (0.95, 0.413)
    """
    check_all(one_of(("exp", "linear"), type_=type_))
    if type_ == "exp":
        return exponential(start, end, decay=decay)
    return linear(start, end, steps=decay)
