from itertools import cycle

import numpy as np
from cpprb import PrioritizedReplayBuffer
from measuring import cost_of, tell

rng, rows = np.random.default_rng(0), 1_000_000
fields = {"obs": {"shape": 4}, "act": {}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
replay = PrioritizedReplayBuffer(rows, fields, alpha=0.6)
replay.add(
    obs=rng.normal(size=(rows, 4)),
    act=rng.integers(0, 2, size=rows),
    rew=rng.random(rows),
    next_obs=rng.normal(size=(rows, 4)),
    done=rng.random(rows) < 0.1,
    priorities=rng.random(rows) + 0.01,
)
batches = cycle([(rng.integers(rows, size=256), rng.random(256)) for _ in range(200)])
sampling = cost_of(lambda: replay.sample(256, 0.4), number=200)
updating = cost_of(lambda: replay.update_priorities(*next(batches)), number=200)
tell("cpprb", **{"sample": sampling * 1e6, "update": updating * 1e6})
