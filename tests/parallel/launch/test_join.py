"""Requests for a place in an elastic job; `test_membership` has those that succeed."""

from __future__ import annotations

import socket

import pytest

from ding_lite.errors import DeadlineExceeded
from ding_lite.parallel.launch.join import joining_node
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import LOOPBACK


def test_a_job_to_join_that_is_not_there_is_named_with_the_given_time() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        address = f"tcp://{LOOPBACK}:{silent.getsockname()[1]}"
        plan = JobPlan(num_nodes=1, protocol="tcp", startup_timeout=0.2)
        with pytest.raises(DeadlineExceeded, match=r"has waited 0\.2 s .* Something listens on"):
            joining_node(plan, [address], None)
