"""What a replay in shards costs: adding to one's own shard, and sampling 256 across two of them.

Two collectors hold 100,000 CartPole-like transitions each. The learner samples while they do
nothing, and while each adds batches of 16 as fast as it can. The baseline of both is the same
on a local `PrioritizedReplay`; a sample's target is in milliseconds, as it is mostly waiting.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ding_lite import Parallel
from ding_lite.distributed import ShardedReplay, World
from ding_lite.parallel.group import Group
from ding_lite.rl import PrioritizedReplay, make_envs
from ding_lite.runtime.local_router import LocalRouter
from tests.bench.bench_replay import NUM_ADDED, some
from tests.bench.harness import Row, compare

CAPACITY, BATCH_SIZE, NUM_SAMPLES, ADDING_S = 100_000, 256, 300, 4.0
SPEC = make_envs("CartPole-v1", 1).spec


def run() -> list[Row]:
    """Measure adding in this process, and print what sampling takes between processes."""
    few = some(NUM_ADDED)
    sharded = ShardedReplay(Group(LocalRouter(), (0,)), SPEC, shard_capacity=CAPACITY)
    local = PrioritizedReplay(SPEC, capacity=CAPACITY)
    for replay in (sharded, local):
        replay.add(some(CAPACITY))
    return [
        compare(
            f"sharded replay: add {NUM_ADDED} to the own shard of {CAPACITY:,}",
            partial(sharded.add, few),
            partial(local.add, few),
            baseline_name="PrioritizedReplay",
            number=500,
            target=1.3,
        )
    ]


def sampling(busy: bool) -> Any:
    """Run a node: milliseconds of a sample, or microseconds of adding (median, 99.9 percent)."""
    world = World.current()
    everybody, collectors = world.group("node.*"), world.group("collector")
    replay = ShardedReplay(collectors, SPEC, shard_capacity=CAPACITY, prefetch=False)
    taken: list[float] = []
    if collectors.is_member:
        replay.add(some(CAPACITY))
        few = some(NUM_ADDED)
        everybody.barrier()
        end = perf_counter() + ADDING_S * busy
        while (began := perf_counter()) < end:
            replay.add(few)
            taken.append(1e6 * (perf_counter() - began))
    else:
        everybody.barrier()
        for _ in range(NUM_SAMPLES):
            began = perf_counter()
            replay.sample(BATCH_SIZE)
            taken.append(1e3 * (perf_counter() - began))
    everybody.barrier()
    taken.sort()
    return (median(taken), taken[int(0.999 * len(taken))]) if taken else None


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in run():
        print(row)
    for busy in (False, True):
        runner = Parallel.runner(3, "mesh", roles=["learner", "collector", "collector"])
        print("adding" if busy else "idle", runner(sampling, busy))
