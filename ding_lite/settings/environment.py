"""Read the environment variables of this process; no other module reads them."""

from __future__ import annotations

import os
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite.errors import ConfigError, did_you_mean
from ding_lite.settings.config import hints_of
from ding_lite.settings.rules import check_all, inside, one_of, whole

PREFIX = "DING_LITE_"
TOPOLOGIES = ("star", "mesh", "tree", "alone")
MOST_OF_A_ROLE = 999


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
    """The roles of the nodes in order: `learner,collector*3`; `+` gives one node several roles."""
    topology: str | tuple[tuple[int, int], ...] | None = None
    """The connections: `star`, `mesh`, `tree`, `tree:3` (of 3 children), `alone`, or `0-1,1-2`."""
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
        hints = hints_of(cls)
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

        if "topology" in values:
            values["topology"] = topology_of(values["topology"], what=f"{PREFIX}TOPOLOGY is")
        counted = [(entry, repeated(entry)) for entry in values.get("roles", ())]
        for entry, nodes in counted:
            if not nodes:
                raise ConfigError(
                    f"DING_LITE_ROLES has the entry {entry!r}; behind `*` a count from 1 to "
                    f"{MOST_OF_A_ROLE} was expected, such as collector*3."
                )
        return cls(**values | {"roles": tuple(role for _, nodes in counted for role in nodes)})


def repeated(entry: str) -> list[str]:
    """Return an entry of roles once for each of its nodes; an empty list if its count is wrong.

    Example:
        >>> repeated("learner+evaluator"), repeated("collector*2"), repeated("collector*x")
        (['learner+evaluator'], ['collector', 'collector'], [])
    """
    role, times, count = (part.strip() for part in entry.partition("*"))
    is_count = re.fullmatch("[0-9]{1,3}", count) if times else True
    return [role] * int(count or 1) if is_count else []


def kind_of_topology(name: str) -> str:
    """Return the name of a topology without a tree's number of children.

    Example:
        >>> kind_of_topology("tree:4"), kind_of_topology("star")
        ('tree', 'star')
    """
    return "tree" if re.fullmatch(r"tree:[1-9][0-9]{0,5}", name) else name


def topology_of(text: str, *, what: str = "found") -> str | tuple[tuple[int, int], ...]:
    """Parse the name of a topology, or the pairs of connected nodes.

    Example:
        >>> topology_of("star"), topology_of("tree:3"), topology_of("0-1, 1-2")
        ('star', 'tree:3', ((0, 1), (1, 2)))
    """
    if kind_of_topology(text) in TOPOLOGIES:
        return text
    pairs = []
    for entry in text.split(","):
        pair = re.fullmatch(r"\s*([0-9]{1,6})\s*-\s*([0-9]{1,6})\s*", entry)
        if pair is None or int(pair[1]) == int(pair[2]):
            hint = did_you_mean(text, TOPOLOGIES) or f" {entry[:60]!r} is no such pair."
            raise ConfigError(
                f"{what} {text[:60]!r}; expected is one of: {', '.join(TOPOLOGIES)}, a tree with a "
                f"number of children: tree:3, or the pairs of connected nodes: 0-1,1-2.{hint}"
            )
        pairs.append((int(pair[1]), int(pair[2])))
    return tuple(pairs)


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
    if os.path.isabs(chosen):
        return Path(chosen)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise ConfigError(
            f"User {os.getuid()} has no home directory: HOME is not set, and /etc/passwd has no "
            f"such user. Set HOME or XDG_STATE_HOME to a directory of yours."
        ) from error


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
