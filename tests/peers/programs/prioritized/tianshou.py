from itertools import cycle

import numpy as np
from measuring import cost_of, tell
from tianshou.data import Batch, PrioritizedVectorReplayBuffer

rng, rows = np.random.default_rng(0), 1_000_000
replay = PrioritizedVectorReplayBuffer(rows, 16, alpha=0.6, beta=0.4)
few = Batch(
    obs=rng.normal(size=(16, 4)).astype(np.float32),
    act=rng.integers(0, 2, size=16),
    rew=rng.random(16),
    obs_next=rng.normal(size=(16, 4)).astype(np.float32),
    terminated=rng.random(16) < 0.1,
    truncated=np.zeros(16, dtype=np.bool_),
)
for _ in range(rows // 16):
    replay.add(few)
replay.update_weight(np.arange(rows), rng.random(rows) + 0.01)
batches = cycle([(rng.integers(rows, size=256), rng.random(256)) for _ in range(200)])
sampling = cost_of(lambda: replay.sample(256), number=100)
updating = cost_of(lambda: replay.update_weight(*next(batches)), number=100)
tell("tianshou", **{"sample": sampling * 1e6, "update": updating * 1e6})
