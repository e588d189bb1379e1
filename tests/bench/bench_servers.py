"""The cost of weights from a `ModelServer`, and of gradients to a `GradientServer`.

The other nodes are processes of their own, on this machine. A version's time is from `publish`
to `fetch`, told by the monotonic clock, which is the same in all processes; its baseline is one
bare copy of as many bytes, in the same run.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np
import torch

from ding_lite import Parallel
from ding_lite.distributed import GradientServer, ModelServer, World
from ding_lite.rl import A2C, A2CConfig, make_envs
from tests.bench.harness import Row, row_from_samples

NUM_TENSORS, MILLION = 20, 1_000_000
WARM_UP, REPEATS = 10, 41
NUM_LOOKS, NUM_PUSHES = 2_000, 2_000
SIZES = (10_000, 10 * MILLION)


def run() -> list[Row]:
    rows = []
    for half in (False, True):
        copied, fetched, looked = Parallel.runner(2, "star")(models, half)[1]
        words = "half precision" if half else "full precision"
        rows += [
            row_from_samples(
                f"model server: a new version of 10 M parameters, {words}, publish to fetched",
                fetched,
                baseline=copied,
                baseline_name="one warm copy in full precision",
                unit="ms",
                target=3.0,
                tracked=not half,
            ),
            *(
                row_from_samples(
                    f"model server: fetch an unchanged version of {size:,} parameters, {words}",
                    seconds,
                    unit="us",
                    target=200.0,
                )
                for size, seconds in zip(SIZES, looked, strict=True)
            ),
        ]
    pushes, pulls = Parallel.runner(2, "star", roles=["server", "agent"])(gradients)[1]
    rows.append(row_from_samples("gradient server: push, until the receipt", pushes, unit="us"))
    rows.append(row_from_samples("gradient server: pull a new version", pulls, unit="us"))
    return rows


def models(half: bool) -> tuple[list[float], list[float], list[list[float]]] | None:
    """Run a node: node 0 publishes, node 1 fetches, and says what everything took."""
    world = World.current()
    everybody = world.group("node.*")
    small, large = (ModelServer(world, name=str(size)) for size in SIZES)
    if world.node_id == 0:
        weights = [weights_of(size) for size in SIZES]
        small.publish(weights[0], half=half)
        for _ in range(WARM_UP + REPEATS):
            everybody.barrier()
            began = monotonic()
            large.publish(weights[1], half=half)
            everybody.broadcast(began)
        everybody.barrier()
        return None

    copied, fetched, version = [], [], None
    source, target = (np.ones(10 * MILLION, np.float32) for _ in range(2))
    for _ in range(WARM_UP + REPEATS):
        began = monotonic()
        np.copyto(target, source)
        copied.append(monotonic() - began)
        everybody.barrier()
        model = large.wait(newer_than=version)
        at = monotonic()
        assert model is not None
        version = model.version
        fetched.append(at - everybody.broadcast(None))
    looked: list[list[float]] = []
    for server in (small, large):
        known = server.wait()
        assert known is not None
        looked.append([])
        for _ in range(REPEATS):
            began = monotonic()
            for _ in range(NUM_LOOKS):
                assert server.fetch(newer_than=known.version) is None
            looked[-1].append((monotonic() - began) / NUM_LOOKS)
    everybody.barrier()
    return copied[WARM_UP:], fetched[WARM_UP:], looked


def weights_of(size: int) -> dict[str, torch.Tensor]:
    return {f"layer {k}": torch.ones(size // NUM_TENSORS) for k in range(NUM_TENSORS)}


def gradients() -> tuple[list[float], list[float]] | None:
    """Run a node: an agent pushes gradients of a small network and pulls its weights."""
    world = World.current()
    policy = A2C(make_envs("CartPole-v1", 1).spec, A2CConfig())
    server = GradientServer(world.group("server"), policy)
    everybody = world.group("node.*")
    everybody.barrier()
    taken: dict[str, list[float]] = {"push": [], "pull": []}
    if world.node_id == 1:
        grad_P = torch.full_like(flat_weights(policy), 1e-4)
        for _ in range(NUM_PUSHES):
            began = monotonic()
            server.push(grad_P)
            pushed = monotonic()
            server.pull(policy)
            taken["push"].append(pushed - began)
            taken["pull"].append(monotonic() - pushed)
    everybody.barrier()
    return (taken["push"], taken["pull"]) if world.node_id == 1 else None


def flat_weights(policy: Any) -> torch.Tensor:
    return torch.cat([weights.flatten() for weights in policy.weights().values()])
