"""`Parallel.runner` with one node: `main` runs in this process."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ding_lite.errors import ConfigError
from ding_lite.parallel import Parallel
from ding_lite.parallel.launch import launch
from ding_lite.parallel.launch.environment import detect
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.runtime.messaging.router import current_router, use_router
from ding_lite.runtime.task import Task
from ding_lite.testing import Cluster
from tests.parallel.launch.environs import TORCHRUN


def labels_within(**options: Any) -> set[str]:
    [labels] = Parallel.runner(1, **options)(lambda: Task().labels)
    return set(labels)


def test_main_runs_in_this_process_as_often_as_it_is_called() -> None:
    def main(*args: object, **kwargs: object) -> object:
        return args, kwargs

    runner = Parallel.runner(n_parallel_workers=1, topology="star")
    assert runner(main, 1, "two", main=3) == [((1, "two"), {"main": 3})]
    [first], [second] = runner(current_router), runner(current_router)
    assert first is second


def test_a_thread_of_main_has_the_router_of_its_node() -> None:
    def main() -> tuple[frozenset[str], frozenset[str]]:
        with ThreadPoolExecutor(1) as pool:
            return Parallel().labels, pool.submit(lambda: Task().labels).result()

    [(of_main, of_thread)] = Parallel.runner(1, roles=[{"learner", "collector"}])(main)
    assert of_thread == of_main
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: Task().labels).result() == {"node.0", "standalone"}


def test_the_router_is_reset_after_main_and_an_error_of_it_propagates() -> None:
    def fail() -> None:
        raise LookupError("gone")

    def look() -> None:
        before = current_router()
        [within] = Parallel.runner(1)(current_router)
        assert within is not before
        with pytest.raises(LookupError, match="gone"):
            Parallel.runner(1)(fail)
        assert current_router() is before

    contextvars.copy_context().run(look)


def test_parallel_has_is_active_and_node_id() -> None:
    assert not Parallel().is_active
    with Cluster(2) as cluster, use_router(cluster.routers[1]):
        assert Parallel().is_active
        assert Parallel().node_id == 1


def test_labels_and_roles_are_one_or_several_in_every_topology() -> None:
    for topology in ("star", "mesh", "alone"):
        assert labels_within(topology=topology) == {"standalone", "node.0"}
    for labels in ("gpu", ["gpu"], {"gpu"}, ("gpu", "gpu")):
        assert labels_within(labels=labels) == {"standalone", "node.0", "gpu"}
    several: list[Any] = [["learner"], [("learner",)], [{"learner"}], ({"learner"},)]
    for roles in several:
        assert labels_within(roles=roles) == {"standalone", "node.0", "learner", "learner.0"}


def test_labels_and_roles_of_the_environment_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DING_LITE_LABELS", "big")
    monkeypatch.setenv("DING_LITE_ROLES", "evaluator")
    expected = {"standalone", "node.0", "gpu", "big", "learner", "learner.0"}
    expected |= {"evaluator", "evaluator.0"}
    assert labels_within(labels="gpu", roles=["learner"]) == expected


REFUSED: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"labels": "a b"}, {}, "'a b' is no label"),
    ({"labels": ["gpu", "node.0"]}, {}, "'node.0' cannot be added to nodes"),
    ({}, {"DING_LITE_LABELS": "standalone"}, "'standalone' cannot be added to nodes"),
    ({"labels": "learner.0", "roles": ["learner"]}, {}, "'learner.0' cannot be added to all nodes"),
    ({"topology": "starr"}, {}, "`topology` is 'starr'; it must be one of: 'star', .* \"star\"?"),
    ({"roles": ["a b"]}, {}, "'a b' is no role"),
    *(
        ({"n_parallel_workers": workers}, {}, r"`n_parallel_workers` is .* whole number from 1 on")
        for workers in (0, -1, True, False, 1.0, "1", None, [1])
    ),
    ({"roles": []}, {}, r"`roles` has 0 entries for 1 node.* such as roles=\[\.\.\.\]"),
    ({"roles": "learner"}, {}, r"`roles` is 'learner'; give a list with one entry a node"),
    ({"roles": ["learner", "collector"]}, {}, "`roles` has 2 entries for 1 node"),
    ({}, {"DING_LITE_NUM_NODES": "2"}, "DING_LITE_NUM_NODES is 2.* Set it to a number"),
    ({"n_parallel_workers": 2}, {"DING_LITE_NODE_ID": "1"}, "DING_LITE_NODE_ID is 1"),
    ({"n_parallel_workers": 2, "node_ids": [2, 3]}, {}, r"`node_ids` is \[2, 3\], the place to"),
    ({"max_retries": -1}, {}, "`max_retries` is -1; it must be a whole number from 0 on"),
    ({"auto_recover": "no"}, {}, "`auto_recover` is 'no'; it must be one of: True, False"),
    ({"elastic": "yes"}, {}, "`elastic` is 'yes'; it must be one of: True, False, None"),
    ({"protocol": "tcp", "address": 5}, {}, "`address` is 5; an IP address was expected"),
    ({"key_file": "job.key"}, {}, "`key_file` is 'job.key', but the protocol is `ipc`, which has"),
    ({"protocol": "tcp", "key_file": 3}, {}, "`key_file` is 3; a path was expected"),
    ({"protocol": "tcp", "ports": True}, {}, "`ports` is True; 1 nodes need as many different"),
    ({"protocol": "tcp", "ports": True}, {}, "`ports` is True; 1 nodes need as many different"),
    ({"protocol": "tcp", "ports": 3.0}, {}, "`ports` is 3.0; 1 nodes need as many different"),
    ({"protocol": "tcp", "ports": [50_515.0]}, {}, "`ports` is 50515.0; it must be a whole number"),
    ({}, {"DING_LITE_ROLE": "learner"}, "DING_LITE_ROLES"),
]


@pytest.mark.parametrize(("given", "environ", "message"), REFUSED)
def test_what_does_not_fit_is_refused_before_main_runs(
    given: dict[str, Any], environ: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        Parallel.runner(**{"n_parallel_workers": 1, **given})


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> list[NodeSpec]:
    """Collect the specs of runners instead of running them."""
    taken: list[NodeSpec] = []
    monkeypatch.setattr(launch, "_run_as_node", lambda plan, spec, **more: taken.append(spec))
    return taken


def test_a_launcher_sets_the_number_of_nodes(torchrun, spec) -> None:
    Parallel.runner(8, "star", roles=["learner", "collector", "collector"])
    [one] = spec
    assert (one.node_id, one.num_nodes) == (1, 3)
    assert "collector.0" in one.labels
    with pytest.raises(ConfigError, match="`roles` has 8 entries for 3 nodes"):
        Parallel.runner(8, roles=["collector"] * 8)


def test_ports_come_from_the_call_then_the_environment_then_the_launcher(torchrun, spec) -> None:
    Parallel.runner(3, "star")
    torchrun.setenv("DING_LITE_PORTS", "7000")
    Parallel.runner(3, "star")
    Parallel.runner(3, "star", ports=[6000, 6001, 6002])
    place = detect(TORCHRUN)
    assert place is not None
    ports = [int(one.dials[0].rpartition(":")[2]) for one in spec]
    assert ports == [place.port, 7000, 6000]


def test_settings_of_a_node_override_a_launcher(torchrun, spec) -> None:
    torchrun.setenv("DING_LITE_NUM_NODES", "2")
    torchrun.setenv("DING_LITE_NODE_ID", "0")
    torchrun.setenv("DING_LITE_PORTS", "50515")
    Parallel.runner(3)
    [zero] = spec
    assert (zero.node_id, zero.num_nodes, zero.listen) == (0, 2, "tcp://127.0.0.1:50515")


def test_attach_to_overrides_a_launcher(torchrun: pytest.MonkeyPatch, spec: list[NodeSpec]) -> None:
    Parallel.runner(1, attach_to="tcp://127.0.0.1:50515", node_ids=[4])
    [guest] = spec
    assert (guest.node_id, guest.num_nodes) == (4, 0)


def test_the_local_engine_and_a_launcher_of_one_process_start_nodes_here(torchrun) -> None:
    assert labels_within(engine="local") == {"standalone", "node.0"}
    torchrun.setenv("DING_LITE_ENGINE", "local")
    assert labels_within() == {"standalone", "node.0"}
    torchrun.delenv("DING_LITE_ENGINE")
    torchrun.setenv("RANK", "0")
    torchrun.setenv("WORLD_SIZE", "1")
    assert labels_within() == {"standalone", "node.0"}
