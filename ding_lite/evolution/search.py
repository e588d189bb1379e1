"""The search space of hyperparameters."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, TypeAlias, cast

import numpy as np

from ding_lite.errors import ConfigError, did_you_mean, kind_of
from ding_lite.settings.config import default_values
from ding_lite.settings.rules import check_all, positive, whole

Value: TypeAlias = float | int | str | bool | None
"""A value of a hyperparameter."""
LEARN_EVERY = "learn_every"
"""The env steps per update of an agent, which is a setting of the agent and not of a policy."""
_FIXED = {
    "seed": "each agent has its own anyway",
    "hidden": "an architecture mutation changes it: `mutate_architecture`, or in a program of "
    "your own `Mutation(architecture=...)`",
    "torso": "agents of different convolutions have nothing to inherit",
    **dict.fromkeys(
        ("memory", "memory_size"), "agents of different memories have nothing to inherit"
    ),
    **dict.fromkeys(
        ("activation", "image_activation"),
        "an activation mutation changes it: `mutate_activation`, or in a program of your own "
        "`Mutation(activation=...)`",
    ),
    **dict.fromkeys(("dueling", "convs"), "agents of different networks have nothing to inherit"),
    "log_std_start": "it is the first value of what is learned, so a mutation would change nothing",
    "n_step": "all agents share the transitions, which are of one length",
    "normalize_obs": "an agent with it cannot inherit from one without",
}
"""Settings that cannot be searched, and why."""


class Parameter(ABC):
    """The values that one hyperparameter may have."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Value:
        """Draw an initial value."""

    @abstractmethod
    def mutate(self, value: Value, rng: np.random.Generator) -> Value:
        """Draw another value, near this one if values have an order."""

    @abstractmethod
    def examples(self) -> Iterable[Value]:
        """Return the values that a setting must accept: the bounds, or all of a choice."""


@dataclass(frozen=True, kw_only=True)
class Range(Parameter):
    """Numbers from one bound to the other."""

    low: float
    high: float
    grow: float
    shrink: float
    is_whole: bool = False
    is_log: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high", "grow", "shrink"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        check_all(_not_numbers(low=self.low, high=self.high, grow=self.grow, shrink=self.shrink))
        check_all(
            positive(shrink=self.shrink),
            [] if self.low < self.high else [self._fault("low", "high", "be in order")],
            positive(low=self.low) if self.is_log else [],
            []
            if self.shrink < 1.0 < self.grow
            else [self._fault("shrink", "grow", "lie around 1")],
        )

    def _fault(self, first: str, second: str, what_they_must: str) -> str:
        return (
            f"`{first}` is {getattr(self, first)} and `{second}` {getattr(self, second)}; they "
            f"must {what_they_must}"
        )

    def draw(self, rng: np.random.Generator) -> Value:
        """Draw uniformly; in a logarithmic range uniformly by order of magnitude."""
        if self.is_whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        if self.is_log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return float(min(max(drawn, self.low), self.high))
        return float(rng.uniform(self.low, self.high))

    def mutate(self, value: Value, rng: np.random.Generator) -> Value:
        """Multiply by `grow` or `shrink`; a value at a bound moves away from it.

        A setting that is None by default is drawn.
        """
        if value is None:
            return self.draw(rng)
        number = float(value)
        grows = bool(rng.random() < 0.5)
        if number >= self.high:
            grows = False
        elif number <= self.low:
            grows = True
        factor = self.grow if grows == (number >= 0.0) else self.shrink
        moved = number * factor
        if self.is_whole:  # small numbers move by one at least
            moved = max(math.ceil(moved), number + 1) if grows else min(int(moved), number - 1)
        elif number == 0.0:
            moved = 0.1 * (self.high if grows else self.low)
        moved = min(max(moved, self.low), self.high)
        return int(moved) if self.is_whole else float(moved)  # a bound may be an int

    def examples(self) -> Iterable[Value]:
        kind = int if self.is_whole else float
        return kind(self.low), kind(self.high)


@dataclass(frozen=True)
class Choice(Parameter):
    """Values without an order."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(map(_plain, self.values)))
        strange = [v for v in self.values if not isinstance(v, float | int | str | None)]
        if strange:
            raise ConfigError(
                f"`choice` was given {strange[0]!r}; numbers, words, True, False or None were "
                f"expected, one by one: `choice(16, 32, 64)`."
            )
        if len(set(self.values)) < 2:
            raise ConfigError(
                f"`choice` was given {list(self.values)}; two different values at least were "
                f"expected. What has but one value belongs into the config."
            )

    def draw(self, rng: np.random.Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]

    def mutate(self, value: Value, rng: np.random.Generator) -> Value:
        others = [other for other in self.values if other != value]
        return others[int(rng.integers(len(others)))]

    def examples(self) -> Iterable[Value]:
        return self.values


def integer(low: int, high: int, *, grow: float = 1.2, shrink: float = 0.8) -> Parameter:
    """Search integers, both bounds included.

    Args:
        low: The lowest value.
        high: The highest value.
        grow: The factor of an upward mutation. Further from 1 takes larger steps.
        shrink: The factor of a downward mutation.

    Raises:
        ConfigError: The bounds are no whole numbers in order, or a factor goes the wrong way.
    """
    check_all(
        f"`{name}` is {bound!r}; a whole number was expected"
        for name, bound in (("low", low), ("high", high))
        if isinstance(bound, bool) or not isinstance(bound, int | np.integer)
    )
    return Range(low=int(low), high=int(high), grow=grow, shrink=shrink, is_whole=True)


def uniform(low: float, high: float, *, grow: float = 1.2, shrink: float = 0.8) -> Parameter:
    """Search numbers between two bounds, all equally likely at first.

    Args:
        low: The lowest value.
        high: The highest value.
        grow: The factor of an upward mutation. Further from 1 takes larger steps.
        shrink: The factor of a downward mutation.

    Raises:
        ConfigError: The bounds are not in order, or a factor goes the wrong way.
    """
    return Range(low=low, high=high, grow=grow, shrink=shrink)


def log_uniform(low: float, high: float, *, grow: float = 1.2, shrink: float = 0.8) -> Parameter:
    """Search numbers above 0, all orders of magnitude equally likely at first.

    Args:
        low: The lowest value, above 0.
        high: The highest value.
        grow: The factor of an upward mutation. Further from 1 takes larger steps.
        shrink: The factor of a downward mutation.

    Raises:
        ConfigError: The bounds are not in order or not above 0, or a factor goes the wrong way.
    """
    return Range(low=low, high=high, grow=grow, shrink=shrink, is_log=True)


def choice(*values: Value) -> Parameter:
    """Search among values, such as `choice("huber", "mse")`.

    Raises:
        ConfigError: There are fewer than two values, or one is no number, word, bool or None.
    """
    return Choice(values)


class Search:
    """The hyperparameters to search, and their values.

    The settings are those of the policy, and `learn_every`, an agent's env steps per update.

    Args:
        **parameters: For each setting's name, a parameter that `integer`, `uniform`,
            `log_uniform` or `choice` returned.

    Raises:
        ConfigError: A value is not such a parameter.

    Example:
        >>> search = Search(lr=log_uniform(1e-4, 1e-2), batch_size=integer(8, 64))
        >>> sorted(search.draw(np.random.default_rng(0)))
        ['batch_size', 'lr']
    """

    def __init__(self, **parameters: Parameter) -> None:
        given: Mapping[str, object] = parameters  # callers without a type checker pass anything
        for name, parameter in given.items():
            if not isinstance(parameter, Parameter):
                raise ConfigError(
                    f"`{name}` is {parameter!r}, which says nothing of what to search. Write "
                    f"`{name}=log_uniform(low, high)`, `integer(low, high)`, `uniform(low, high)` "
                    f"or `choice(...)`; what stays as it is belongs into the config."
                )
        if LEARN_EVERY in parameters:
            bounds = (cast(int, value) for value in parameters[LEARN_EVERY].examples())
            check_all(*(whole(1, learn_every=value) for value in bounds))
        self.parameters: Mapping[str, Parameter] = dict(parameters)

    def __repr__(self) -> str:
        return f"Search({', '.join(f'{name}={what!r}' for name, what in self.parameters.items())})"

    def without(self, names: Container[str]) -> Search:
        """Return a search without these settings."""
        return Search(**{name: what for name, what in self.parameters.items() if name not in names})

    def draw(self, rng: np.random.Generator) -> dict[str, Value]:
        """Draw initial values for an agent."""
        return {name: parameter.draw(rng) for name, parameter in self.parameters.items()}

    def mutate(
        self, values: Mapping[str, Value], rng: np.random.Generator
    ) -> tuple[str, Value] | None:
        """Draw a hyperparameter and another value for it; None if there is none to search."""
        if not self.parameters:
            return None
        name = list(self.parameters)[int(rng.integers(len(self.parameters)))]
        return name, self.parameters[name].mutate(values[name], rng)

    def check(self, config: object) -> None:
        """Raise if a parameter does not fit a policy with this config.

        Raises:
            ConfigError: A name is no setting, or cannot be searched, or a bound is out of the
                setting's range.
        """
        known = [field.name for field in dataclasses.fields(as_dataclass(config))]
        fixed = _fixed_names(type(config))
        faults = []
        for name, parameter in self.parameters.items():
            if name == LEARN_EVERY:
                continue
            if name in fixed and name in known:
                faults.append(f"`{name}` cannot be searched: {_FIXED[name]}")
            elif name not in known:
                searchable = [*(key for key in known if key not in fixed), LEARN_EVERY]
                faults.append(
                    f'Unknown key "{name}".{did_you_mean(name, searchable)} What can be searched '
                    f"of {kind_of(config)} is: {', '.join(searchable)}"
                )
            elif name == "gamma" and getattr(config, "n_step", 1) != 1:
                faults.append(
                    "`gamma` can be searched with `n_step=1` only: rewards of several steps are "
                    "summed with the gamma of the agent that collects, and all learn from them"
                )
            elif name == "alpha" and self._is_learned(config):
                faults.append(
                    "`alpha` can be searched with `learn_alpha=False` only: it is the first value "
                    "of what is learned otherwise, so a mutation would change nothing"
                )
            else:
                faults += _misfits(config, name, parameter)
        check_all(faults)
        self._check_values(config)

    def _check_values(self, config: Any) -> None:  # noqa: ANN401 - any dataclass
        """Raise if settings refuse a value, or two values that an agent may have together."""
        values = {name: [*what.examples()] for name, what in self.parameters.items()}
        values.pop(LEARN_EVERY, None)
        first = {name: of_one[0] for name, of_one in values.items()}
        for names in combinations(values, min(2, len(values))):
            for chosen in product(*(values[name] for name in names)):
                drawn = {**first, **dict(zip(names, chosen, strict=True))}
                with_values(config, drawn)

    def _is_learned(self, config: Any) -> bool:  # noqa: ANN401 - any dataclass
        return "learn_alpha" not in self.parameters and getattr(config, "learn_alpha", False)


def check_search(search: object) -> list[str]:
    """Return a fault unless it is a Search."""
    if isinstance(search, Search):
        return []
    return [f"`search` is {kind_of(search)}; a Search was expected, such as Search(lr=...)"]


def as_dataclass(config: object) -> Any:  # noqa: ANN401 - a dataclass of any kind
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise ConfigError(
            f"The settings of the policy are {kind_of(config)}; evolution needs a "
            f"dataclass, such as a DQNConfig, to change some of them."
        )
    return config


def with_values(config: Any, values: Mapping[str, Value]) -> Any:  # noqa: ANN401 - any dataclass
    """Return settings with other values; raise ConfigError if the settings refuse them."""
    try:
        return dataclasses.replace(config, **values)
    except ValueError as error:
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ConfigError(
            f"The search may come to {shown}, which is refused: {str(error).rstrip('.')}. Choose "
            f"bounds and values that all go together."
        ) from error


def accepts(config: Any, values: Mapping[str, Value]) -> bool:  # noqa: ANN401 - any dataclass
    try:
        with_values(config, values)
    except ConfigError:
        return False
    return True


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever is given
    """Convert a NumPy scalar: a saved search could not be read from its `repr`."""
    return value.item() if isinstance(value, np.generic) else value


def _not_numbers(**named: float) -> list[str]:
    return [
        f"`{name}` is {value!r}; a finite number was expected"
        for name, value in named.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ]


def _fixed_names(config: type) -> set[str]:
    """Return the settings that cannot be searched; others of a user may have the same names."""
    ours = [kind for kind in config.__mro__ if kind.__module__.startswith("ding_lite.")]
    own = {name for kind in ours for name in getattr(kind, "__dataclass_fields__", ())}
    return {"seed", "n_step"} | (_FIXED.keys() & own)


def _misfits(config: Any, name: str, parameter: Parameter) -> list[str]:  # noqa: ANN401 - any dataclass
    current = getattr(config, name)
    usual = default_values(type(config)).get(name, current)  # a float may be written as an int
    for value in parameter.examples():
        if type(usual) is int and type(value) is float:
            return [
                f"`{name}` is a whole number; search it with `integer(low, high)`, on the command "
                f"line with two whole numbers: {name}=8:64"
            ]
        if type(current) is bool and type(value) is not bool:
            return [
                f"`{name}` is True or False; search it with `choice(True, False)`, on the command "
                f"line '{name}=true|false'"
            ]
        if current is not None and isinstance(current, str) != isinstance(value, str):
            return [f"`{name}` is {current!r} by default, and {value!r} is of another kind"]
    return []
