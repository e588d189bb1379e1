"""What a launcher tells: which node this process is, of how many, and where the others are.

A launcher such as torchrun or srun starts one process for each node of a job and says so in
environment variables of its own. The modules beside this one each read those of one launcher, by
a function `detect(environ)` that returns a `Placement`, or None where that launcher had no part in
it. They look at nothing but the mapping that they are given.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b

from ding_lite.errors import ConfigError

FIRST_PORT = 20_000
"""The derived ports begin here, and end below those that Linux gives to outgoing connections."""
_PORTS_OF_A_JOB = 8
_NUM_BLOCKS = 1_500


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The place of this process in a job, as the launcher that has started it tells it."""

    launcher: str
    """Its name, as it is typed."""
    node_id: int
    """Which node this process is: its rank."""
    num_nodes: int
    """How many there are: the size of the world."""
    job: str
    """What all nodes of the job agree on, and those of another job most likely do not."""
    on_one_machine: bool
    """Whether all nodes run on this machine."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """The names of the machines by node, as far as they are told."""
    how_to_tell: str = ""
    """What a user must do so that the launcher tells where node 0 is."""
    local_rank: int | None = None
    """Which of the processes on this machine it is, from 0; None where that is not told."""
    machine: int | None = None
    """Which of the machines this is, from 0; None where that is not told."""
    num_restarts: int = 0
    """How often the launcher has started the job again, as far as it tells."""

    def __post_init__(self) -> None:
        if not 0 <= self.node_id < self.num_nodes:
            raise ConfigError(
                f"The environment says that {self.launcher} has started this process as node "
                f"{self.node_id} of {self.num_nodes}; the nodes are numbered from 0 on, so the "
                f"last one is {self.num_nodes - 1}. Was a variable of {self.launcher} changed by "
                f"hand?"
            )

    @property
    def rendezvous(self) -> str | None:
        """Where all nodes can find node 0, as `host:port`; None where its machine is not told."""
        host = "127.0.0.1" if self.on_one_machine else self.hosts.get(0)
        return None if host is None else f"{host}:{self.port}"

    @property
    def port(self) -> int:
        """The port of node 0, from which the others count on: derived from the job.

        Jobs that run at once on one machine have different ones, but for an accident.
        """
        digest = blake2b(f"{self.launcher} {self.job}".encode(), digest_size=8).digest()
        block = int.from_bytes(digest, "little") % _NUM_BLOCKS
        return FIRST_PORT + _PORTS_OF_A_JOB * block


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a whole number; None where it is not set.

    Raises:
        ConfigError: It is none.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(
            f"{name} is {text!r}; a whole number was expected there, from the launcher that sets "
            f"it. Unset it if no launcher has started this process."
        )
    return int(text)


def master(environ: Mapping[str, str]) -> dict[int, str]:
    """Return the machine of node 0 as `MASTER_ADDR` names it; nothing where it is not set."""
    name = environ.get("MASTER_ADDR", "").strip()
    return {0: name} if name else {}


def names_this_machine(host: str | None) -> bool:
    """Tell whether a host is written as the loopback interface; looks nothing up."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return False
