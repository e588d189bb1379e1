"""The cost of sampling and updating priorities in a replay, beside a ring without priorities.

Each update is of another batch, as in training: a batch that is updated over and over again lies
in the processor's cache with all the sums above it, and costs half.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import numpy as np

from ding_lite.rl import PrioritizedReplay, make_envs
from tests.bench.bench_replay import BATCH_SIZE, CAPACITY, NUM_ADDED, BareRing, some
from tests.bench.harness import Row, compare, measure

ALPHA, BETA = 0.6, 0.4
NUM_BATCHES = 200
FORMS = {"numpy": False, "numba": True}
GOOD_UPDATE_US = {"numpy": 80.0, "numba": 20.0}


def run() -> list[Row]:
    full, few = some(CAPACITY), some(NUM_ADDED)
    rng = np.random.default_rng(0)
    values = (rng.random(CAPACITY) + 0.01) ** ALPHA
    spec, ring = make_envs("CartPole-v1", 1).spec, BareRing(full)
    rows = []
    for form, fast in FORMS.items():
        if fast and find_spec("numba") is None:
            continue
        replay = PrioritizedReplay(spec, capacity=CAPACITY, alpha=ALPHA, beta=BETA, fast=fast)
        replay.add(full)
        replay.load_state_dict({**replay.state_dict(), "values": values})
        batches = cycle(
            [
                (replay.sample(BATCH_SIZE), rng.random(BATCH_SIZE).astype(np.float32))
                for _ in range(NUM_BATCHES)
            ]
        )

        rows += [
            compare(
                f"prioritized replay, {form}: sample {BATCH_SIZE}, capacity 1e6, as tensors",
                partial(replay.sample, BATCH_SIZE),
                ring.sample,
                baseline_name="numpy ring, uniform, as arrays",
                number=200,
                tracked=form == "numpy",
            ),
            compare(
                f"prioritized replay, {form}: add {NUM_ADDED}, capacity 1e6",
                partial(replay.add, few),
                partial(ring.add, few),
                baseline_name="numpy ring",
                number=500,
            ),
            measure(
                f"prioritized replay, {form}: update {BATCH_SIZE}, capacity 1e6",
                partial(update, replay, batches),
                number=NUM_BATCHES,
                target=GOOD_UPDATE_US[form],
            ),
        ]
    return rows


def update(replay: PrioritizedReplay, batches: Iterator[tuple[Any, Any]]) -> None:
    replay.update_priorities(*next(batches))
