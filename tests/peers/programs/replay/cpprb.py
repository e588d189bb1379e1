import numpy as np
from cpprb import ReplayBuffer
from measuring import cost_of, tell

rng, rows = np.random.default_rng(0), 1_000_000
fields = {
    "obs": {"shape": 4, "dtype": np.float32},
    "act": {"dtype": np.int64},
    "rew": {"dtype": np.float32},
    "next_obs": {"shape": 4, "dtype": np.float32},
    "done": {"dtype": np.bool_},
}
replay = ReplayBuffer(rows, fields)


def transitions(count):
    return {
        "obs": rng.normal(size=(count, 4)).astype(np.float32),
        "act": rng.integers(0, 2, size=count),
        "rew": rng.random(count).astype(np.float32),
        "next_obs": rng.normal(size=(count, 4)).astype(np.float32),
        "done": rng.random(count) < 0.1,
    }


replay.add(**transitions(rows))
few = transitions(16)
adding = cost_of(lambda: replay.add(**few), number=1_000)
sampling = cost_of(lambda: replay.sample(256), number=500)
tell("cpprb", **{"add 16": adding * 1e6, "sample": sampling * 1e6})
