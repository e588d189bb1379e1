"""The place of this process in a job that it has not started, as the spec of its node.

There are three forms. With `DING_LITE_NUM_NODES` set, each shell starts the same file as one node
of the job, and the environment says which one. A launcher such as torchrun or srun starts the file
once for each node, and says which one in its own variables. With `attach_to`, a program takes a
free place in a running job. The node knows the addresses of its peers, or that of node 0, from
which it fetches the others (`rendezvous`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment import Placement, names_this_machine
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import ANY_HOST, LOOPBACK, Address, is_ipv6, is_loopback
from ding_lite.parallel.network.topology import HUB, Growth, NodeSpec, listeners, neighbours
from ding_lite.runtime.messaging.labels import node_labels
from ding_lite.settings.environment import Settings
from ding_lite.settings.rules import check_all, whole

ALL_INTERFACES = ("0.0.0.0", "::")
"""Wildcard hosts: every interface of a machine, in IPv4 and IPv6."""


def node_of_environment(plan: JobPlan, attach_to: Sequence[str]) -> NodeSpec:
    """Return the spec of this node; `attach_to` has the address of node 0, or of all lower ids."""
    num_nodes, node_id = plan.num_nodes, plan.settings.node_id
    if node_id is None:
        raise ConfigError(
            f"DING_LITE_NUM_NODES is {num_nodes}, so this process is one node of several, and "
            f"DING_LITE_NODE_ID does not say which. Set it to a number from 0 to {num_nodes - 1}, "
            f"another one in each shell."
        )
    lower = sorted(peer for peer in neighbours(plan.edges, node_id) if peer < node_id)
    rendezvous, where = _addresses_to_dial(node_id, lower, tcp_addresses(attach_to))
    listen, grows = None, plan.growth(first_id=1)
    if _is_dialled(plan, node_id, grows):
        port = _port(plan.settings.ports, node_id, num_nodes, may_be_free=rendezvous is not None)
        host = plan.address or interface_towards(rendezvous, plan.key_file)
        listen = str(Address("tcp", host, port))
    world = tuple(plan.labels_of_nodes())
    return plan.spec(
        node_id,
        world[node_id],
        dict(zip(lower, where, strict=True)).__getitem__,
        listen=listen,
        rendezvous=listen if node_id == HUB else rendezvous,
        # Without roles the shells tell the nodes apart by labels, which only each itself knows.
        world=world if all(plan.roles) and not plan.settings.labels else (),
        growth=grows,
    )


def _addresses_to_dial(
    node_id: int, lower: Sequence[int], attach_to: Sequence[str]
) -> tuple[str | None, Sequence[str]]:
    """Return the address of node 0, if known, and those of lower ids; a single one is node 0's."""
    if node_id != HUB and len(attach_to) == 1:
        [rendezvous] = attach_to
        return rendezvous, [rendezvous if peer == HUB else "" for peer in lower]
    if len(attach_to) != len(lower):
        found = f"`attach_to` (or DING_LITE_ATTACH_TO) is {', '.join(attach_to) or 'not given'}; "
        if node_id == HUB:
            raise ConfigError(
                f"{found}node 0 dials no node, the others dial it. Leave it out here."
            )
        raise ConfigError(
            f"{found}node {node_id} dials {f'the nodes {[*lower]}' if lower else 'no node'}. Give "
            f"it the address of node 0, which knows the others: "
            f"DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515. Or give it that of each, in this order."
        )
    return attach_to[0] if HUB in lower else None, attach_to


def _port(ports: Sequence[int], node_id: int, num_nodes: int, *, may_be_free: bool) -> int:
    """Return this node's port; without one it is 0, any free port, if node 0 tells the others."""
    if not ports and may_be_free:
        return 0
    if len(ports) == 1:
        return ports[0]
    if len(ports) == num_nodes:
        return ports[node_id]
    raise ConfigError(
        f"DING_LITE_PORTS is {','.join(map(str, ports)) or 'not set'}; others dial node {node_id} "
        f"of {num_nodes}, so it must listen at a port that they know. Set it to one number, such "
        f"as DING_LITE_PORTS=50515."
    )


def node_of_launcher(plan: JobPlan, place: Placement) -> NodeSpec:
    """Return the spec of this node, which listens on its own machine.

    Without ports in the plan only that of node 0 is fixed, since the others obtain all further
    addresses from it: on each fixed port the node could meet another job or program.
    """
    node_id, hub_port = place.node_id, port_of_hub(plan, place)
    port = plan.ports[node_id] if plan.ports else hub_port if node_id == HUB else 0
    host, listens_on = place.host, plan.address or _all_interfaces(place.host)
    if place.on_one_machine:
        host = LOOPBACK if plan.address in (None, *ALL_INTERFACES) else str(plan.address)
        listens_on = plan.address or LOOPBACK
    elif plan.edges:
        _check_machines(plan, place)
    hub = host and str(Address("tcp", host, hub_port))
    grows, world = plan.growth(first_id=place.num_nodes), tuple(plan.labels_of_nodes())
    return plan.spec(
        node_id,
        world[node_id],
        lambda peer: hub if peer == HUB else "",
        listen=str(Address("tcp", listens_on, port)) if _is_dialled(plan, node_id, grows) else None,
        rendezvous=hub if listeners(plan.edges) - {HUB} else None,
        # Labels of the environment may differ between nodes, so each sends its own.
        world=() if plan.settings.labels else world,
        growth=grows,
        job=f"{place.launcher} {place.job}",
    )


def port_of_hub(plan: JobPlan, place: Placement) -> int:
    """Return the port of node 0 in the plan, or else the one that the launcher's job implies."""
    return plan.ports[HUB] if plan.ports else place.port


def _is_dialled(plan: JobPlan, node_id: int, grows: Growth | None) -> bool:
    """Tell whether other nodes dial a node, as peers or to ask node 0 for addresses."""
    may_be = node_id == HUB or (grows is not None and grows.topology == "mesh")
    return node_id in listeners(plan.edges) or (may_be and bool(plan.edges or grows))


def _check_machines(plan: JobPlan, place: Placement) -> None:
    """Refuse a job on several machines that cannot connect, on all nodes alike."""
    if not place.host:
        raise ConfigError(
            f"{place.launcher} has started {place.num_nodes} nodes on several machines and does "
            f"not give the host of node 0, which the others must dial. {place.how_to_tell}"
        )
    if plan.key_file is None:
        raise ConfigError(
            f"{place.launcher} has started {place.num_nodes} nodes on several machines, and "
            f"there is no key to authenticate them. Make one with `ding-lite keygen FILE`, copy it "
            f"to all of them, and give it as `key_file=...` or DING_LITE_KEY_FILE."
        )


def attached_node(
    plan: JobPlan, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Return the spec of a node that attaches to the nodes 0, 1, ... of a running job."""
    node_ids = places_of(node_ids, plan.settings)
    if plan.num_nodes != 1 or len(node_ids) != 1:
        raise ConfigError(
            f"`attach_to` joins a running job with one node: n_parallel_workers=1 and "
            f"node_ids=[2] (or DING_LITE_NODE_ID=2), the number of a place that is free there. "
            f"If the job is elastic, give the address of node 0 alone, and no number. "
            f"Found are n_parallel_workers={plan.num_nodes} and node_ids={[*node_ids]}. To run a "
            f"program of several workers as one node, also set DING_LITE_NUM_NODES."
        )
    [node_id] = node_ids
    if node_id < len(attach_to):
        raise ConfigError(
            f"`node_ids` is [{node_id}] and `attach_to` has the addresses of the nodes 0 to "
            f"{len(attach_to) - 1}; a node that joins must have a higher number than those."
        )
    if any(plan.roles) or plan.settings.roles:
        raise ConfigError(
            "Roles are counted over all nodes of a job, which one that joins by `attach_to` does "
            "not know. Give it `labels=` (or DING_LITE_LABELS) instead of roles."
        )
    if plan.fan_out:
        raise ConfigError(
            "The topology is a tree, and a node that joins one by `attach_to` alone does not know "
            "its hub. Also set DING_LITE_NUM_NODES to the number of nodes of the job: then node 0 "
            "gives it the address of its hub."
        )
    if plan.ports:
        raise ConfigError(
            f"`ports` is {plan.ports!r}, but a node that joins by `attach_to` listens nowhere: it "
            f"dials. Leave it out."
        )
    dials = dict(enumerate(tcp_addresses(attach_to)))
    return NodeSpec(
        node_id=node_id,
        num_nodes=0,
        labels=node_labels(node_id, distributed=True, extra=plan.labels),
        dials=dials,
        peers=frozenset(dials),
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        edges=frozenset((peer, node_id) for peer in dials),
    )


def asks_for_number(
    settings: Settings, node_ids: Sequence[int] | None, *, elastic: bool, is_one: bool
) -> bool:
    """Return whether a node that attaches has no number, so that node 0 assigns one.

    `is_one` is whether a single node attaches to a single address.
    """
    if elastic:
        return None in (settings.num_nodes, settings.node_id)
    return is_one and settings.num_nodes is None and not places_of(node_ids, settings)


def tcp_only(protocol: str | None) -> str:
    if protocol not in (None, "tcp"):
        raise ConfigError(
            f"`protocol` (or DING_LITE_PROTOCOL) is {protocol!r}, but nodes that are started by a "
            f"launcher, in a shell or by Ray, and those of an elastic job, connect over tcp. Leave "
            f"it out."
        )
    return "tcp"


def tcp_addresses(addresses: Sequence[str]) -> list[str]:
    for address in addresses:
        place = Address.parse(address)
        if place.scheme != "tcp":
            raise ConfigError(
                f"`attach_to` is {address}; an external launch connects over tcp. Give "
                f"an address such as tcp://127.0.0.1:50515."
            )
        if place.place in ANY_HOST:
            raise ConfigError(
                f"`attach_to` (or DING_LITE_ATTACH_TO) is {address}, at which a node can listen, "
                f"on all interfaces of its machine, but no other connect. Give the name or the "
                f"address of the machine of node 0: tcp://10.0.0.7:{place.port}."
            )
    return [*addresses]


def places_of(node_ids: Sequence[int] | None, settings: Settings) -> Sequence[int]:
    if node_ids is None:
        return () if settings.node_id is None else (settings.node_id,)
    if not isinstance(node_ids, Sequence):
        raise ConfigError(
            f"`node_ids` is {node_ids!r}; a list with the number of one place was expected, such "
            f"as node_ids=[2]."
        )
    check_all(*(whole(0, node_ids=node_id) for node_id in node_ids))
    return [*map(int, node_ids)]


def interface_towards(rendezvous: str | None, key_file: str | None) -> str:
    """Return the host to listen on, so that other nodes reach this node as it reaches node 0.

    The name of this machine may resolve to loopback here and to another interface elsewhere. Only
    a job with a key can have nodes on other machines.
    """
    host = LOOPBACK if rendezvous is None else Address.parse(rendezvous).place
    is_here = names_this_machine(host) or (key_file is None and is_loopback(host))
    return LOOPBACK if is_here else _all_interfaces(host)


def _all_interfaces(host: str) -> str:
    """Return the wildcard host of the IP version by which node 0 is dialled."""
    return ALL_INTERFACES[is_ipv6(host)]
