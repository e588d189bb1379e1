"""Train policies briefly and print the hashes of all that a resume needs."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from typing import Any

import numpy as np

from ding_lite.nest import leaves
from ding_lite.recipes.table import RECIPES
from ding_lite.rl import NStep, PrioritizedReplay, ReplayBuffer, make_envs

RUNS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    **{
        f"dqn {mode}": (
            "CartPole-v1",
            mode,
            {"max_grad_norm": 10.0, "lr_end": 1e-4, "lr_updates": 30},
        )
        for mode in ("native", "sync")
    },
    **{name: ("Pendulum-v1", "sync", {"n_step": 2}) for name in ("ddpg", "td3", "sac")},
}
"""Environment, mode of environments and settings of each policy."""


def trained_hash(run: str, *, seed: int = 0, updates: int = 40) -> str:
    """Collect and learn as a user would; return the hash of everything a resume needs."""
    env, mode, settings = RUNS[run]
    recipe = RECIPES[run.split()[0]]
    envs = make_envs(env, 4, seed=seed, mode=mode)
    config = recipe.policy_config(seed=seed, hidden=(16, 16), batch_size=32, **settings)
    policy: Any = recipe.policy(envs.spec, config)
    # Smaller than what is collected, so that it is overwritten.
    replay_class = ReplayBuffer if "dqn" in run else PrioritizedReplay
    replay: Any = replay_class(envs.spec, capacity=150, seed=seed)
    n_step = NStep(policy.n_step, policy.gamma, 4)
    while policy.train_iter < updates:
        replay.add(n_step(envs.step(policy.act(envs.obs))))
        if len(replay) >= 64:
            batch = replay.sample(32)
            found = policy.learn(batch)
            if isinstance(replay, PrioritizedReplay):
                replay.update_priorities(batch, np.asarray(found["td_error"]))

    digest = hashlib.sha256()
    for path, leaf in leaves(policy.state_dict()):
        digest.update(repr(path).encode())
        digest.update(np.asarray(leaf).tobytes() if hasattr(leaf, "shape") else repr(leaf).encode())
    return digest.hexdigest()


first_hash = cache(trained_hash)
"""The hash of the first training of this process."""

if __name__ == "__main__":
    sys.stdout.write("".join(f"{run} {trained_hash(run)}\n" for run in RUNS))
