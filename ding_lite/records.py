"""The registry of dataclasses that messages may contain, by name.

A message contains the name of a record, never that of a module to import. So a node builds only
objects of classes that its own program has registered.
"""

from __future__ import annotations

import dataclasses
import inspect
import reprlib
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ding_lite.errors import CodecError, ConfigError, did_you_mean, kind_of
from ding_lite.interruption import is_for_program, words_of

ClassT = TypeVar("ClassT", bound=type)


class RecordError(CodecError):
    """A well-formed record cannot be built on this node."""


class Records:
    """Registered classes by name."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._descriptions: dict[type, tuple[str, list[str]]] = {}

    def __contains__(self, cls: type) -> bool:
        return cls in self._descriptions

    def add(self, cls: type, name: str) -> None:
        if not dataclasses.is_dataclass(cls):
            raise ConfigError(
                f"`{cls.__qualname__}` is no dataclass, so what to send of it is unknown. "
                f"Put @dataclass below @register."
            )
        fields = [field.name for field in dataclasses.fields(cls)]
        if sorted(inspect.signature(cls).parameters) != sorted(fields):
            raise ConfigError(
                f"`{cls.__qualname__}` cannot be built from its fields {fields} alone: it takes "
                f"{list(inspect.signature(cls).parameters)}. Send a plainer dataclass."
            )
        other = self._classes.get(name)
        if other is not None and _home(other) != _home(cls):
            raise ConfigError(
                f"Two classes would be sent as {name!r}: {_home(other)} and {_home(cls)}. "
                f"Give one of them a name of its own: @register(name=...)."
            )
        self._classes[name] = cls
        self._descriptions[cls] = name, fields

    def description(self, cls: type) -> tuple[str, list[str]]:
        """Return the name under which a class is sent, and the names of its fields."""
        return self._descriptions[cls]

    def build(self, name: object, fields: dict[str, Any]) -> object:
        """Build an object of the class of this name from the values of its fields.

        Raises:
            RecordError: The class is not registered here, or refuses these fields.
            CodecError: The name is no str.
        """
        if type(name) is not str:
            raise CodecError(f"A record has {kind_of(name)} for a name.")
        cls = self._classes.get(name)
        if cls is None:
            raise RecordError(
                f"No class is registered as {name[:80]!r} on this node."
                f"{did_you_mean(name[:80], self._classes)} Registered are "
                f"{sorted(self._classes)}: import the module that decorates it with @register."
            )
        try:
            return cls(**fields)
        except BaseException as error:
            if is_for_program(error):
                raise
            raise RecordError(
                f"`{name}` cannot be built from the fields {reprlib.repr(list(fields))}: "
                f"{words_of(error)}"
            ) from error


# One registry in each process, like the classes themselves.
RECORDS = Records()


@overload
def register(cls: ClassT, /) -> ClassT: ...


@overload
def register(*, name: str) -> Callable[[ClassT], ClassT]: ...


def register(
    cls: ClassT | None = None, /, *, name: str = ""
) -> ClassT | Callable[[ClassT], ClassT]:
    """Register a dataclass, so that its objects can be sent between nodes, field by field.

    Every node that sends or receives such objects must register the class under the same name.

    Args:
        cls: The dataclass; `encode` must accept the values of all its fields.
        name: The name under which its objects are sent, its `__qualname__` by default.

    Raises:
        ConfigError: The class is no dataclass, or the name is taken.

    Example:
        >>> @register
        ... @dataclasses.dataclass
        ... class Episode:
        ...     ret: float
        ...     length: int
    """

    def _register(cls: ClassT) -> ClassT:
        RECORDS.add(cls, name or cls.__qualname__)
        return cls

    return _register if cls is None else _register(cls)


def _home(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
