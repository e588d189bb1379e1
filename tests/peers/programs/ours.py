"""The batches of random transitions that the programs of ding_lite fill their replays with."""

from __future__ import annotations

import numpy as np

from ding_lite.rl import Transitions

_rng = np.random.default_rng(0)


def transitions(rows):
    return Transitions(
        obs=_rng.normal(size=(rows, 4)).astype(np.float32),
        action=_rng.integers(0, 2, size=rows),
        reward=_rng.random(rows).astype(np.float32),
        next_obs=_rng.normal(size=(rows, 4)).astype(np.float32),
        terminated=_rng.random(rows) < 0.1,
        truncated=np.zeros(rows, dtype=np.bool_),
        num_steps=np.ones(rows, dtype=np.int32),
    )
