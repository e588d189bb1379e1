"""The checked arguments of a job, and the spec of each node that follows from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError, LabelError
from ding_lite.parallel.network.address import (
    LOOPBACK,
    Address,
    PrivateDirectory,
    check_listening,
    free_ports,
    job_name,
)
from ding_lite.parallel.network.security import load_key, user_key
from ding_lite.parallel.network.topology import (
    HUB,
    Growth,
    NodeSpec,
    Topology,
    edges,
    fan_out,
    listeners,
    neighbours,
)
from ding_lite.runtime.messaging.labels import check_own_labels, count_roles, node_labels
from ding_lite.settings.environment import Settings, kind_of_topology
from ding_lite.settings.rules import check_all, inside, one_of, positive, whole

logger = logging.getLogger(__name__)

PROTOCOLS = ("ipc", "tcp")
MOST_NODES = 100_000


class JobPlan:
    """The checked arguments of a job; None is read from `settings`, or has a default.

    Without `ports` free ones are chosen: `DING_LITE_PORTS` may be the port of one node alone.
    """

    def __init__(  # noqa: PLR0913 - all of a job; all by name, and few at a time
        self,
        *,
        num_nodes: int,
        topology: Topology | None = None,
        protocol: str | None = None,
        address: str | None = None,
        ports: int | Sequence[int] | None = None,
        labels: str | Iterable[str] | None = None,
        roles: Sequence[str | Iterable[str]] | None = None,
        key_file: str | None = None,
        startup_timeout: float | None = 60.0,
        elastic: bool = False,
        settings: Settings | None = None,
    ) -> None:
        check_all(whole(1, n_parallel_workers=num_nodes))
        if num_nodes > MOST_NODES:
            raise ConfigError(
                f"`n_parallel_workers` is {num_nodes:,}; a job has at most {MOST_NODES:,} nodes."
            )
        own = settings or Settings()
        topology = topology if topology is not None else own.topology or "mesh"
        self.num_nodes = num_nodes = int(num_nodes)
        self.settings = own
        self.protocol = protocol or own.protocol or "ipc"
        self.address = _without_brackets(address or own.address)
        self.key_file = key_file or own.key_file
        self.labels = check_own_labels(labels or ()) | check_own_labels(own.labels)
        """The labels of all nodes, those of the environment included."""
        self.startup_timeout = startup_timeout
        self.elastic = elastic
        check_all(
            one_of(PROTOCOLS, protocol=self.protocol),
            positive(startup_timeout=startup_timeout) if startup_timeout is not None else [],
        )
        self.kind = kind_of_topology(topology) if isinstance(topology, str) else ""
        """The name of the topology; "" for a list of edges."""
        self.edges = edges(topology, num_nodes)
        self.fan_out = fan_out(topology)
        """The most children of a hub in a tree; 0 for other topologies."""
        if elastic and self.kind not in ("star", "mesh"):
            raise ConfigError(
                f"`elastic` is True and the topology {topology!r}; further nodes join a star or a "
                f"mesh. Choose topology='star', or leave `elastic` (or DING_LITE_ELASTIC) out."
            )
        self.roles = self._checked_roles(roles)
        """The roles of each node, also with their counts."""
        if counts := [
            label for label in self.labels & frozenset().union(*self.roles) if "." in label
        ]:
            raise LabelError(
                f"{min(counts)!r} cannot be added to all nodes: it is the label of one of them, by "
                f"its role. Choose another name."
            )
        self.ports = self._checked_ports(ports, key_file)
        """The port of each node; empty if free ports are chosen."""

    def _checked_roles(
        self, roles: Sequence[str | Iterable[str]] | None
    ) -> Sequence[frozenset[str]]:
        own, source, advice = self.settings, "`roles`", ""
        if own.num_nodes is not None:  # as `n_parallel_workers` gives way
            advice = " Or set DING_LITE_ROLES in each shell: it replaces `roles`."
            if own.roles:
                roles = None
            elif own.labels and roles is not None and len(count_roles(roles)) != self.num_nodes:
                logger.info(
                    "`roles` has %d entries for %d nodes, and is replaced by DING_LITE_LABELS",
                    len(roles),
                    self.num_nodes,
                )
                roles = None
        if roles is None and own.roles and (self.num_nodes > 1 or len(own.roles) == 1):
            roles = [role.split("+") for role in own.roles]
            source, advice = "DING_LITE_ROLES", ""
        counted = count_roles([()] * self.num_nodes if roles is None else roles)
        if len(counted) != self.num_nodes:
            raise ConfigError(
                f"{source} has {len(counted)} entries for {self.num_nodes} nodes; give one a node, "
                f"such as roles=[{', '.join(['...'] * self.num_nodes)}], and `()` for no role."
                f"{advice}"
            )
        return counted

    def _checked_ports(
        self, given: int | Sequence[int] | None, key_file: str | None
    ) -> tuple[int, ...]:
        if self.protocol == "ipc":
            tcp_only = {"address": self.address, "ports": given, "key_file": key_file}
            for name, value in tcp_only.items():
                if value is not None:
                    raise ConfigError(
                        f"`{name}` is {value!r}, but the protocol is `ipc`, which has no "
                        f"addresses, ports or keys. Add `protocol='tcp'`, or leave it out."
                    )
            return ()
        check_listening(Address("tcp", self.address or LOOPBACK), key_file=self.key_file)
        if self.key_file is not None:
            load_key(self.key_file)  # report a wrong key once, not from each node
        if given is None:
            return ()
        ports = range(given, given + self.num_nodes) if isinstance(given, int) else given
        is_sequence = isinstance(ports, Sequence) and not isinstance(given, bool)
        if not is_sequence or len(ports) != self.num_nodes or len(set(ports)) != len(ports):
            raise ConfigError(
                f"`ports` is {given!r}; {self.num_nodes} nodes need as many different "
                f"ports, or one number from which to count on. Leave it out for free ports."
            )
        check_all(*(whole(1, ports=port) or inside(1, 65_535, ports=port) for port in ports))
        return tuple(ports)

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
            if self.key_file is None:
                user_key()  # report a key that cannot be made once, not from each node
            host = self.address or LOOPBACK
            ports = self.ports or free_ports(host, self.num_nodes)
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
        return [
            node_labels(node_id, distributed=distributed, roles=roles, extra=self.labels)
            for node_id, roles in enumerate(self.roles)
        ]


def _without_brackets(host: str | None) -> str | None:
    """Return an IPv6 address as it is without a port: `[::1]` is written where one follows."""
    is_bracketed = host is not None and host.startswith("[") and host.endswith("]")
    return host[1:-1] if host and is_bracketed else host
