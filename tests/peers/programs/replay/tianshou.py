import numpy as np
from measuring import cost_of, tell
from tianshou.data import Batch, VectorReplayBuffer

rng, rows = np.random.default_rng(0), 1_000_000


def transitions(count):
    return Batch(
        obs=rng.normal(size=(count, 4)).astype(np.float32),
        act=rng.integers(0, 2, size=count),
        rew=rng.random(count),
        obs_next=rng.normal(size=(count, 4)).astype(np.float32),
        terminated=rng.random(count) < 0.1,
        truncated=np.zeros(count, dtype=np.bool_),
    )


replay, few = VectorReplayBuffer(rows, 16), transitions(16)
for _ in range(rows // 16):
    replay.add(few)
adding = cost_of(lambda: replay.add(few), number=100)
sampling = cost_of(lambda: replay.sample(256), number=100)
tell("tianshou", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
