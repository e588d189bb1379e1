"""Elastic jobs: a node requests a place in a running job from its node 0."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from ding_lite.errors import AuthenticationError, ConfigError, DeadlineExceeded, RemoteError
from ding_lite.parallel.launch.connect import probe
from ding_lite.parallel.launch.membership import JOIN, read_roster
from ding_lite.parallel.launch.place import interface_towards, places_of, tcp_addresses
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import LOOPBACK, Address
from ding_lite.parallel.network.topology import ENTRANCES, HUB, Growth, NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.runtime.messaging.labels import roles_of

TRIES = 8
"""The number of entrance ids to try; another joining node may use one at the same moment."""


def first_elastic_node(plan: JobPlan) -> NodeSpec:
    [port] = plan.ports or [0]
    return plan.specs_at([str(Address("tcp", plan.address or LOOPBACK, port))], job="")[0]


def joining_node(
    plan: JobPlan, attach_to: Sequence[str], node_ids: Sequence[int] | None
) -> NodeSpec:
    """Request a place in an elastic job; of several roles in a program the last is this node's."""
    node_ids = places_of(node_ids, plan.settings)
    if len(attach_to) != 1 or len(node_ids) > 1:
        raise ConfigError(
            f"`attach_to` is {', '.join(attach_to)} and `node_ids` {[*node_ids]}; a node that "
            f"joins an elastic job needs the address of node 0 alone, and one number at most."
        )
    [rendezvous] = tcp_addresses(attach_to)
    host = plan.address or interface_towards(rendezvous, plan.key_file)
    ports = plan.settings.ports
    port = ports[0] if len(ports) == 1 else 0
    try:
        return join(
            rendezvous,
            requested_id=node_ids[0] if node_ids else None,
            roles=roles_of(frozenset().union(*plan.roles)),
            labels=plan.labels,
            listen=str(Address("tcp", host, port)),
            plan=plan,
        )
    except DeadlineExceeded as error:
        raise DeadlineExceeded(f"{error} {probe(rendezvous)}") from error


def join(
    rendezvous: str,
    *,
    plan: JobPlan,
    requested_id: int | None,
    roles: Iterable[str],
    labels: Iterable[str],
    listen: str,
) -> NodeSpec:
    """Request a place in the elastic job of node 0 at `rendezvous`, and return its spec."""
    try:
        answer = _ask(rendezvous, plan, requested_id, sorted(roles), sorted(labels))
    except AuthenticationError as error:
        raise AuthenticationError(
            f"The job of node 0 at {rendezvous} has not let this node join. It takes further nodes "
            f"if it was started with `elastic=True` (or DING_LITE_ELASTIC=1), and with the same "
            f"key. {error}"
        ) from error
    except RemoteError as error:
        raise ConfigError(
            f"The job of node 0 at {rendezvous} has no such place: {error}"
        ) from error
    node_id, num_nodes = int(answer["node_id"]), int(answer["num_nodes"])
    is_mesh = answer["topology"] == "mesh"
    nodes = read_roster(answer["nodes"])
    there = frozenset(answer["there"] if is_mesh else [HUB])
    dials = {HUB: rendezvous}
    if is_mesh:
        dials |= {node: at if node in there else "" for node, (_, at) in nodes.items() if node}
    world = {node: names for node, (names, _) in nodes.items()}
    labels = world[node_id] = frozenset(map(str, answer["labels"]))
    return NodeSpec(
        node_id=node_id,
        num_nodes=num_nodes,
        labels=labels,
        listen=listen if is_mesh else None,
        dials=dials,
        peers=there,
        key_file=plan.key_file,
        startup_timeout=plan.startup_timeout,
        world=tuple(world.get(node, frozenset()) for node in range(max(world) + 1)),
        growth=Growth(str(answer["topology"]), num_nodes),
        has_joined=True,
        job=str(answer["job"]),
    )


def _ask(rendezvous: str, plan: JobPlan, *request: Any) -> dict[str, Any]:
    refusal: Exception | None = None
    for entrance in random.sample(ENTRANCES, TRIES):
        spec = NodeSpec(
            node_id=entrance,
            num_nodes=0,
            labels=frozenset(),
            incarnation=time.time_ns(),
            dials={HUB: rendezvous},
            peers=frozenset({HUB}),
            key_file=plan.key_file,
            startup_timeout=plan.startup_timeout,
        )
        with closing(NodeRouter(spec)) as router:
            try:
                router.wait_ready()
                answer: dict[str, Any] = router.call(
                    HUB, JOIN, *request, timeout=plan.startup_timeout
                )
                return answer
            except AuthenticationError as error:
                refusal = error
    raise refusal or AuthenticationError("no entrance was tried.")
