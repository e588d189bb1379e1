"""The cost of a sharded replay: adding to the own shard, and sampling 256 across two shards.

Two collectors hold 100,000 CartPole-like transitions each. The learner samples while they do
nothing, and while each adds batches of 16 as fast as it can. In turn with its shard each
collector adds to a `PrioritizedReplay` of its own, from which no learner samples: that is the
baseline of adding, under the same load. A sample's target is in milliseconds, as it is mostly
waiting. One that travels with others costs an eighth of a question; the learner that asks for
each batch alone, and waits for it, tells what a question costs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ding_lite import Parallel
from ding_lite.distributed import ShardedReplay, World
from ding_lite.parallel.router.group import Group
from ding_lite.rl import PrioritizedReplay, Replay, Transitions, make_envs
from ding_lite.runtime.messaging.local_router import LocalRouter
from tests.bench.bench_replay import NUM_ADDED, some
from tests.bench.harness import ROOT, Row, compare, row_from_samples

CAPACITY, BATCH_SIZE, NUM_SAMPLES, SAMPLES_AT_ONCE = 100_000, 256, 100, 16
SPEC = make_envs("CartPole-v1", 1).spec
ROLES = ["learner", "collector", "collector"]


def run() -> list[Row]:
    """Measure adding in this process, then three processes: idle, and while collectors add."""
    few = some(NUM_ADDED)
    sharded = ShardedReplay(Group(LocalRouter(), (0,)), SPEC, shard_capacity=CAPACITY)
    local = PrioritizedReplay(SPEC, capacity=CAPACITY)
    for replay_ in (sharded, local):
        replay_.add(some(CAPACITY))
    rows = [
        compare(
            f"sharded replay: add {NUM_ADDED} to the own shard of {CAPACITY:,}",
            partial(sharded.add, few),
            partial(local.add, few),
            baseline_name="PrioritizedReplay",
            number=500,
            target=1.3,
        )
    ]
    for how in ("idle", "busy"):
        command = [sys.executable, "-m", "tests.bench.bench_sharded", how]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        rows += rows_of(how == "busy", json.loads(done.stdout.splitlines()[-1]))
    return rows


def rows_of(busy: bool, results: list[dict[str, list[float]]]) -> list[Row]:
    when = "while collectors add" if busy else "collectors idle"
    name, limit = f"sharded replay: sample {BATCH_SIZE} over ipc, {when}", 4.0 if busy else 2.0
    learner, *collectors = results
    rows = [
        row_from_samples(name, learner["prefetch"], unit="ms", target=limit, tracked=not busy),
        row_from_samples(f"{name}, each asked for alone", learner["alone"], unit="ms"),
    ]
    if busy:
        name = f"sharded replay: add {NUM_ADDED} while a learner samples"
        sharded = [taken for each in collectors for taken in each["sharded"]]
        local = [taken for each in collectors for taken in each["local"]]
        both = row_from_samples(name, sharded, baseline=local, baseline_name="PrioritizedReplay")
        ratio = median(sharded) / median(local)
        slowest = [1e3 * at_999(each["sharded"]) for each in collectors]
        rows += [
            replace(both, ratio=ratio, target=1.3),
            replace(
                row_from_samples(f"{name}, 99.9 %", sharded, unit="ms", target=5.0),
                median=max(slowest),
                baseline=max(1e3 * at_999(each["local"]) for each in collectors),
                baseline_name="PrioritizedReplay",
            ),
        ]
    return rows


def at_999(taken: list[float]) -> float:
    return sorted(taken)[int(0.999 * len(taken))]


def main(busy: bool) -> dict[str, list[float]]:
    """Run a node; return the seconds that each of its deeds has taken."""
    world = World.current()
    everybody, collectors = world.group("node.*"), world.group("collector")
    taken: dict[str, list[float]] = {}
    for name, prefetch in (("prefetch", 8), ("alone", 0)):
        shards = ShardedReplay(
            collectors, SPEC, shard_capacity=CAPACITY, prefetch=prefetch, name=name
        )
        if collectors.is_member:
            local = PrioritizedReplay(SPEC, capacity=CAPACITY)
            for each in (shards, local):
                each.add(some(CAPACITY))
            everybody.barrier()
            few, seen = some(NUM_ADDED), taken if prefetch else {}
            ended = collectors.router.subscribe("ctx/sampled")
            while busy and name not in ended.newest.get("ctx/sampled", ()):
                add_in_turn({"sharded": shards, "local": local}, few, seen)
        else:
            everybody.barrier()
            taken[name] = sample(shards, prefetch)
            collectors.router.publish_ctx({"sampled": [*taken]})
        everybody.barrier()
    return taken


def add_in_turn(
    replays: dict[str, Replay], few: Transitions, taken: dict[str, list[float]]
) -> None:
    for name, replay in replays.items():
        began = perf_counter()
        replay.add(few)
        taken.setdefault(name, []).append(perf_counter() - began)


def sample(shards: ShardedReplay, prefetch: int) -> list[float]:
    """Sample as fast as the shards answer; several at a time are counted as their mean."""
    at_once = SAMPLES_AT_ONCE if prefetch else 1
    taken = []
    for _ in range(NUM_SAMPLES if prefetch else 4 * NUM_SAMPLES):
        began = perf_counter()
        for _ in range(at_once):
            shards.sample(BATCH_SIZE)
        taken.append((perf_counter() - began) / at_once)
    return taken


if __name__ == "__main__":
    torch.set_num_threads(1)
    results: list[Any] = Parallel.runner(3, "mesh", roles=ROLES)(main, sys.argv[1] == "busy")
    print(json.dumps(results))
