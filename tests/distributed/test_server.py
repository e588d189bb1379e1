"""The base of servers: waits for lost nodes, retried calls, incarnations."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, TimeoutError as FutureTimeout
from typing import Any

import pytest

from ding_lite.clock import Deadline
from ding_lite.distributed.server import Server, new_incarnation
from ding_lite.errors import DeadlineExceeded, RemoteError
from ding_lite.parallel.router import calls
from ding_lite.parallel.router.group import Group
from ding_lite.testing import Cluster


def never() -> bool:
    return False


def servers(cluster: Cluster, **settings: Any) -> list[Server]:
    settings = {"timeout": 10.0} | settings
    made = [Server(Group(router, (0,)), "adder", **settings) for router in cluster.routers]
    made[0].register("add", lambda x, y: x + y)
    return made


def test_any_node_calls_the_owner_which_calls_itself() -> None:
    with Cluster(2) as cluster:
        both = servers(cluster)
        assert [server.is_owner for server in both] == [True, False]
        assert [server.call(0, "add", 2, 3, until=never) for server in both] == [5, 5]
        answer = both[1].ask(0, "add", 1, 1)
        assert both[1].wait(answer.done, Deadline.after(10.0), never)
        assert answer.result() == 2


def test_a_handler_that_raises_is_an_error_at_once() -> None:
    with Cluster(2) as cluster, pytest.raises(RemoteError, match="TypeError"):
        servers(cluster)[1].call(0, "add", 1, until=never)


def test_a_restarted_owner_is_waited_for() -> None:
    with Cluster(2) as cluster, ThreadPoolExecutor(1) as pool:
        _, agent = servers(cluster)
        cluster.routers[0].close(good_bye=False)
        assert agent.wait(lambda: not agent.is_connected(0), Deadline.after(10.0), never)
        answer = pool.submit(agent.call, 0, "add", 2, 2, until=never)
        owner = cluster.restart(0)
        again = Server(Group(owner, (0,)), "adder", timeout=10.0)
        again.register("add", lambda x, y: 10 * x + y)
        assert answer.result(10.0) == 22


def test_a_lost_owner_is_an_error_in_time_or_no_answer_where_the_wait_ends() -> None:
    with Cluster(2) as cluster:
        _, agent = servers(cluster, timeout=0.05)
        cluster.routers[0].close(good_bye=False)
        assert agent.wait(lambda: not agent.is_connected(0), Deadline.after(10.0), never)
        with pytest.raises(DeadlineExceeded, match="Node 0, which answers `adder`, has not"):
            agent.call(0, "add", 1, 1, until=never)
        assert agent.call(0, "add", 1, 1, until=lambda: True) is None


@pytest.mark.parametrize("awaits_server", [True, False])
def test_a_server_that_a_new_process_has_not_made_yet_is_waited_for_or_lost(
    monkeypatch: pytest.MonkeyPatch, awaits_server: bool
) -> None:
    monkeypatch.setattr(calls, "REGISTRATION_S", 0.05)
    with Cluster(2) as cluster, ThreadPoolExecutor(1) as pool:
        _, agent = servers(cluster)
        cluster.restart(0).wait_ready(10.0)
        cluster.routers[1].wait_ready(10.0)
        answer = pool.submit(agent.call, 0, "add", 1, 1, until=never, awaits_server=awaits_server)
        if awaits_server:
            with pytest.raises(FutureTimeout):
                answer.result(1.0)  # longer than a call is held
            servers(cluster)
        assert answer.result(10.0) == (2 if awaits_server else None)


def test_a_node_without_a_server_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "REGISTRATION_S", 0.05)
    with Cluster(2) as cluster:
        agent = Server(Group(cluster.routers[1], (0,)), "adder", timeout=4.0)
        with pytest.raises(RemoteError, match=r"No call is answered .* on this node"):
            agent.call(0, "add", 1, 1, until=never)


def test_each_incarnation_is_another_number() -> None:
    assert len({new_incarnation() for _ in range(100)} - {0}) == 100
    with Cluster(1) as cluster:
        (server,) = servers(cluster)
        before = server.incarnation
        server.renew()
        assert server.incarnation != before
