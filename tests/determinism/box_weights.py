"""Train a policy for box actions briefly and print the hash of its weights."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from ding_lite.nest import leaves
from ding_lite.recipes.table import RECIPES
from ding_lite.rl import NStep, PrioritizedReplay, make_envs


def trained_hash(name: str, *, seed: int, updates: int = 100) -> str:
    """Collect and learn as a user would; return the hash of everything a resume needs."""
    recipe = RECIPES[name]
    envs = make_envs("Pendulum-v1", 4, seed=seed, mode="sync")
    config = recipe.policy_config(seed=seed, hidden=(32, 32), n_step=2, batch_size=64)
    policy = recipe.policy(envs.spec, config)
    replay = PrioritizedReplay(envs.spec, capacity=500, seed=seed)
    n_step = NStep(policy.n_step, policy.gamma, 4)
    done = 0
    while done < updates:
        replay.add(n_step(envs.step(policy.act(envs.obs))))
        if len(replay) >= 64:
            batch = replay.sample(64)
            replay.update_priorities(batch, np.asarray(policy.learn(batch)["td_error"]))
            done += 1

    digest = hashlib.sha256()
    for path, leaf in leaves(policy.state_dict()):
        digest.update(repr(path).encode())
        digest.update(repr(leaf.tolist() if hasattr(leaf, "tolist") else leaf).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name} {trained_hash(name, seed=0)}\n" for name in sys.argv[1:]))
