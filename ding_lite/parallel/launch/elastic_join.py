"""Request a place in a running elastic job from node 0."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import AuthenticationError, ConfigError, RemoteError
from ding_lite.parallel.launch.membership import ENTRANCES, JOIN, read_roster
from ding_lite.parallel.network.topology import HUB, Growth, NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter

TRIES = 8
"""Entrance ids to try; another joining node may use one at the same moment."""


def join(
    desk: str,
    *,
    requested_id: int | None,
    roles: Iterable[str],
    labels: Iterable[str],
    listen: str,
    key_file: str | None,
    startup_timeout: float | None,
) -> NodeSpec:
    """Request a place in an elastic job from node 0, and return its spec."""
    deadline = Deadline.after(startup_timeout)
    try:
        answer = _ask(desk, key_file, deadline, requested_id, sorted(roles), sorted(labels))
    except AuthenticationError as error:
        raise AuthenticationError(
            f"The job of node 0 at {desk} has not let this node join. It takes further nodes if it "
            f"was started with `elastic=True` (or DING_LITE_ELASTIC=1), and with the same key. "
            f"{error}"
        ) from error
    except RemoteError as error:
        raise ConfigError(f"The job of node 0 at {desk} has no such place: {error}") from error
    return _place(answer, desk, listen, key_file, startup_timeout)


def _ask(desk: str, key_file: str | None, deadline: Deadline, *request: Any) -> dict[str, Any]:
    refusal: Exception | None = None
    for entrance in random.sample(ENTRANCES, TRIES):
        spec = NodeSpec(
            node_id=entrance,
            num_nodes=0,
            labels=frozenset(),
            incarnation=time.time_ns(),
            dials={HUB: desk},
            peers=frozenset({HUB}),
            key_file=key_file,
            startup_timeout=deadline.remaining,
        )
        router = NodeRouter(spec)
        try:
            router.wait_ready()
            answer: dict[str, Any] = router.call(HUB, JOIN, *request, timeout=deadline.remaining)
            return answer
        except AuthenticationError as error:
            refusal = error
        finally:
            router.close()
    raise refusal or AuthenticationError("no entrance was tried.")


def _place(
    answer: dict[str, Any],
    desk: str,
    listen: str,
    key_file: str | None,
    startup_timeout: float | None,
) -> NodeSpec:
    node_id, num_nodes = int(answer["node_id"]), int(answer["num_nodes"])
    topology = str(answer["topology"])
    is_mesh = topology == "mesh"
    nodes = read_roster(answer["nodes"])
    there = frozenset(answer["there"] if is_mesh else [HUB])
    dials = {HUB: desk}
    if is_mesh:
        dials |= {
            node: where if node in there else "" for node, (_, where) in nodes.items() if node
        }
    world = {node: names for node, (names, _) in nodes.items()}
    labels = frozenset(map(str, answer["labels"]))
    world[node_id] = labels
    return NodeSpec(
        node_id=node_id,
        num_nodes=num_nodes,
        labels=labels,
        listen=listen if is_mesh else None,
        dials=dials,
        peers=there,
        key_file=key_file,
        startup_timeout=startup_timeout,
        world=tuple(world.get(node, frozenset()) for node in range(max(world) + 1)),
        growth=Growth(topology, num_nodes),
        has_joined=True,
        job=str(answer["job"]),
    )
