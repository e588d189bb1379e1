"""What adding to and sampling from a replay cost, beside bare numpy; and a step of CartPole."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch

from ding_lite.rl import ReplayBuffer, Transitions, make_envs
from tests.bench.harness import Row, compare

CAPACITY = 1_000_000
NUM_ADDED = 16
NUM_ENVS = 8
BATCH_SIZE = 256


def run() -> list[Row]:
    """Fill a large replay, then measure at its full size."""
    replay = ReplayBuffer(make_envs("CartPole-v1", 1).spec, capacity=CAPACITY)
    replay.add(some(CAPACITY))
    few = some(NUM_ADDED)
    ring = BareRing(some(CAPACITY))
    ours, theirs = make_envs("CartPole-v1", NUM_ENVS), gymnasium.make_vec("CartPole-v1", NUM_ENVS)
    theirs.reset(seed=0)
    actions = np.tile([0, 1], NUM_ENVS // 2)
    return [
        compare(
            f"replay: add {NUM_ADDED}, capacity 1e6",
            lambda: replay.add(few),
            lambda: ring.add(few),
            baseline_name="numpy ring",
            number=2_000,
            target=3.0,
        ),
        compare(
            f"replay: sample {BATCH_SIZE}, capacity 1e6, as tensors",
            lambda: replay.sample(BATCH_SIZE),
            ring.sample,
            baseline_name="numpy ring, np.take, as arrays",
            number=500,
            target=1.5,
            tracked=True,
        ),
        compare(
            f"CartPole-v1, {NUM_ENVS} envs: step, true last observation kept",
            lambda: ours.step(actions),
            lambda: theirs.step(actions),
            baseline_name="gymnasium's vector form",
            number=500,
            target=1.5,
        ),
    ]


class BareRing:
    """Arrays and a position: the least that does the work."""

    def __init__(self, full: Transitions) -> None:
        """Start full."""
        self.arrays = {name: getattr(full, name).copy() for name in Transitions.__slots__}
        self.position = 0
        self.rng = np.random.default_rng(0)

    def add(self, transitions: Transitions) -> None:
        """Write into slices."""
        end = self.position + NUM_ADDED
        for name, array in self.arrays.items():
            array[self.position : end] = getattr(transitions, name)
        self.position = end % CAPACITY

    def sample(self) -> list[np.ndarray]:
        """Take random rows of every array."""
        index = self.rng.integers(0, CAPACITY, size=BATCH_SIZE)
        return [np.take(array, index, axis=0) for array in self.arrays.values()]


def some(count: int) -> Transitions:
    """Make transitions of CartPole's shapes."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(count, 4)).astype(np.float32)
    return Transitions(
        obs=obs,
        action=rng.integers(0, 2, size=count),
        reward=np.ones(count, dtype=np.float32),
        next_obs=obs + 1.0,
        terminated=rng.random(count) < 0.1,
        truncated=np.zeros(count, dtype=np.bool_),
        num_steps=np.ones(count, dtype=np.int32),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for row in run():
        print(row)
