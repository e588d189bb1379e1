from itertools import cycle

import numpy as np
import torch
from measuring import cost_of, tell
from ours import transitions

from ding_lite.rl import PrioritizedReplay, make_envs

torch.set_num_threads(1)
rng, rows = np.random.default_rng(0), 1_000_000
replay = PrioritizedReplay(make_envs("CartPole-v1", 1).spec, capacity=rows, alpha=0.6, beta=0.4)
replay.add(transitions(rows))
for batch in [replay.sample(256) for _ in range(200)]:
    replay.update_priorities(batch, rng.random(256).astype(np.float32))
# Each update is of another batch: the sums above one that comes again lie in the cache.
batches = cycle([(replay.sample(256), rng.random(256).astype(np.float32)) for _ in range(200)])
sampling = cost_of(lambda: replay.sample(256), number=200)
updating = cost_of(lambda: replay.update_priorities(*next(batches)), number=200)
tell("ding_lite", **{"sample": sampling * 1e6, "update": updating * 1e6})
