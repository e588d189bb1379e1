"""Networks of trees with images: learned, saved, given away, and brought by users."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn
from torch.nn import functional as F

from ding_lite import Task, middleware as mw
from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    DQNConfig,
    EnvSpec,
    ReplayBuffer,
    make_envs,
    mean_return,
)
from ding_lite.rl.networks.conv import Conv
from ding_lite.rl.networks.parts import PartsEncoder
from tests.rl.partly import LENGTH

CAMERA = Box(0, 255, (9, 9, 3), dtype=np.uint8)
SPACE = Dict(
    camera=CAMERA,
    at=Discrete(3),
    speed=Box(-1.0, 1.0, (2,)),
    map=Box(-1.0, 1.0, (8, 8)),
)
SPEC = EnvSpec(env_id="x", obs_space=SPACE, action_space=Discrete(4))
BOX = EnvSpec(env_id="x", obs_space=SPACE, action_space=Box(-1.0, 1.0, (2,)))
PICTURE = replace(BOX, obs_space=CAMERA)
KINDS = pytest.mark.parametrize("kind", [A2C, PPO, IMPALA])


def random_tree(count, seed=0):
    SPACE.seed(seed)
    samples = [SPACE.sample() for _ in range(count)]
    return {key: np.stack([one[key] for one in samples]) for key in SPACE.spaces}


def as_tensors(obs):
    return SPEC.unpack(torch.from_numpy(obs))


def plain_features(weights, seen):
    """Compute the joined vector as a tutorial would."""
    found, has_parts = [], isinstance(seen, dict)
    for index, (key, part) in enumerate((seen if has_parts else {"camera": seen}).items()):
        x = part.float() / 255 if part.dtype == torch.uint8 else part
        for layer, stride in ((0, 1), (1, 2)):
            name = f"encoder.conv.{index}.{2 * layer}" if has_parts else f"conv.{layer}"
            if key in ("camera", "map"):
                kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
                x = F.conv2d(x, kernel, bias, stride=stride, padding=1).relu()
        found.append(x.flatten(1))
    return torch.cat(found, dim=1)


def plain_hidden(weights, x, activation, depth=2):
    for layer in range(depth):
        x = activation(
            F.linear(x, weights[f"torso.{layer}.weight"], weights[f"torso.{layer}.bias"])
        )
    return x


def test_the_values_of_dqn_are_those_of_plain_torch():
    policy = DQN(SPEC, DQNConfig(hidden=(16, 8)))
    obs = SPEC.pack(random_tree(5))
    weights = policy.weights()
    hidden = plain_hidden(weights, plain_features(weights, as_tensors(obs)), torch.relu)
    expected = F.linear(hidden, weights["head.weight"], weights["head.bias"])
    np.testing.assert_allclose(policy.q_values(obs), expected, atol=1e-5)
    np.testing.assert_allclose(policy.module(as_tensors(obs)).detach(), expected, atol=1e-5)
    assert isinstance(policy.module.encoder, PartsEncoder)


@KINDS
def test_outputs_and_values_of_actor_critics_are_those_of_plain_torch(kind):
    policy = kind(SPEC, {"hidden": (16, 8)})
    obs = SPEC.pack(random_tree(5))
    weights = policy.weights()
    hidden = plain_hidden(weights, plain_features(weights, as_tensors(obs)), torch.tanh)
    outputs = F.linear(hidden, weights["actor.head.weight"], weights["actor.head.bias"])
    value = F.linear(hidden, weights["critic.head.weight"], weights["critic.head.bias"])[:, 0]
    np.testing.assert_allclose(policy.values(obs), value, atol=1e-5)
    np.testing.assert_array_equal(policy.act(obs, explore=False), outputs.argmax(dim=1))
    assert isinstance(policy.net.module.encoder, PartsEncoder)


@pytest.mark.parametrize(
    ("kind", "hidden", "spec"),
    [(DDPG, (16, 8), BOX), (SAC, (16, 8), BOX), (SAC, (8,), PICTURE), (TD3, (16, 8), PICTURE)],
)
def test_actions_and_values_of_box_policies_are_those_of_plain_torch(kind, hidden, spec):
    policy, tree = kind(spec, {"hidden": hidden}), random_tree(5)
    obs = spec.pack(tree if spec is BOX else tree["camera"])
    action = np.full((5, 2), 0.3, np.float32)
    tree, weights = spec.unpack(torch.from_numpy(obs)), policy.weights()
    depth = len(hidden)
    hidden = plain_hidden(weights, plain_features(weights, tree), torch.relu, depth=depth)
    best = F.linear(hidden, weights["head.weight"], weights["head.bias"])[:, :2].tanh()
    np.testing.assert_allclose(policy.act(obs, explore=False), best, atol=1e-5)
    np.testing.assert_allclose(policy.module(tree).detach(), best, atol=1e-5)

    every, values = policy.state_dict()["weights"], []
    start = "critics.0.encoder."
    shared = {n.removeprefix(start): each for n, each in every.items() if n.startswith(start)}
    seen = plain_hidden(shared, plain_features(shared, tree), torch.relu, depth=max(depth - 1, 1))
    for k in range(policy.form.num_critics):
        x = torch.cat((seen, torch.from_numpy(action)), dim=1)
        for layer, then in (("0", torch.relu), ("head", torch.Tensor.flatten)):
            name = f"critics.0.critics.{k}.{layer}"
            x = then(F.linear(x, every[f"{name}.weight"], every[f"{name}.bias"]))
        values.append(x)
    np.testing.assert_allclose(policy.q_values(obs, action), torch.stack(values).amin(0), atol=1e-5)


def learn_from_replay(policy, envs, *, warmup, steps):
    replay = ReplayBuffer(envs.spec, capacity=4_000)
    with Task() as task:
        task.use(mw.random_warmup(envs, replay, steps=warmup))
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay))
        task.run(max_step=steps)


def test_what_only_the_camera_shows_is_learned_by_dqn():
    settings = {"by_camera": True, "masked": True}
    with make_envs("partly/Partly-v0", 8, mode="sync", env_args=settings) as envs:
        policy = DQN(envs.spec, DQNConfig(gamma=0.1, n_step=1, epsilon_steps=500, batch_size=64))
        learn_from_replay(policy, envs, warmup=200, steps=150)
        assert mean_return(policy, envs, episodes=64) > 0.9 * LENGTH


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (DDPG, {}),
        pytest.param(TD3, {}, marks=pytest.mark.slow),
        pytest.param(SAC, {"alpha": 0.05}, marks=pytest.mark.slow),
    ],
)
def test_what_only_the_camera_shows_is_learned_by_box_policies(kind, more):
    settings = {"by_camera": True, "action": "amount"}
    with make_envs("partly/Partly-v0", 8, mode="sync", env_args=settings) as envs:
        config = {"gamma": 0.1, "hidden": (32, 32), "actor_lr": 1e-3, "critic_lr": 1e-3}
        policy = kind(envs.spec, {"batch_size": 64, **config, **more})
        learn_from_replay(policy, envs, warmup=400, steps=400)
        assert mean_return(policy, envs, episodes=64) > 0.8 * LENGTH  # without the camera: a third


class OwnNet(nn.Module):
    """Takes the tree as it is: bytes as bytes, numbers one-hot."""

    def __init__(self, num_outputs=4):
        super().__init__()
        self.camera = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 * 49 + 3 + 2 + 64, num_outputs)

    def forward(self, tree):
        assert tree["camera"].dtype == torch.uint8
        seen = torch.relu(self.camera(tree["camera"] / 255)).flatten(1)
        parts = [seen, tree["at"], tree["speed"], tree["map"].flatten(1)]
        return self.head(torch.cat(parts, dim=1))


def test_a_network_of_a_user_gets_the_tree():
    policy = DQN(SPEC, network=OwnNet())
    obs = SPEC.pack(random_tree(6))
    expected = policy.module(as_tensors(obs)).detach().numpy()
    np.testing.assert_array_equal(policy.q_values(obs), expected)
    np.testing.assert_array_equal(policy.q_values(random_tree(6)), expected)
    with pytest.raises(ShapeError, match=r"returned float32 \(2, 5\)"):
        DQN(SPEC, network=OwnNet(5))
    with pytest.raises(ConfigError, match=r"'camera': uint8 \(2, 3, 9, 9\).* 'speed': float32"):
        DQN(SPEC, network=nn.Linear(3, 4))


class OfParts(nn.Module):
    """A network of a user that gets the parts of an observation."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, obs: Any) -> torch.Tensor:
        found: torch.Tensor = self.layer(torch.cat((obs["a"], obs["b"]), dim=1))
        return found


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", [DQN, SAC])
def test_a_plain_module_normalises_each_part_of_a_tree_as_the_policy_does(
    kind: Any, own: bool
) -> None:
    obs_space = Dict(a=Box(-1.0, 1.0, (3,)), b=Discrete(2))
    action_space: Any = Discrete(4) if kind is DQN else Box(-1.0, 1.0, (2,))
    spec = EnvSpec(env_id="x", obs_space=obs_space, action_space=action_space)
    networks = {"network" if kind is DQN else "actor": OfParts} if own else {}
    policy = kind(spec, {"normalize_obs": True}, **networks)
    rng = np.random.default_rng(0)
    obs = spec.pack({"a": 9.0 + rng.normal(size=(50, 3)), "b": rng.integers(2, size=50)})
    untrained = policy.act(obs, explore=False)
    policy.norm.update(obs)
    found = policy.module(spec.unpack(torch.from_numpy(obs))).detach().numpy()
    best = policy.act(obs, explore=False)
    assert (best != untrained).any()
    np.testing.assert_allclose(found.argmax(1) if kind is DQN else found, best, atol=1e-5)


def test_images_of_a_tree_that_are_too_small_for_a_torso_are_refused():
    with pytest.raises(ConfigError, match=r"`torso` is 'nature'.*\(3, 9, 9\)"):
        DQN(SPEC, DQNConfig(torso="nature"))
    flat = DQN(SPEC, DQNConfig(torso="mlp"))
    assert flat.weights()["torso.0.weight"].shape[1] == 3 * 81 + 3 + 2 + 64


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (SPEC.obs_space, r"fixed factors with gymnasium's `TransformObservation`: make_envs"),
        (Dict(stacked=Box(-1.0, 1.0, (3, 4)), flag=Discrete(2)), r"vectors by `FlattenObservation"),
    ],
)
def test_normalised_images_are_refused_with_wrappers_that_help(space, advice):
    with pytest.raises(ConfigError, match=f"have images or parts of bytes.*{advice}"):
        DQN(replace(SPEC, obs_space=space), DQNConfig(normalize_obs=True))


@pytest.mark.parametrize("kind", [DQN, A2C, PPO, IMPALA, DDPG, TD3, SAC])
def test_convolutions_of_ones_own_see_each_image(kind: Any) -> None:
    convs = (Conv(5, 4, 2), Conv(3, 2, 1))
    spec = BOX if kind in (DDPG, TD3, SAC) else SPEC
    policy = kind(spec, {"convs": convs, "hidden": (8,)})
    shapes = [tuple(tensor.shape) for tensor in policy.weights().values() if tensor.dim() == 4]
    assert sorted(shapes) == [(3, 5, 2, 2), (3, 5, 2, 2), (5, 1, 4, 4), (5, 3, 4, 4)]
    inputs = policy.weights()["torso.0.weight"].shape[1]
    assert inputs == 12 + 3 + 2 + 12  # 9 x 9 and 8 x 8 pixels become 3 x 3, then 3 of 2 x 2
    flat = kind(spec, {"convs": (), "hidden": (8,)})
    assert not any("conv" in name for name in flat.weights())
    with pytest.raises(ConfigError, match=r"`convs` are given, .*too small"):
        kind(spec, {"convs": (Conv(5, 20, 2),)})
