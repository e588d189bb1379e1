"""Request a place in a running elastic job from node 0."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import AuthenticationError, ConfigError, RemoteError
from ding_lite.parallel.launch.membership import ENTRANCES, JOIN, read_roster
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.topology import HUB, Growth, NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter

TRIES = 8
"""The number of entrance ids to try; another joining node may use one at the same moment."""


def join(
    desk: str,
    *,
    plan: JobPlan,
    requested_id: int | None,
    roles: Iterable[str],
    labels: Iterable[str],
    listen: str,
) -> NodeSpec:
    """Request a place in the elastic job of node 0 at `desk`, and return its spec."""
    try:
        answer = _ask(desk, plan, requested_id, sorted(roles), sorted(labels))
    except AuthenticationError as error:
        raise AuthenticationError(
            f"The job of node 0 at {desk} has not let this node join. It takes further nodes if it "
            f"was started with `elastic=True` (or DING_LITE_ELASTIC=1), and with the same key. "
            f"{error}"
        ) from error
    except RemoteError as error:
        raise ConfigError(f"The job of node 0 at {desk} has no such place: {error}") from error
    node_id, num_nodes = int(answer["node_id"]), int(answer["num_nodes"])
    is_mesh = answer["topology"] == "mesh"
    nodes = read_roster(answer["nodes"])
    there = frozenset(answer["there"] if is_mesh else [HUB])
    dials = {HUB: desk}
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


def _ask(desk: str, plan: JobPlan, *request: Any) -> dict[str, Any]:
    deadline = Deadline.after(plan.startup_timeout)
    refusal: Exception | None = None
    for entrance in random.sample(ENTRANCES, TRIES):
        spec = NodeSpec(
            node_id=entrance,
            num_nodes=0,
            labels=frozenset(),
            incarnation=time.time_ns(),
            dials={HUB: desk},
            peers=frozenset({HUB}),
            key_file=plan.key_file,
            startup_timeout=deadline.remaining,
        )
        with closing(NodeRouter(spec)) as router:
            try:
                router.wait_ready()
                answer: dict[str, Any] = router.call(
                    HUB, JOIN, *request, timeout=deadline.remaining
                )
                return answer
            except AuthenticationError as error:
                refusal = error
    raise refusal or AuthenticationError("no entrance was tried.")
