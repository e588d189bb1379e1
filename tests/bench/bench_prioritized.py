"""The cost of sampling and updating priorities in a replay, beside other libraries.

Each update is of another batch, as in training: a batch that is updated over and over again lies
in the processor's cache with all the sums above it, and costs half.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from ding_lite.rl import PrioritizedReplay, make_envs
from tests.bench import replay_peers
from tests.bench.bench_replay import BATCH_SIZE, CAPACITY, NUM_ADDED, BareRing, some
from tests.bench.harness import Row, compare
from tests.bench.replay_peers import ALPHA, BETA, PrioritizedPeer

NUM_BATCHES = 200
FORMS = {"numpy": False, "numba": True}


def run() -> list[Row]:
    """Measure with numpy alone and, where the extra `fast` is installed, with numba."""
    full, few = some(CAPACITY), some(NUM_ADDED)
    rng = np.random.default_rng(0)
    priorities = (rng.random(CAPACITY) + 0.01).astype(np.float32)
    spec, ring = make_envs("CartPole-v1", 1).spec, BareRing(full)
    ours: dict[str, PrioritizedReplay] = {}
    for form, fast in FORMS.items():
        if fast and not replay_peers.is_installed("numba"):
            continue
        replay = PrioritizedReplay(spec, capacity=CAPACITY, alpha=ALPHA, beta=BETA, fast=fast)
        replay.add(full)
        state = replay.state_dict()
        state["values"] = (priorities + 1e-6).astype(np.float64) ** ALPHA
        replay.load_state_dict(state)
        ours[form] = replay

    rows = []
    for form, replay in ours.items():
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
                lambda: ring.add(few),
                baseline_name="numpy ring",
                number=500,
            ),
        ]
    for peer in replay_peers.prioritized(full, priorities, batch_size=BATCH_SIZE):
        rows += [row for form in ours for row in beside(peer, form, ours[form])]
    return rows


TARGETS = {
    ("sample", "numpy", "tianshou"): 0.8,
    ("sample", "numpy", "cpprb"): 0.4,
    ("sample", "numba", "tianshou"): 0.8,
    ("sample", "numba", "cpprb"): 0.4,
    ("update", "numpy", "tianshou"): 2.0,
    ("update", "numba", "tianshou"): 1.0,
    ("update", "numba", "cpprb"): 1.0,
}


def beside(peer: PrioritizedPeer, form: str, replay: PrioritizedReplay) -> list[Row]:
    """Measure one form of ours beside one other library's."""
    rng = np.random.default_rng(0)
    amounts = [rng.random(BATCH_SIZE).astype(np.float32) for _ in range(NUM_BATCHES)]
    batches = [replay.sample(BATCH_SIZE) for _ in range(NUM_BATCHES)]
    slots = [batch.serial % CAPACITY for batch in batches]
    mine, theirs = (
        cycle(zip(batches, amounts, strict=True)),
        cycle(zip(slots, amounts, strict=True)),
    )

    def update() -> None:
        batch, amount = next(mine)
        replay.update_priorities(batch, amount)

    def update_theirs() -> None:
        slot, amount = next(theirs)
        peer.update(slot, amount)

    common: dict[str, Any] = {"baseline_name": peer.version, "number": NUM_BATCHES}
    return [
        compare(
            f"prioritized replay, {form}: sample {BATCH_SIZE}, beside {peer.name}",
            lambda: replay.sample(BATCH_SIZE),
            peer.sample,
            target=TARGETS["sample", form, peer.name],
            **common,
        ),
        compare(
            f"prioritized replay, {form}: update {BATCH_SIZE}, beside {peer.name}",
            update,
            update_theirs,
            target=TARGETS.get(("update", form, peer.name)),
            **common,
        ),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in run():
        print(row)
