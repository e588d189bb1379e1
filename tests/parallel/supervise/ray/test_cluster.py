"""Requests of nodes for the resources of a Ray cluster, and refused clusters and arguments."""

from __future__ import annotations

import importlib.util
import os

import pytest

from ding_lite.errors import ConfigError, MissingExtraError
from ding_lite.parallel import Parallel
from ding_lite.parallel.supervise.ray.cluster import check_guarded, resources_of_nodes

LABELS = [frozenset({"learner", "node.0"}), frozenset({"collector", "node.1"})]


def test_nodes_request_the_resources_of_their_labels_and_a_core() -> None:
    wanted = {"learner": {"num_gpus": 1, "num_cpus": 2}, "node.*": {"memory": 10}}
    assert resources_of_nodes(LABELS, wanted) == [
        {"num_cpus": 2, "num_gpus": 1, "memory": 10},
        {"num_cpus": 1, "memory": 10},
    ]


@pytest.mark.parametrize(
    ("resources", "complaint"),
    [
        ({"learner": {"num_gpu": 1}}, r"'num_gpu' for 'learner'\. Did you mean .num_gpus."),
        ({"evaluator": {"num_cpus": 1}}, r"no node has such a label.*collector, learner, node\.0"),
        (["learner"], r"`resources` is \['learner'\]; .* such as {'learner': {'num_gpus': 1}}"),
        ({"learner": 1}, r"`resources` is {'learner': 1}; the resources of nodes by patterns"),
    ],
)
def test_requests_that_ray_cannot_meet_are_refused(resources, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resources_of_nodes(LABELS, resources)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"engine": "rai"}, "rai.*local.*ray"),
        ({"resources": {"learner": {"num_gpus": 1}}}, "`resources` is .* engine='ray'"),
        ({"engine": "ray", "ports": 5000}, r"`ports` is \(5000, 5001\), but Ray places the nodes"),
        ({"engine": "ray", "address": "127.0.0.2"}, "`address` is .127.0.0.2., but Ray"),
        ({"engine": "ray", "protocol": "ipc"}, "`protocol`.* is 'ipc'"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Parallel.runner(2, **arguments)


def test_a_ray_without_authentication_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    check_guarded("127.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"any client that reaches it can run programs as you"):
        check_guarded("192.0.2.7:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_guarded("192.0.2.7:6379")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_names_what_to_install() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[ray\]'"):
        Parallel.runner(2, engine="ray")(os.getpid)
