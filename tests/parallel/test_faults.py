"""A peer with the key of the job that violates the protocol."""

from __future__ import annotations

import logging

import pytest

from ding_lite.parallel.link.faults import MAX_FAULTS
from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.testing import Cluster
from tests.parallel.contract import End


def send_rubbish(end: End, link: Link, count: int) -> None:
    end.do(lambda: [end.transport.send(link, Lane.CONTROL, [b"rubbish"]) for _ in range(count)])


def goes_on(cluster: Cluster) -> bool:
    return bool(cluster.routers[0].call(1, "double", 4, timeout=10.0) == 8)


def test_a_peer_with_a_thousand_malformed_messages_is_disconnected_and_may_return(
    cluster: Cluster, rogue: tuple[End, Link], caplog: pytest.LogCaptureFixture
) -> None:
    end, link = rogue
    with caplog.at_level(logging.WARNING):
        for turn in range(1, 3):
            send_rubbish(end, link, MAX_FAULTS)
            assert goes_on(cluster)
            assert len(end.downs) == turn - 1
            send_rubbish(end, link, 1)
            end.wait(lambda turn=turn: len(end.downs) == turn)  # type: ignore[misc]
            end.wait(lambda turn=turn: len(end.ups) == turn + 1)  # type: ignore[misc]
    assert caplog.text.count("dropped the link to node 2 after 1001 malformed") == 2
    assert goes_on(cluster)
    assert cluster.routers[0].num_rejected == 2 * (MAX_FAULTS + 1)
