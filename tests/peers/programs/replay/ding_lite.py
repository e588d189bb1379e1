import numpy as np
from measuring import cost_of, tell

from ding_lite.rl import ReplayBuffer, Transitions, make_envs

rng = np.random.default_rng(0)


def transitions(rows):
    return Transitions(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        action=rng.integers(0, 2, size=rows),
        reward=rng.random(rows).astype(np.float32),
        next_obs=rng.normal(size=(rows, 4)).astype(np.float32),
        terminated=rng.random(rows) < 0.1,
        truncated=np.zeros(rows, dtype=np.bool_),
        num_steps=np.ones(rows, dtype=np.int32),
    )


replay = ReplayBuffer(make_envs("CartPole-v1", 1).spec, capacity=1_000_000)
replay.add(transitions(1_000_000))
few = transitions(16)
adding = cost_of(lambda: replay.add(few), number=1_000)
sampling = cost_of(lambda: replay.sample(256), number=500)
tell("ding_lite", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
