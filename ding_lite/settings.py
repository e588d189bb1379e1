"""Settings: read from the environment or a dict, converted and checked.

`Settings` reads the environment variables; no other module reads them. `as_config` turns a dict or
an EasyDict into a typed config. A field of a config is made with the rules of its values,
`lr: float = setting(1e-3, STEP_SIZE)`; rules are the checks `positive`, `at_least`, `inside`,
`whole`, `one_of` and others. `check_settings` runs them and reports all faults in one message.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from easydict import EasyDict

from ding_lite.errors import ConfigError, did_you_mean, kind_of

__all__ = ["Settings", "as_config"]
PREFIX = "DING_LITE_"
MOST = 2**63 - 1
"""The maximum of an integer setting: checkpoints and messages hold signed 64-bit integers."""
ConfigT = TypeVar("ConfigT")
Rule: TypeAlias = Callable[..., list[str]]
"""Takes values by name, and returns a fault for each that is wrong."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of this process from environment variables; explicit arguments override them.

    Each field is read from `DING_LITE_<FIELD>`; an empty variable counts as unset.
    """

    node_id: int | None = None
    """This process's node number, from 0, when nodes are launched by hand."""
    num_nodes: int | None = None
    """Number of nodes of the job. If it is set, the runner starts no nodes: this is one of them."""
    labels: tuple[str, ...] = ()
    """Further labels of this node, separated by commas."""
    roles: tuple[str, ...] = ()
    """The roles of the nodes, one entry per node, separated by commas; `+` joins several roles."""
    topology: str | None = None
    """The connections between nodes: `star`, `mesh`, `tree` or `alone`."""
    protocol: str | None = None
    """The transport between nodes: `ipc` on one machine, `tcp` between machines."""
    address: str | None = None
    """The interface this node listens on; loopback unless set."""
    ports: tuple[int, ...] = ()
    """The ports to listen on, separated by commas; by default free or derived ports are used."""
    attach_to: tuple[str, ...] = ()
    """The address of node 0, or the addresses of all peers: `tcp://127.0.0.1:50515`."""
    elastic: bool = False
    """Whether further nodes may join and leave the job while it runs: 1 or 0."""
    key_file: str | None = None
    """The file with the key by which nodes of different machines authenticate each other."""
    engine: str | None = None
    """The engine that starts the nodes. `local` is this process, also under torchrun or srun."""
    linger: int = 30
    """Seconds for which a node that leaves waits to deliver its events to a lost peer."""
    peer_timeout: int = 600
    """Seconds without peers after which a node without a runner ends; 0 disables it."""
    torch_threads: int = 1
    """PyTorch threads in tasks and nodes. 1 suits small networks; 0 keeps PyTorch's default."""

    def __post_init__(self) -> None:
        check_all(
            whole(0, DING_LITE_TORCH_THREADS=self.torch_threads),
            whole(1, DING_LITE_LINGER=self.linger),
            whole(0, DING_LITE_PEER_TIMEOUT=self.peer_timeout),
            whole(0, **_given(DING_LITE_NODE_ID=self.node_id)),
            whole(1, **_given(DING_LITE_NUM_NODES=self.num_nodes)),
            one_of(
                ("star", "mesh", "tree", "alone"),
                **_given(DING_LITE_TOPOLOGY=self.topology and kind_of_topology(self.topology)),
            ),
            one_of(("ipc", "tcp"), **_given(DING_LITE_PROTOCOL=self.protocol)),
            one_of(("local", "ray"), **_given(DING_LITE_ENGINE=self.engine)),
            *(inside(1, 65_535, DING_LITE_PORTS=port) for port in self.ports),
        )
        node_id, num_nodes = self.node_id, self.num_nodes
        if node_id is not None and num_nodes is not None and node_id >= num_nodes:
            raise ConfigError(
                f"`DING_LITE_NODE_ID` is {node_id} and `DING_LITE_NUM_NODES` {num_nodes}; the "
                f"nodes are numbered from 0 on, so the last one is {num_nodes - 1}."
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from environment variables.

        Args:
            environ: The variables; those of this process by default.

        Raises:
            ConfigError: A variable cannot be parsed, or begins with `DING_LITE_` and is not
                known.
        """
        environ = os.environ if environ is None else environ
        hints = _hints_of(cls)
        known = {PREFIX + field.upper(): field for field in hints}
        values: dict[str, Any] = {}

        for variable in sorted(name for name in environ if name.startswith(PREFIX)):
            if variable not in known:
                # All names have the prefix: with it, any two would be close.
                meant = did_you_mean(variable.removeprefix(PREFIX), map(str.upper, hints))
                meant = meant.replace('"', f'"{PREFIX}', 1)
                raise ConfigError(
                    f"Unknown environment variable {variable}.{meant} "
                    f"Known are: {', '.join(known)}."
                )
            if text := environ[variable].strip():
                values[known[variable]] = _parse(variable, text, hints[known[variable]])

        return cls(**values)


def kind_of_topology(name: str) -> str:
    """Return the name of a topology without a tree's number of children.

    Example:
        >>> kind_of_topology("tree:4"), kind_of_topology("star")
        ('tree', 'star')
    """
    return "tree" if re.fullmatch(r"tree:[1-9][0-9]{0,5}", name) else name


def variables_set(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the texts of the variables that begin with `DING_LITE_` and are not empty."""
    environ = os.environ if environ is None else environ
    ours = {name: environ[name].strip() for name in environ if name.startswith(PREFIX)}
    return {name: text for name, text in sorted(ours.items()) if text}


def process_environ() -> Mapping[str, str]:
    """Return a read-only copy of the environment variables of this process.

    Used to detect the launcher of this process: see `ding_lite.parallel.launch.environment`.
    """
    return types.MappingProxyType(dict(os.environ))


def suggest_environ(name: str, value: str) -> None:
    """Set an environment variable of this process, unless it is set.

    For libraries that can only be configured in this way.
    """
    os.environ.setdefault(name, value)


def state_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of persistent state: `$XDG_STATE_HOME`, by default `~/.local/state`."""
    environ = os.environ if environ is None else environ
    chosen = environ.get("XDG_STATE_HOME", "")
    return Path(chosen) if os.path.isabs(chosen) else Path.home() / ".local" / "state"


def limit_torch_threads() -> None:
    """Limit PyTorch, if it is imported, to DING_LITE_TORCH_THREADS threads, by default one.

    Distributing a small matrix product over threads takes longer than computing it on one, and
    other processes need the cores. Tasks call this when they run, nodes before their `main`;
    constructors do not.
    """
    torch, wanted = sys.modules.get("torch"), Settings.from_environ().torch_threads
    if torch is not None and wanted and torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


def _given(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _parse(variable: str, text: str, hint: Any) -> Any:
    """Turn a variable's text into an int, a bool, a str, or a tuple of them."""
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        parts = [part.strip() for part in text.split(",")]
        return tuple(_parse(variable, part, item) for part in parts if part)

    if hint is bool:
        if text not in ("0", "1"):
            raise ConfigError(f"{variable} is {text!r}; {variable}=1 or {variable}=0 was expected.")
        return text == "1"
    if int in (hint, *typing.get_args(hint)):
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(
                f"{variable} is {text!r}; a whole number was expected, such as {variable}=1."
            ) from error
    return text


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

    hints = _hints_of(config_type)
    fields = {field.name: field for field in dataclasses.fields(config_type) if field.init}
    faults = _unknown_keys(config_type, values, fields)
    converted = {}

    for key, field in fields.items():
        if key not in values:
            if field.default is dataclasses.MISSING is field.default_factory:
                faults.append(f"`{key}` is missing; {_format(hints[key])} was expected")
            continue
        is_one = hints[key] == tuple[int, ...] and _is_a(numbers.Integral, values[key])
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


def _unknown_keys(config_type: type[Any], values: Iterable[Any], known: Iterable[str]) -> list[str]:
    unknown = [str(key) for key in values if key not in known]
    faults = [f'Unknown key "{key}".{did_you_mean(key, known)}' for key in unknown]
    return faults and [*faults, f"The keys of {config_type.__name__} are: {', '.join(known)}"]


def _hints_of(config_type: Any) -> dict[str, Any]:
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
        return kind(value) if _is_a(wanted, value) else _MISFIT
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
    if hint is bool:
        return "`bool` (true or false)"
    return f"`{hint.__name__ if isinstance(hint, type) else hint}`"


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
    return _faults(named, math.isfinite, "be finite")


def not_nan(**named: float) -> list[str]:
    return _faults(named, lambda value: not math.isnan(value), "not be NaN")


def whole(low: int, **named: Any) -> list[str]:
    """Return a fault for each value that is no integer from `low` to `MOST`; bools are faults."""
    return [
        f"`{name}` is {value!r}; it must be a whole number from {low} on"
        + (f", and at most {MOST}" if _is_a(numbers.Integral, value) and value > MOST else "")
        for name, value in named.items()
        if not _is_a(numbers.Integral, value) or not low <= value <= MOST
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
        f"`{name}` is {value!r}; it must {what_it_must if is_number else 'be a number'}"
        for name, value in named.items()
        if not ((is_number := _is_a(numbers.Real, value)) and is_right(value))
    ]


def _is_a(kind: type[Any], value: Any) -> bool:
    """Return whether a value is a number of this kind, also of NumPy; bools are not numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)
