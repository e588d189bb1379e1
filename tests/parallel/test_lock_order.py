"""Locks are taken in the order of docs/design/0016-the-order-of-locks.md."""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ding_lite
from ding_lite.distributed import GradientServer, PopulationServer, ShardedReplay, World
from ding_lite.evolution import Population, Search
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.rl import A2C, DQN, A2CConfig, make_envs
from ding_lite.runtime.messaging.router import use_router
from ding_lite.runtime.task import Task
from tests.evolution.conftest import some_transitions
from tests.threads import together

PACKAGE = Path(ding_lite.__file__).parent
TABLE = (PACKAGE.parent / "docs/design/0016-the-order-of-locks.md").read_text()
ROWS = re.findall(r"(?m)^\| (`.*?) \|", TABLE)
ROW_OF = {name: number for number, row in enumerate(ROWS) for name in re.findall(r"`(.+?)`", row)}
SPEC = make_envs("CartPole-v1", 1).spec
held = threading.local()
found: set[tuple[str, str]] = set()
"""Pairs of locks: one that a thread has held, and one that it has waited for meanwhile."""


class RecordedLock:
    """A lock that records which locks its thread holds when it waits for this one."""

    def __init__(self, lock: Any, name: str) -> None:
        self._lock, self._name = lock, name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        own = held.__dict__.setdefault("own", [])
        if blocking and self not in own:
            found.update((each._name, self._name) for each in own)
        own += [self] * (is_held := bool(self._lock.acquire(blocking, timeout)))
        return is_held

    def release(self) -> None:
        held.own.remove(self)
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:  # what a condition calls of its lock
        return getattr(self._lock, name)


def make(real: Callable[[], Any]) -> Any:
    """Make a lock, a recorded one for the package; its memory fence is none: no thread waits."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    line = linecache.getline(str(path), frame.f_lineno)
    made = re.search(r"(\w+)(?: = |\", )threading\.(?:R?Lock|Condition)", line)
    if not (made and path.is_relative_to(PACKAGE)) or path.name == "segments.py":
        return real()
    return RecordedLock(real(), f"{path.relative_to(PACKAGE).with_suffix('')}.{made[1]}")


def main() -> None:
    world = World.current()
    node, policy = world.node_id, A2C(SPEC, A2CConfig(hidden=(4,)))
    population = Population.of(DQN, SPEC, Search(), size=2, config={"hidden": (4,)})
    gradients = GradientServer(world.group([0, 1]), policy, max_staleness=1)
    replay = ShardedReplay(world.group([1]), SPEC, shard_capacity=100)
    members = PopulationServer(world.group([0]), world.group([1, 2]), population)
    with Task() as task:
        world.group("node.*").barrier()
        if node == 0:
            replay.wait_for(100, until=lambda: False)
            replay.update_priorities(replay.sample(32), torch.ones(32))
            assert members.gather()
            gradients.load_state_dict(gradients.state_dict())
            assert task.receive("items")
        else:
            if node == 1:
                replay.add(some_transitions(SPEC, 100))
            gradients.pull(policy)
            gradients.push(torch.ones(sum(w.numel() for w in policy.weights().values())))
            assert (share := members.take()) is not None
            assert members.give(share.states, {})
            task.send("items", node, to="node.0")
        task.emit("told").forward(lambda ctx: ctx.update(train_iter=node)).renew()
        world.group("node.*").barrier()


def test_locks_are_taken_in_the_order_of_the_table(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(threading, "Lock", partial(make, threading.Lock))
    monkeypatch.setattr(threading, "RLock", partial(make, threading.RLock))
    places = [f"ipc://{tmp_path}/{node}" for node in range(3)]
    specs = JobPlan(num_nodes=3, topology="mesh").specs_at(places, job="")

    def run(router: NodeRouter) -> None:
        with closing(router), use_router(router):
            main()

    together(*(partial(run, router) for router in map(NodeRouter, specs)))
    assert len(found) > 20
    assert {name for pair in found for name in pair} <= ROW_OF.keys()
    assert not {(outer, inner) for outer, inner in found if ROW_OF[outer] >= ROW_OF[inner]}
