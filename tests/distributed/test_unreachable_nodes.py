"""A node that the topology never connects with the nodes that it needs gets an error at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ding_lite.distributed import GradientServer, ShardedReplay, World
from ding_lite.errors import ConfigError, LabelError
from ding_lite.rl import A2C, A2CConfig, make_envs
from ding_lite.testing import Cluster

SPEC = make_envs("CartPole-v1", 1).spec
ROLES = ["evaluator", "learner", "collector"]
FAULT = "never connects node 1 with node 2, and no node relays messages"


def send(router: Any) -> None:
    router.send("work", 1, to="collector", timeout=0.0)


def wait_for_shards(router: Any) -> None:
    collectors = World(router).group("collector")
    replay = ShardedReplay(collectors, SPEC, shard_capacity=10)
    replay.wait_for(1, until=lambda: False, timeout=0.0)


def pull(router: Any) -> None:
    policy = A2C(SPEC, A2CConfig(hidden=(4,)))
    GradientServer(World(router).group("collector"), policy, timeout=0.1).pull(policy)


@pytest.mark.parametrize("call", [send, wait_for_shards, pull])
def test_a_node_beyond_the_hub_of_a_star_is_refused_at_once(call: Callable[[Any], None]) -> None:
    with (
        Cluster(3, "star", roles=ROLES) as cluster,
        pytest.raises((ConfigError, LabelError), match=re.escape(FAULT)),
    ):
        call(cluster.routers[1])


def test_a_hub_of_a_tree_relays_items_to_nodes_that_are_no_peers() -> None:
    with Cluster(3, "tree:1", roles=ROLES) as cluster:
        assert cluster.routers[0].send("work", 1, to="collector")
        item = cluster.routers[2].receive("work", timeout=10.0)
    assert item is not None
    assert item.value == 1
