"""Train a DQN briefly and print the hash of its weights; run by test_dqn."""

from __future__ import annotations

import hashlib
import sys

from ding_lite.rl import DQN, DQNConfig, NStep, ReplayBuffer, make_envs
from ding_lite.rl.envs.vector import EnvsMode


def trained_hash(*, seed: int, mode: EnvsMode = "auto", updates: int = 200) -> str:
    """Collect and learn as a user would; return the hash of everything a resume needs."""
    envs = make_envs("CartPole-v1", 4, seed=seed, mode=mode)
    config = DQNConfig(seed=seed, hidden=(32, 32), max_grad_norm=10.0, lr_end=1e-4, lr_updates=150)
    policy = DQN(envs.spec, config)
    replay = ReplayBuffer(envs.spec, capacity=500, seed=seed)
    n_step = NStep(policy.n_step, policy.gamma, 4)
    while policy.train_iter < updates:
        transitions = n_step(envs.step(policy.act(envs.obs)))
        replay.add(transitions)
        if len(replay) >= 64:
            policy.learn(replay.sample(64))

    digest = hashlib.sha256()
    state = policy.state_dict()
    for part in ("q_net", "target_net", "adam"):
        for name, tensor in state[part].items():
            digest.update(name.encode() + tensor.numpy().tobytes())
    digest.update(state["rng"].tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(trained_hash(seed=0) + "\n")
