"""DDPG, TD3 and SAC with networks and optimisers of users."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

from ding_lite.errors import ConfigError
from tests.rl.nets import Joins
from tests.rl.policies.test_box_policy import (
    ARM,
    EVERY_KIND,
    HIGH,
    KINDS,
    LOW,
    PICTURES,
    batch,
    prioritized,
)
from tests.rl.reference_box import linears, load, make_mlp


def critic_for(spec, hidden=(16, 12)):
    return Joins(make_mlp((spec.obs_shape[0] + spec.action_space.shape[0], *hidden, 1)))


def actor_for(kind, spec=ARM, hidden=(16, 12)):
    size = spec.action_space.shape[0] * (2 if kind == "sac" else 1)
    mlp = make_mlp((spec.obs_shape[0], *hidden, size))
    return mlp if kind == "sac" else nn.Sequential(*mlp, nn.Tanh())


def noisy_actor(kind):
    layers = [nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, *actor_for(kind, replace_obs(ARM, 16)))


def replace_obs(spec, length):
    return replace(spec, obs_space=Box(-1.0, 1.0, (length,)))


def noisy_critic(spec):
    net = critic_for(spec).net
    return Joins(nn.Sequential(nn.BatchNorm1d(5), net[0], nn.Dropout(0.2), *net[1:]))


def make(kind, spec=ARM, *, actor=None, critic=critic_for, optimizer=None, **settings):
    described = {"hidden": (16, 12)} if critic is None else {}
    config = {**described, "batch_size": 32, **settings}
    actor = actor or (lambda spec: actor_for(kind, spec))
    return KINDS[kind](spec, config, actor=actor, critic=critic, optimizer=optimizer)


def noisy(kind, **more):
    return make(kind, actor=lambda spec: noisy_actor(kind), critic=noisy_critic, **more)


def copy_house_weights(kind, house, own):
    """Copy the weights of built-in networks, targets too, to modules with the same layers."""
    weights = house.state_dict()["weights"]
    actor, critics = own._networks._own["actor."].module, own._networks._own["critics."].module
    for layer, linear in enumerate(linears(actor)):
        name = f"torso.{layer}" if layer < 2 else "head"
        load(linear, weights[f"actor.{name}.weight"], weights[f"actor.{name}.bias"])
    for index, critic in enumerate(critics):
        for layer, linear in enumerate(linears(critic.net)):
            weight, bias = (weights[f"critics.{layer}.{part}"] for part in ("weight", "bias"))
            load(linear, weight[index], bias[index])
    flat, target = (side.flat for side in own.flat_weights)
    target.copy_(flat[: len(target)])


@EVERY_KIND
def test_networks_of_a_user_learn_as_the_built_in_ones_do(kind):
    house = KINDS[kind](ARM, {"hidden": (16, 12)})
    own = make(kind)
    copy_house_weights(kind, house, own)
    own._rng.bit_generator.state = house._rng.bit_generator.state
    for seed in range(20):
        drawn = prioritized(seed) if seed % 2 else batch(seed)
        expected, found = house.learn(drawn), own.learn(drawn)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-4)
    obs = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    for explore in (False, True):
        ours, theirs = own.act(obs, explore=explore), house.act(obs, explore=explore)
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)
    action = house.act(obs, explore=False)
    np.testing.assert_allclose(own.q_values(obs, action), house.q_values(obs, action), atol=1e-2)


@EVERY_KIND
def test_an_optimizer_of_a_user_steps_critics_actor_and_temperature(kind):
    policy = make(kind, optimizer=torch.optim.SGD, critic_lr=0.5, actor_lr=0.25, target_tau=1.0)
    for house in (policy, KINDS[kind](ARM, policy.config, optimizer=torch.optim.SGD)):
        before, border = house.flat_weights[0].flat.clone(), house._networks.border
        grads: list[torch.Tensor] = []
        house.reduce_gradient = lambda grad_P, seen=grads: seen.append(grad_P.clone())
        while len(grads) < 2 or (kind == "td3" and len(grads) < 3):
            house.learn(batch(0))
        if kind == "td3":  # the critics have stepped twice
            grads = [grads[0] + grads[1], grads[2]]
        moved = before - house.flat_weights[0].flat
        torch.testing.assert_close(moved[:border], 0.5 * grads[0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(moved[border:], 0.25 * grads[1], rtol=1e-3, atol=1e-5)


def test_a_temperature_that_does_not_learn_does_not_decay():
    decaying = partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    policy = make("sac", optimizer=decaying, alpha=0.3, learn_alpha=False)
    for seed in range(3):
        policy.learn(batch(seed))
    assert policy.alpha == pytest.approx(0.3)


@EVERY_KIND
def test_running_means_move_while_it_learns_only_and_targets_have_them(kind):
    policy = noisy(kind, policy_delay=1) if kind == "td3" else noisy(kind)
    obs = np.ones((5, 3), dtype=np.float32)
    before = policy.weights()
    np.testing.assert_array_equal(policy.act(obs, explore=False), policy.act(obs, explore=False))
    policy.q_values(obs, policy.act(obs))
    assert before["1.num_batches_tracked"] == policy.weights()["1.num_batches_tracked"] == 0
    policy.learn(batch(0))
    state = policy.state_dict()
    of_critic = "critics.0.net.0.num_batches_tracked"
    assert state["weights"]["actor.1.num_batches_tracked"] == state["weights"][of_critic] == 1
    assert state["target"][of_critic] == 1


@EVERY_KIND
def test_the_module_acts_as_the_policy_does(kind):
    house = KINDS[kind](ARM, {"hidden": (16, 12), "activation": "silu"})
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    for policy in (house, noisy(kind)):
        policy.learn(batch(0))
        module = policy.module.eval()
        with torch.no_grad():
            found = module(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(found, policy.act(obs, explore=False), rtol=1e-4, atol=1e-5)
        assert (found >= LOW).all()
        assert (found <= HIGH).all()
        assert np.isfinite(policy.learn(batch(1))["loss"])
    if kind != "td3":  # its actor was not due
        assert policy.weights()["1.num_batches_tracked"] == 2, "learning is not switched off"


class OfBytes(nn.Module):
    """Sees a picture of bytes, alone or beside the joints."""

    def __init__(self, num_others, num_outputs):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 2, 4, 2), nn.Linear(32 + num_others, num_outputs)

    def forward(self, obs, *others):
        if isinstance(obs, dict):
            obs, others = obs["camera"], (obs["joints"], *others)
        assert obs.dtype == torch.uint8
        features = torch.relu(self.conv(obs / 255)).flatten(1)
        return self.head(torch.cat((features, *others), dim=1))


@pytest.mark.parametrize("num_joints", [0, 3])
@EVERY_KIND
def test_networks_get_bytes_and_the_parts_of_an_observation(kind, num_joints):
    rng, spec = np.random.default_rng(0), PICTURES
    parts: Any = rng.integers(0, 256, (32, 3, 10, 10), dtype=np.uint8)
    if num_joints:
        space = Dict(camera=PICTURES.obs_space, joints=Box(-1.0, 1.0, (3,)))
        spec = replace(PICTURES, obs_space=space)
        parts = {"camera": parts, "joints": rng.random((32, 3), dtype=np.float32)}
    of_bytes = OfBytes(num_joints, 2 if kind == "sac" else 1)
    actor = of_bytes if kind == "sac" else nn.Sequential(of_bytes, nn.Tanh())
    policy = make(kind, spec, actor=actor, critic=OfBytes(num_joints + 1, 1))
    obs = torch.from_numpy(spec.pack(parts))
    drawn = replace(batch(0, spec=PICTURES), obs=obs, next_obs=obs.flip(0))
    for _ in range(2):
        assert np.isfinite(policy.learn(drawn)["loss"])
    found = policy.module.eval()(spec.unpack(obs)).detach()
    np.testing.assert_allclose(found, policy.act(parts, explore=False), rtol=1e-5, atol=1e-6)
    half = KINDS[kind](spec, critic=OfBytes(num_joints + 1, 1))  # with a built-in actor
    assert np.isfinite(half.learn(drawn)["loss"])


def test_an_actor_that_leaves_its_range_later_is_refused_then():
    class Bounded(nn.Linear):
        def forward(self, obs):
            return super().forward(obs).clamp(-limits[-1], limits[-1])

    limits = [1.0]
    policy = make("ddpg", actor=Bounded(3, 2))
    limits.append(1.5)
    far = np.full((2, 3), 1e4, dtype=np.float32)
    with pytest.raises(ConfigError, match=r"`actor` gave an action of 1\.5"):
        policy.act(far)
    with pytest.raises(ConfigError, match=r"`actor` gave an action of 1\.5"):
        policy.learn(replace(batch(0), obs=torch.from_numpy(np.repeat(far, 16, axis=0))))
    with pytest.raises(ConfigError, match=r"End `forward` with `torch.tanh"):
        make("td3", actor=nn.Linear(3, 2))
    make("sac", actor=nn.Linear(3, 4))


def test_shared_layers_are_refused():
    critic = critic_for(ARM)
    actor = actor_for("sac")
    actor[2] = critic.net[2]  # 16 to 12 units in both
    with pytest.raises(ConfigError, match=r"`actor` and `critic` share the parameter '2\.weight'"):
        make("sac", actor=actor, critic=critic)
    first = make("sac")
    with pytest.raises(ConfigError, match="lies in the memory of another policy"):
        make("sac", actor=first._networks._own["actor."].module)


class OfAny(Joins):
    """Sees numbers, bytes or parts, and the action."""

    def __init__(self, spec):
        super().__init__(critic_for(replace_obs(spec, *spec.input_shape)).net)

    def forward(self, *inputs):
        obs, action = inputs
        parts = [*obs.values()] if isinstance(obs, dict) else [obs]
        parts = [part / 255 if part.dtype == torch.uint8 else part for part in parts]
        return super().forward(*parts, action)


@pytest.mark.parametrize(
    "space",
    [
        ARM.obs_space,
        Box(0, 255, (3,), dtype=np.uint8),
        Dict(at=Discrete(3), speed=Box(-1.0, 1.0, (2,))),
    ],
    ids=["numbers", "bytes", "parts"],
)
@EVERY_KIND
def test_a_built_in_actor_goes_with_a_critic_of_a_user(kind, space):
    spec = replace(ARM, obs_space=space)
    drawn = batch(0, spec=spec)
    house = KINDS[kind](spec, {"hidden": (16, 12)})
    policy = KINDS[kind](spec, house.config, critic=OfAny)
    assert policy.weights().keys() == house.weights().keys()
    assert policy.has_own_network
    for each in (house, policy, policy.clone()):
        assert np.isfinite(each.learn(drawn)["loss"])
    action = policy.act(drawn.obs.numpy(), explore=False)
    found = policy.module(spec.unpack(drawn.obs)).detach()
    np.testing.assert_allclose(found, action, atol=1e-5)
