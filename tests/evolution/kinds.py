"""Agents of every kind of network that evolution changes, and what their networks compute."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete

from ding_lite.evolution.agent import Agent, make_agent
from ding_lite.rl import A2C, DDPG, DQN, IMPALA, PPO, R2D2, SAC, TD3, EnvSpec
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from tests.rl.rollouts import CARTPOLE, PENDULUM, draw_obs, lesson

OWN = (Conv(6, 3, 1, padding=1), Conv(8, 3, 2), Conv(8, 1, 1))
SCREEN, MAP, SPEED = Box(0, 255, (10, 10, 1), np.uint8), Box(-1.0, 1.0, (8, 8)), Box(-1, 1, (2,))
IMAGE = EnvSpec(env_id="x", obs_space=SCREEN, action_space=Discrete(3))
PICTURE = replace(IMAGE, action_space=SPEED)
PARTS = replace(IMAGE, obs_space=Dict(at=Discrete(3), camera=SCREEN, map=MAP, speed=SPEED))

SMALL: dict[str, Any] = {"hidden": (16, 8)}
Kind = tuple[Any, EnvSpec, dict[str, Any]]
VECTORS: dict[str, Kind] = {
    "dqn": (DQN, CARTPOLE, {}),
    "dueling dqn": (DQN, CARTPOLE, {"dueling": True}),
    "dqn with tanh": (DQN, CARTPOLE, {"activation": "tanh"}),
    "dqn with elu": (DQN, CARTPOLE, {"activation": "elu"}),
    "dueling dqn with silu": (DQN, CARTPOLE, {"activation": "silu", "dueling": True}),
    "dqn with a norm": (DQN, CARTPOLE, {"normalize_obs": True}),
    "ddpg": (DDPG, PENDULUM, {}),
    "td3": (TD3, PENDULUM, {}),
    "sac": (SAC, PENDULUM, {}),
    "sac with gelu and a norm": (SAC, PENDULUM, {"activation": "gelu", "normalize_obs": True}),
    "ppo": (PPO, CARTPOLE, {}),
    "a2c with relu": (A2C, CARTPOLE, {"activation": "relu"}),
}
IMAGES: dict[str, Kind] = {
    "dqn of images": (DQN, IMAGE, {"hidden": (16,), "n_step": 1}),
    "dqn with own convolutions": (DQN, IMAGE, {**SMALL, "convs": OWN, "activation": "silu"}),
    "dueling dqn of images": (DQN, IMAGE, {"hidden": (16,), "dueling": True}),
    "dqn of parts": (DQN, PARTS, SMALL),
    "r2d2 of images": (R2D2, IMAGE, {**SMALL, "memory_size": 6, "activation": "gelu"}),
    "r2d2 of parts": (R2D2, PARTS, {"hidden": (16,), "memory": "gru", "convs": OWN}),
    "ddpg of images": (DDPG, PICTURE, {"hidden": (16, 12, 8)}),
    "td3 of images": (TD3, PICTURE, {"hidden": (16,), "activation": "elu", "convs": OWN}),
    "sac of parts": (SAC, replace(PARTS, action_space=SPEED), {**SMALL, "convs": OWN}),
    "ppo of images": (PPO, IMAGE, {"hidden": (16,)}),
    "impala of parts": (IMPALA, PARTS, SMALL),
}
LSTM: dict[str, Any] = {"memory": "lstm", "hidden": (12, 9), "memory_size": 10}
GRU: dict[str, Any] = {"memory": "gru", "hidden": (12,), "memory_size": 10}
MEMORIES: dict[str, Kind] = {
    "ppo, lstm": (PPO, CARTPOLE, LSTM),
    "ppo, gru of a box": (PPO, PENDULUM, GRU),
    "impala, gru of images": (IMPALA, IMAGE, GRU),
    "ppo, lstm of parts": (PPO, PARTS, LSTM),
}
# With memory of which a replay stores the states:
STORED: dict[str, Kind] = {"r2d2, lstm": (R2D2, CARTPOLE, LSTM), "r2d2, gru": (R2D2, CARTPOLE, GRU)}
KINDS = VECTORS | IMAGES | MEMORIES | STORED


def learned(kind: str, *, updates: int = 2, optimizer: Any = None, **settings: Any) -> Agent:
    policy, spec, config = KINDS[kind]
    agent = make_agent(policy(spec, {**config, **settings}, optimizer=optimizer))
    for seed in range(updates):
        agent.learn(lesson(agent.policy, seed))
    return agent


@torch.no_grad()
def computes(agent: Agent) -> list[Any]:
    """Return what each network of an agent computes, targets included."""
    policy: Any = agent.policy
    rng = np.random.default_rng(0)
    obs = draw_obs(rng, policy.spec, (20,))
    tensor = torch.from_numpy(obs)
    if hasattr(policy, "computes"):
        found: list[Any] = policy.computes(tensor)
        return found
    if isinstance(policy, ActorCriticPolicy):
        if policy.state_size:
            return _over_a_sequence(policy, rng)
        return [policy.values(obs), policy.net.act(policy._for_network(obs))]
    if isinstance(policy, DQN):
        target = policy._target_net.forward(policy._for_network(tensor))
        return [policy.q_values(obs), target.numpy().copy()]
    if isinstance(policy, R2D2):
        states = rng.normal(size=(20, 500)).astype(np.float32)  # begin alike in all widths
        state = torch.from_numpy(states[:, : policy.state_size])
        return [net(tensor, state)[0].numpy() for net in (policy.net, policy.target)]
    action, nets = np.zeros((20, *policy.spec.action_shape), np.float32), policy._networks
    found = [nets.target_critics.forward(tensor, torch.from_numpy(action)[None])]
    if nets.target_actor is not nets.actor:
        found.append(nets.target_actor.forward(tensor))
    targets = [each.numpy().copy() for each in found]
    return [policy.act(obs, explore=False), policy.q_values(obs, action), *targets]


def _over_a_sequence(policy: Any, rng: np.random.Generator) -> list[Any]:
    state, found = torch.zeros(6, policy.state_size), []
    for _ in range(8):
        seen = policy.spec.unpack(torch.from_numpy(draw_obs(rng, policy.spec, (6,))))
        *both, state = policy.module(seen, state)
        found += [each.numpy() for each in both]
    return found
