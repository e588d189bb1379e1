"""Messages for each step in a star and in a tree; bench_topology measures the time."""

from __future__ import annotations

import numpy as np
import pytest

from ding_lite.parallel.network.topology import FAN_OUT
from ding_lite.parallel.wire.messages import Kind
from tests.bench.counted import LARGE_BYTES, CountedCluster

WEIGHTS = np.zeros(LARGE_BYTES // 4, np.float32)
ITEM = np.zeros(8, np.float32)


@pytest.mark.parametrize("num_nodes", [12, 40, 80])
def test_the_root_of_a_tree_sends_weights_to_its_children_only(num_nodes: int) -> None:
    with CountedCluster(num_nodes, "tree") as cluster:
        with cluster.counting():
            cluster.publish(WEIGHTS)
        assert cluster.traffic[0].large_sent == FAN_OUT
        assert cluster.traffic[0].messages <= 6 * FAN_OUT  # two states each way, and their credits
        assert max(each.large_sent for each in cluster.traffic) == FAN_OUT
        assert sum(each.large_sent for each in cluster.traffic) == num_nodes - 1


@pytest.mark.parametrize("num_nodes", [12, 40])
def test_the_hub_of_a_star_sends_weights_to_all(num_nodes: int) -> None:
    with CountedCluster(num_nodes, "star") as cluster:
        with cluster.counting():
            cluster.publish(WEIGHTS)
        assert cluster.traffic[0].large_sent == num_nodes - 1
        assert cluster.traffic[0].messages == 6 * (num_nodes - 1)


def test_an_item_costs_a_call_and_an_answer_for_each_link() -> None:
    with CountedCluster(80, "tree") as cluster:
        with cluster.counting():
            most_waiting = cluster.collect(ITEM)
        calls = sum(each.sent[Kind.CALL] for each in cluster.traffic)
        assert calls == 8 * 1 + 64 * 2 + 7 * 3  # one for each link on the way
        assert calls == sum(each.sent[Kind.REPLY] for each in cluster.traffic)
        assert cluster.traffic[0].messages == 2 * 79
        assert most_waiting <= 2 * 2 * FAN_OUT  # a hub's own, and what it passes on
