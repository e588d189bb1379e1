"""Turn a dict or an EasyDict into a typed config, a dataclass of settings."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from easydict import EasyDict

from ding_lite.errors import ConfigError, kind_of
from ding_lite.settings.elsewhere import meant_setting
from ding_lite.settings.rules import check_all, is_a

ConfigT = TypeVar("ConfigT")


def default_values(config_type: type[Any]) -> dict[str, Any]:
    """Return the defaults of a dataclass by field name; fields without a default are left out."""
    missing = dataclasses.MISSING
    return {
        field.name: field.default if field.default_factory is missing else field.default_factory()
        for field in dataclasses.fields(config_type)
        if not (field.default is missing and field.default_factory is missing)
    }


def as_config(config_type: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Turn a dict or an EasyDict into a typed config.

    Args:
        config_type: A config dataclass, such as `DQNConfig`.
        values: Its fields by name; fields left out keep their defaults.

    Raises:
        ConfigError: A key is no field of the config, a field without a default is missing, a
            value has the wrong type, or the config's own checks fail.

    Example:
        >>> from ding_lite.settings import Settings
        >>> as_config(Settings, EasyDict(torch_threads=2)).torch_threads
        2
    """
    if not (isinstance(config_type, type) and dataclasses.is_dataclass(config_type)):
        raise ConfigError(f"`config_type` is {config_type!r:.60}; a dataclass itself was expected.")
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"A {config_type.__name__} is made from a dict or an EasyDict, not from "
            f"{kind_of(values)}: {values!r}."
        )

    hints = hints_of(config_type)
    fields = {field.name: field for field in dataclasses.fields(config_type) if field.init}
    faults = _unknown_keys(config_type, values, fields)
    converted = {}

    for key, field in fields.items():
        if key not in values:
            if field.default is dataclasses.MISSING is field.default_factory:
                faults.append(f"`{key}` is missing; {_format(hints[key])} was expected")
            continue
        is_one = hints[key] == tuple[int, ...] and is_a(numbers.Integral, values[key])
        converted[key] = _read((values[key],) if is_one else values[key], hints[key])
        if converted[key] is _MISFIT:
            faults.append(f"`{key}` is {values[key]!r}; {_format(hints[key])} was expected")

    check_all(faults)
    return config_type(**converted)


def suggests(config_type: type[ConfigT]) -> type[ConfigT]:
    """Make a config dataclass suggest the closest field for an unknown keyword.

    A class decorator, to be written above `@dataclass`.
    """
    make: Any = config_type.__init__
    known = [field.name for field in dataclasses.fields(config_type) if field.init]  # type: ignore[arg-type]

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **values: Any) -> None:
        check_all(_unknown_keys(config_type, values, known))
        make(self, *args, **values)

    config_type.__init__ = __init__  # type: ignore[method-assign]
    return config_type


def _unknown_keys(config_type: type[Any], keys: Iterable[Any], known: Collection[str]) -> list[str]:
    unknown = [str(key) for key in keys if key not in known]
    faults = [f'Unknown key "{key}".{meant_setting(key, known)}' for key in unknown]
    return faults and [*faults, f"The keys of {config_type.__name__} are: {', '.join(known)}"]


def hints_of(config_type: Any) -> dict[str, Any]:
    """Return the types of the fields, cached: finding them is slower than making a small policy."""
    return _cached_hints_of(config_type)


@functools.cache
def _cached_hints_of(config_type: Any) -> dict[str, Any]:  # apart: mypy hashes no `type[Settings]`
    return typing.get_type_hints(config_type)


_MISFIT = object()


def _read(value: Any, hint: Any) -> Any:
    """Convert a value to the type of a field; return `_MISFIT` if that is not possible.

    Conversions by EasyDict and YAML are undone: nested EasyDicts become dicts, lists become tuples,
    and 1 becomes 1.0. Types that configs do not use are not checked.
    """
    kind = typing.get_origin(hint) or hint
    options = typing.get_args(hint)

    if kind in (typing.Union, types.UnionType):
        exact_first = sorted(options, key=lambda option: option is not type(value))
        readings = (_read(value, option) for option in exact_first)
        return next((reading for reading in readings if reading is not _MISFIT), _MISFIT)
    if kind is typing.Literal:
        return value if value in options else _MISFIT
    if kind is tuple:
        return _read_tuple(value, hint)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        try:
            return as_config(kind, value)
        except ConfigError:
            return _MISFIT
    if kind in (int, float):
        wanted = numbers.Integral if kind is int else numbers.Real
        return kind(value) if is_a(wanted, value) else _MISFIT
    value = _plain(value)
    try:
        return value if isinstance(value, kind) else _MISFIT
    except TypeError:  # `Any`, a protocol, a type variable
        return value


def _read_tuple(value: Any, hint: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _MISFIT
    items = (Any, ...) if hint is tuple else typing.get_args(hint)
    if items[-1:] == (...,):
        items = items[:1] * len(value)
    if len(items) != len(value):
        return _MISFIT
    children = tuple(_read(child, item) for child, item in zip(value, items, strict=True))
    return _MISFIT if any(child is _MISFIT for child in children) else children


def _plain(value: Any) -> Any:
    """Turn EasyDicts into dicts recursively; EasyDict converts dicts inside lists as well."""
    if isinstance(value, EasyDict):
        return {key: _plain(child) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(child) for child in value)
    return value


def _format(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    options = typing.get_args(hint)
    if any(typing.get_origin(option) is typing.Literal for option in options):
        return " or ".join(_format(o) if o is not types.NoneType else "None" for o in options)
    if hint == tuple[int, ...]:
        return "`tuple[int, ...]`, such as `64,` or `64,64`,"
    for item in (next(iter(typing.get_args(option)), None) for option in (hint, *options)):
        if isinstance(item, type) and dataclasses.is_dataclass(item):
            usual = default_values(item)
            table = ", ".join(f"{n} = 1" for n in hints_of(item) if n not in usual)
            return f"a list of `{item.__name__}`, such as `[{{{table}}}]` in a TOML file,"
    if hint is bool:
        return "`bool` (true or false)"
    return f"`{hint.__name__ if isinstance(hint, type) else hint}`"
