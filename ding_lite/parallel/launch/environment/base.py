"""The place of this process in a job, as an external launcher describes it.

A launcher such as torchrun or srun starts one process for each node of a job and describes it in
environment variables. Each module beside this one has a function `detect(environ)`, which reads the
variables of one launcher. It returns a `Placement`, or None if that launcher has not started this
process. It reads only the given mapping.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from ding_lite.errors import ConfigError

FIRST_PORT = 20_000
"""The lowest derived port; the highest is below the ephemeral range of Linux."""
_PORTS_OF_A_JOB = 8
_NUM_BLOCKS = 1_500


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The place of this process in a job, read from the launcher's environment variables."""

    launcher: str
    node_id: int
    num_nodes: int
    job: str
    """An identifier that all nodes of the job share, most likely different from other jobs."""
    on_one_machine: bool
    host: str = ""
    """The host of node 0, if it is known."""
    how_to_tell: str = ""
    """Advice for a user if it is unknown."""

    def __post_init__(self) -> None:
        if not 0 <= self.node_id < self.num_nodes:
            raise ConfigError(
                f"The environment says that {self.launcher} has started this process as node "
                f"{self.node_id} of {self.num_nodes}; the nodes are numbered from 0 on, so the "
                f"last one is {self.num_nodes - 1}. Was a variable of {self.launcher} "
                f"changed?"
            )

    @property
    def port(self) -> int:
        """The port of node 0, a hash of the job; node k has the k-th port after it."""
        digest = blake2b(f"{self.launcher} {self.job}".encode(), digest_size=8).digest()
        block = int.from_bytes(digest, "little") % _NUM_BLOCKS
        return FIRST_PORT + _PORTS_OF_A_JOB * block


def number(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a whole number; None if it is not set."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(
            f"{name} is {text!r}; a whole number was expected there, from the launcher that sets "
            f"it. Unset it if no launcher has started this process."
        )
    return int(text)


def master(environ: Mapping[str, str]) -> str:
    """Return the host of node 0 from `MASTER_ADDR`; "" if it is not set."""
    host = environ.get("MASTER_ADDR", "").strip()
    if "/" in host or (":" in host and _ip(host) is None):
        raise ConfigError(
            f"MASTER_ADDR is {host!r}; a host name or an IP address was expected, without a port "
            f"or brackets, such as 10.0.0.7 or fd00::7."
        )
    return host


def names_this_machine(host: str) -> bool:
    """Tell whether a host is a literal name of the loopback interface; no DNS lookup."""
    found = _ip(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
