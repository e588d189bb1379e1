"""The engine that lets Ray place nodes, without Ray."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ding_lite.errors import DeadlineExceeded
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.supervise.job import NodeRecord
from ding_lite.parallel.supervise.node_process import (
    RUNNING,
    Entered,
    Exited,
    Failed,
    Finish,
    Moved,
    Returned,
)
from ding_lite.parallel.supervise.ray.engine import RayEngine


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeRay:
    """A module `ray` with actors that answer what a test says."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        self.actors: list[FakeActor] = []
        self.killed: list[FakeActor] = []

    def remote(self, kind: type) -> FakeRay:
        return self

    def options(self, **wanted: Any) -> SimpleNamespace:
        def make() -> FakeActor:
            self.actors.append(FakeActor())
            return self.actors[-1]

        return SimpleNamespace(remote=make)

    def kill(self, actor: FakeActor) -> None:
        self.killed.append(actor)

    def wait(self, refs: Any, **more: Any) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    available_resources = cluster_resources


class FakeActor:
    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.answer: Future[Any] = Future()

    def __getattr__(self, name: str) -> SimpleNamespace:
        def call(*args: Any) -> SimpleNamespace:
            self.calls[name].append(args)
            if name in ("place", "run"):
                self.answer = Future()
            answer = self.answer
            return SimpleNamespace(future=lambda: answer)

        return SimpleNamespace(remote=call)


@pytest.fixture
def started() -> tuple[FakeRay, RayEngine, list[NodeRecord]]:
    """Start a star of three nodes."""
    plan = JobPlan(num_nodes=3, topology="star", protocol="tcp", startup_timeout=5.0)
    ray: Any = FakeRay()
    specs = plan.specs_at([""] * 3, job="a job")
    engine = RayEngine(ray, "127.0.0.1:6379", plan, partial(os.getpid), [{"num_cpus": 1}] * 3)
    nodes = [NodeRecord(spec) for spec in specs]
    for node in nodes:
        engine.start(node)
    return ray, engine, nodes


def place(ray: FakeRay, *node_ids: int) -> None:
    for node_id in node_ids:
        ray.actors[node_id].answer.set_result(f"tcp://10.0.0.{node_id}:7")


def test_nodes_run_main_once_all_have_been_placed(started: Any) -> None:
    ray, engine, nodes = started
    place(ray, 0, 2)
    assert engine.wait(0.0) == []
    place(ray, 1)
    assert dict(engine.wait(0.0)) == dict.fromkeys(range(3), Entered(RUNNING))
    assert nodes[0].spec.listen == "tcp://10.0.0.0:7"
    assert nodes[2].spec.dials == {0: "tcp://10.0.0.0:7"}
    [(spec, *_)] = ray.actors[1].calls["run"]
    assert spec.program == Path(sys.argv[0]).name  # and not that of the process of Ray
    ray.actors[1].answer.set_result("done")
    (_, returned), (_, exited) = engine.wait(None)
    assert (returned, type(exited)) == (Returned("done"), Exited)
    assert ray.killed == [ray.actors[1]]


def test_a_node_that_is_placed_anew_is_dialled_at_its_new_address(started: Any) -> None:
    ray, engine, nodes = started
    place(ray, 0, 1, 2)
    engine.wait(0.0)
    ray.actors[0].answer.set_exception(RayError("its machine is gone\nand more"))
    [(node_id, exited)] = engine.wait(None)
    assert (node_id, exited.how) == (0, "(an actor of Ray) has died")
    assert exited.more == ": its machine is gone"
    engine.start(nodes[0])
    ray.actors[3].answer.set_result("tcp://10.0.0.9:7")
    assert engine.wait(None) == [(0, Entered(RUNNING))]
    assert nodes[2].spec.dials == {0: "tcp://10.0.0.9:7"}
    assert ray.actors[2].calls["send"] == [(Moved(0, "tcp://10.0.0.9:7"),)]


def test_an_error_of_main_is_reported_with_its_cause(started: Any) -> None:
    ray, engine, _ = started
    place(ray, 0, 1, 2)
    engine.wait(0.0)
    cause = ZeroDivisionError("by zero")
    ray.actors[1].answer.set_exception(RayTaskError(cause))
    (_, failed), (_, exited) = engine.wait(None)
    assert failed == Failed(RUNNING, "ZeroDivisionError", "by zero", "by zero", cause)
    assert isinstance(exited, Exited)


def test_at_the_end_running_nodes_finish_and_others_are_killed(started: Any) -> None:
    ray, engine, _ = started
    engine.end(0.0)
    assert ray.killed == ray.actors
    assert [node_id for node_id, _ in engine.wait(None)] == [0, 1, 2]
    engine.close()
    assert ray.killed == ray.actors


def test_running_nodes_that_do_not_finish_in_time_are_killed(started: Any) -> None:
    ray, engine, _ = started
    place(ray, 0, 1, 2)
    engine.wait(0.0)
    engine.end(0.0)
    assert [actor.calls["send"] for actor in ray.actors] == [[(Finish(),)]] * 3
    assert len(engine.wait(None)) == 3
    assert ray.killed == ray.actors


def test_nodes_without_a_place_are_named_with_what_they_ask_for(started: Any) -> None:
    ray, engine, nodes = started
    place(ray, 0, 2)
    engine.wait(0.0)
    error = engine.startup_error(nodes, [])
    assert isinstance(error, DeadlineExceeded)
    assert "nodes [1] within 5 s: node 1 asks for {'num_cpus': 1}. The cluster has" in str(error)


def test_a_wait_ends_when_it_is_woken(started: Any) -> None:
    _, engine, _ = started
    engine.wake()
    assert engine.wait(None) == []
