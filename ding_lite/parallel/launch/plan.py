"""The checked arguments of a job, and the spec of each node that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, cast

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError
from ding_lite.parallel.network.address import (
    LOOPBACK,
    Address,
    PrivateDirectory,
    check_listening,
    free_ports,
    job_name,
)
from ding_lite.parallel.network.security import load_key
from ding_lite.parallel.network.topology import (
    HUB,
    Edge,
    Growth,
    NodeSpec,
    Topology,
    edges,
    fan_out,
    listeners,
    neighbours,
)
from ding_lite.runtime.messaging.labels import check_labels, count_roles, node_labels
from ding_lite.settings import Settings, check_all, inside, kind_of_topology, one_of, positive

PROTOCOLS = ("ipc", "tcp")
MOST_NODES = 100_000


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """The checked arguments of a job; None is read from `settings`, or has a default."""

    num_nodes: int
    topology: Topology | None = None
    protocol: str | None = None
    address: str | None = None
    ports: int | Sequence[int] | None = None
    labels: str | Iterable[str] | None = None
    roles: Sequence[str | Iterable[str]] | None = None
    key_file: str | None = None
    startup_timeout: float | None = 60.0
    elastic: bool = False
    settings: Settings = field(default_factory=Settings)
    kind: str = field(init=False, default="")
    """The name of the topology; "" for a list of edges."""
    fan_out: int = field(init=False, default=0)
    """The most children of a hub in a tree; 0 for other topologies."""

    def __post_init__(self) -> None:
        num_nodes = self.num_nodes
        if not isinstance(num_nodes, int) or isinstance(num_nodes, bool) or num_nodes < 1:
            raise ConfigError(
                f"`n_parallel_workers` is {num_nodes!r}; it must be a whole number from 1 on."
            )
        if num_nodes > MOST_NODES:
            raise ConfigError(
                f"`n_parallel_workers` is {num_nodes:,}; a job has at most {MOST_NODES:,} nodes."
            )
        timeout, own = self.startup_timeout, self.settings
        self._fill_in(
            topology=self.topology if self.topology is not None else own.topology or "mesh",
            protocol=self.protocol or own.protocol or "ipc",
            address=self.address or own.address,
            ports=self.ports if self.ports is not None else _ports_of(own),
            key_file=self.key_file or own.key_file,
            labels=check_labels(self.labels or ()),
        )
        check_all(
            one_of(PROTOCOLS, protocol=self.protocol),
            positive(startup_timeout=timeout) if timeout is not None else [],
        )
        topology = self.topology or ()
        self._fill_in(kind=kind_of_topology(topology) if isinstance(topology, str) else "")
        self._fill_in(topology=edges(topology, num_nodes), fan_out=fan_out(topology))
        if self.elastic and self.kind not in ("star", "mesh"):
            raise ConfigError(
                f"`elastic` is True and the topology {topology!r}; further nodes join a star or a "
                f"mesh. Choose topology='star', or leave `elastic` (or DING_LITE_ELASTIC) out."
            )
        self._check_roles()
        self._check_places()

    def _fill_in(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_roles(self) -> None:
        roles, source = self.roles, "`roles`"
        if roles is None and self.settings.roles and self.num_nodes > 1:
            roles = [role.split("+") for role in self.settings.roles]
            source = "DING_LITE_ROLES"
        has_length = isinstance(roles, Sized) and not isinstance(roles, str)
        if roles is not None and has_length and len(roles) != self.num_nodes:
            raise ConfigError(
                f"{source} has {len(roles)} entries for {self.num_nodes} nodes; give one a "
                f"node, such as roles=[{', '.join(['...'] * self.num_nodes)}]."
            )
        roles = [()] * self.num_nodes if roles is None else roles
        self._fill_in(roles=count_roles(roles, num_nodes=self.num_nodes))

    def _check_places(self) -> None:
        if self.protocol == "ipc":
            given = [name for name in ("address", "ports") if getattr(self, name) is not None]
            if given:
                raise ConfigError(
                    f"`{given[0]}` is {getattr(self, given[0])!r}, but the protocol is `ipc`, "
                    f"which has neither addresses nor ports. Add `protocol='tcp'`, or leave it out."
                )
            return
        check_listening(Address("tcp", self.address or LOOPBACK), key_file=self.key_file)
        if self.key_file is not None:
            load_key(self.key_file)  # report a wrong key once, not from each node
        if self.ports is None:
            return
        ports = self.ports
        if isinstance(ports, int):
            ports = [ports + node_id for node_id in range(self.num_nodes)]
        if (
            not isinstance(ports, Sequence)
            or len(ports) != self.num_nodes
            or len(set(ports)) != len(ports)
        ):
            raise ConfigError(
                f"`ports` is {self.ports!r}; {self.num_nodes} nodes need as many different "
                f"ports, or one number from which to count on."
            )
        check_all(*(inside(1, 65_535, ports=port) for port in ports))
        self._fill_in(ports=tuple(ports))

    @property
    def edges(self) -> frozenset[Edge]:
        return cast(frozenset[Edge], self.topology)

    @property
    def chosen_ports(self) -> tuple[int, ...]:
        """The port of each node; empty if free ports are chosen."""
        return tuple(self.ports) if isinstance(self.ports, Sequence) else ()

    def growth(self, *, first_id: int) -> Growth | None:
        if not self.elastic:
            return None
        return Growth(self.kind, self.num_nodes if self.kind == "mesh" else first_id)

    def spec(
        self, node_id: int, labels: frozenset[str], at: Callable[[int], str], **place: Any
    ) -> NodeSpec:
        """Return the spec of a node, given its labels and the addresses of the nodes it dials."""
        near = neighbours(self.edges, node_id)
        return NodeSpec(
            node_id=node_id,
            num_nodes=self.num_nodes,
            labels=labels,
            dials={peer: at(peer) for peer in sorted(near) if peer < node_id},
            peers=near,
            key_file=self.key_file,
            startup_timeout=self.startup_timeout,
            linger=self.settings.linger,
            edges=self.edges,
            fan_out=self.fan_out,
            **place,
        )

    def specs(self, directory: PrivateDirectory) -> tuple[NodeSpec, ...]:
        if self.protocol == "ipc":
            where = [str(directory.socket_of(node_id)) for node_id in range(self.num_nodes)]
        else:
            host = self.address or LOOPBACK
            ports = self.chosen_ports or free_ports(host, self.num_nodes)
            where = [str(Address("tcp", host, port)) for port in ports]
        return self.specs_at(where, job=job_name(directory.path), directory=str(directory.path))

    def specs_at(
        self, where: Sequence[str], *, job: str, directory: str | None = None
    ) -> tuple[NodeSpec, ...]:
        """Return the spec of each node, given the address at which each can listen."""
        growth = self.growth(first_id=self.num_nodes)
        listening = listeners(self.edges)
        if growth is not None:
            listening |= {*range(self.num_nodes)} if growth.topology == "mesh" else {HUB}
        world = tuple(self.labels_of_nodes())
        began = SYSTEM_CLOCK.now()
        return tuple(
            self.spec(
                node_id,
                labels,
                where.__getitem__,
                listen=where[node_id] if node_id in listening else None,
                world=world,
                growth=growth,
                job=job,
                directory=directory,
                began=began,
            )
            for node_id, labels in enumerate(world)
        )

    def labels_of_nodes(self, *, distributed: bool = True) -> list[frozenset[str]]:
        extra = check_labels(self.labels or ()) | check_labels(self.settings.labels)
        return [
            node_labels(node_id, distributed=distributed, roles=roles, extra=extra)
            for node_id, roles in enumerate(self.roles or ())
        ]


def _ports_of(settings: Settings) -> int | Sequence[int] | None:
    """Return the ports in the form of the argument: a single port is the first of a range."""
    return settings.ports[0] if len(settings.ports) == 1 else settings.ports or None
