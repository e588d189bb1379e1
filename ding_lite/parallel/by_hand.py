"""One node of a job that was started by hand: this process, with no launcher above it.

There are two ways in. With `DING_LITE_NUM_NODES` set, each shell starts the same file as one of
the job's nodes, and the environment says which. With `attach_to`, a program takes a place in a
job that runs already, one that a node has left or lost. Either way the node runs here, knows
its neighbours by the addresses it was given, and hears their labels when they greet it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ding_lite.errors import ConfigError
from ding_lite.parallel.address import LOOPBACK, Address
from ding_lite.parallel.plan import Plan
from ding_lite.parallel.router import NodeRouter
from ding_lite.parallel.topology import NodeSpec, neighbours
from ding_lite.runtime.labels import check_labels, node_labels
from ding_lite.runtime.router import use_router
from ding_lite.settings import Settings


def tcp_only(protocol: str | None) -> str:
    """Return the protocol of nodes that were started by hand.

    Raises:
        ConfigError: Another one was asked for.
    """
    if protocol not in (None, "tcp"):
        raise ConfigError(
            f"`protocol` (or DING_LITE_PROTOCOL) is {protocol!r}, but nodes that are started by "
            f"hand or join by `attach_to` meet over tcp. Leave it out."
        )
    return "tcp"


def node_of_environment(plan: Plan, settings: Settings, attach_to: Sequence[str]) -> NodeSpec:
    """Return the place of the node that the environment describes.

    Args:
        plan: The whole job, as every node of it plans it; without ports, which are not known.
        settings: What the environment says.
        attach_to: The addresses of the neighbours with a lower id, in the order of their ids.

    Raises:
        ConfigError: The environment leaves out where this node listens or whom it dials.
    """
    num_nodes, node_id = plan.num_nodes, settings.node_id
    if node_id is None:
        raise ConfigError(
            f"DING_LITE_NUM_NODES is {num_nodes}, so this process is one node of several, and "
            f"DING_LITE_NODE_ID does not say which. Set it to a number from 0 to {num_nodes - 1}, "
            f"another one in each shell."
        )
    near = neighbours(plan.edges, node_id)
    lower = sorted(peer for peer in near if peer < node_id)
    if len(attach_to) != len(lower):
        raise ConfigError(_wrong_number(node_id, lower, attach_to))
    listen = None
    if any(peer > node_id for peer in near):
        port = _port(settings.ports, node_id, num_nodes)
        listen = str(Address("tcp", plan.address or LOOPBACK, port))
    return NodeSpec(
        node_id=node_id,
        num_nodes=num_nodes,
        labels=plan.labels_of_nodes(distributed=True)[node_id],
        listen=listen,
        dials=dict(zip(lower, _tcp(attach_to), strict=True)),
        neighbours=near,
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        edges=plan.edges,
    )


def _wrong_number(node_id: int, lower: Sequence[int], attach_to: Sequence[str]) -> str:
    found = f"`attach_to` (or DING_LITE_ATTACH_TO) is {', '.join(attach_to) or 'not given'}; "
    if not lower:
        return f"{found}node {node_id} dials nobody, the others dial it. Leave it out here."
    return (
        f"{found}node {node_id} dials the nodes {[*lower]} and needs the address of each, in "
        f"this order: DING_LITE_ATTACH_TO=tcp://127.0.0.1:50515. In a star (DING_LITE_TOPOLOGY="
        f"star) the address of node 0 is all that is needed."
    )


def _port(ports: Sequence[int], node_id: int, num_nodes: int) -> int:
    """Pick this node's port; the variable holds that one alone, or those of all nodes."""
    if len(ports) == 1:
        return ports[0]
    if len(ports) == num_nodes:
        return ports[node_id]
    raise ConfigError(
        f"DING_LITE_PORTS is {','.join(map(str, ports)) or 'not set'}; others dial node {node_id} "
        f"of {num_nodes}, so it must listen at a port that they know. Set it to one number, such "
        f"as DING_LITE_PORTS=50515."
    )


def _tcp(addresses: Sequence[str]) -> list[str]:
    for address in addresses:
        if Address.parse(address).scheme != "tcp":
            raise ConfigError(
                f"`attach_to` is {address}; nodes that were started by hand meet over tcp. Give "
                f"an address such as tcp://127.0.0.1:50515."
            )
    return [*addresses]


def guest(
    plan: Plan, settings: Settings, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Return the place of a node that joins a running job.

    It is connected to the nodes 0, 1, ... whose addresses it was given, and learns from them
    how many nodes the job has.

    Args:
        plan: One node; its number in the job is not known to the plan.
        settings: What the environment says.
        attach_to: The addresses of nodes 0, 1, and so on.
        node_ids: The number of the place to take; that of the environment by default.

    Raises:
        ConfigError: The place is not named, or what is asked for needs more than a place.
    """
    if node_ids is None:
        node_ids = () if settings.node_id is None else (settings.node_id,)
    if plan.num_nodes != 1 or len(node_ids) != 1:
        raise ConfigError(
            f"`attach_to` joins a running job with one node: n_parallel_workers=1 and "
            f"node_ids=[2] (or DING_LITE_NODE_ID=2), the number of a place that is free there. "
            f"Found are n_parallel_workers={plan.num_nodes} and node_ids={[*node_ids]}."
        )
    [node_id] = node_ids
    if not isinstance(node_id, int) or isinstance(node_id, bool) or node_id < len(attach_to):
        raise ConfigError(
            f"`node_ids` is [{node_id!r}] and `attach_to` has the addresses of the nodes 0 to "
            f"{len(attach_to) - 1}; a node that joins must have a higher number than those."
        )
    if any(plan.roles or ()) or settings.roles:
        raise ConfigError(
            "Roles are counted over all nodes of a job, which one that joins by `attach_to` does "
            "not know. Give it `labels=` (or DING_LITE_LABELS) instead of roles."
        )
    if plan.ports is not None:
        raise ConfigError(
            f"`ports` is {plan.ports!r}, but a node that joins by `attach_to` listens nowhere: it "
            f"dials. Leave it out."
        )
    extra = check_labels(plan.labels or ()) | check_labels(settings.labels)
    dials = dict(enumerate(_tcp(attach_to)))
    return NodeSpec(
        node_id=node_id,
        num_nodes=0,
        labels=node_labels(node_id, distributed=True, extra=extra),
        dials=dials,
        neighbours=frozenset(dials),
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        edges=frozenset((peer, node_id) for peer in dials),
    )


@contextmanager
def connected(spec: NodeSpec) -> Iterator[NodeRouter]:
    """Be the node for the length of a `with` block, from when all neighbours have greeted.

    Where the block raises, the node leaves without a good-bye, so that the others hear of its
    loss; not so where the user ends it, by Ctrl-C or `sys.exit`.
    """
    # Nobody counts the lives of this node: nanoseconds are above FIRST_UNCOUNTED_EPOCH, and grow.
    router = NodeRouter(replace(spec, epoch=time.time_ns()))
    good_bye = True
    try:
        router.wait_ready(spec.startup_timeout)
        with use_router(router):
            yield router
    except Exception:
        good_bye = False
        raise
    finally:
        router.close(good_bye=good_bye)
