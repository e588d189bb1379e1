"""A2C, PPO and IMPALA with networks and optimisers of users."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import A2C, IMPALA, PPO, EnvSpec
from tests.rl.rollouts import CARTPOLE, PENDULUM, SCREEN, draw_obs, draw_rollout

PARTS = EnvSpec(
    env_id="parts",
    obs_space=Dict(at=Discrete(3), speed=Box(-1.0, 1.0, (2,))),
    action_space=Discrete(2),
    has_action_mask=True,
)
KINDS: dict[str, Any] = {"A2C": A2C, "PPO": PPO, "IMPALA": IMPALA}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


class Together(nn.Module):
    def __init__(self, spec, *, num_outputs=None, flat_value=True):
        super().__init__()
        num_outputs = num_outputs or spec.num_actions or spec.action_shape[0]
        self.torso = nn.Sequential(nn.Linear(spec.obs_shape[0], 16), nn.GELU(), nn.LayerNorm(16))
        self.policy, self.value = nn.Linear(16, num_outputs), nn.Linear(16, 1)
        self.flat_value = flat_value

    def forward(self, obs):
        features = self.torso(obs)
        value = self.value(features)
        return self.policy(features), value.squeeze(-1) if self.flat_value else value


class FromBytes(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, obs):
        assert obs.dtype == torch.uint8
        outputs = super().forward(obs / 255)
        return outputs[:, :2], outputs[:, 2]


class FromParts(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)

    def forward(self, obs):
        outputs = super().forward(torch.cat((obs["at"], obs["speed"]), dim=1))
        return outputs[:, :2], outputs[:, 2]


def mlp(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 16), nn.Tanh(), nn.Linear(16, num_outputs))


def make(kind, spec=CARTPOLE, *, settings=None, **parts):
    described = {} if parts.keys() & {"network", "actor"} else {"hidden": (16,)}
    return KINDS[kind](spec, {**described, **(settings or {})}, **parts)


NAMES = [
    f"{part}.{layer}.{kind}"
    for part in ("actor", "critic")
    for layer in ("0", "head")
    for kind in ("weight", "bias")
]


@pytest.mark.parametrize("spec", [CARTPOLE, PENDULUM], ids=["choice", "number"])
@EVERY_KIND
def test_an_actor_and_a_critic_learn_as_the_built_in_ones_do(kind, spec):
    settings = {"entropy_coef": 0.01, "log_std_start": -0.3}
    house = make(kind, spec, settings=settings)
    size = spec.obs_shape[0]
    actor, critic = mlp(size, spec.num_actions or 1), mlp(size, 1)
    for parameter, name in zip(nn.ModuleList([actor, critic]).parameters(), NAMES, strict=True):
        parameter.data.copy_(house.weights()[name])
    own = make(kind, spec, settings=settings, actor=actor, critic=critic)
    for seed in range(4):
        rollout = draw_rollout(seed, spec)
        assert own.learn([rollout]) == pytest.approx(house.learn([rollout]), rel=2e-3, abs=1e-3)
    found, expected = own.weights(), [house.weights()[name] for name in NAMES]
    torch.testing.assert_close([*found.values()][:8], expected, rtol=2e-3, atol=1e-3)
    if spec is PENDULUM:
        log_std = house.weights()["actor.log_std"]
        torch.testing.assert_close(found["log_std"], log_std, rtol=2e-3, atol=1e-3)


def test_a_network_gives_the_spread_of_each_action():
    policy = make("PPO", PENDULUM, network=lambda spec: Together(spec, num_outputs=2))
    assert "log_std" not in policy.weights()
    obs = draw_obs(np.random.default_rng(0), PENDULUM, (200,))
    with torch.no_grad():
        outputs, _ = policy.module(torch.from_numpy(obs))
    action, log_prob = policy.explore(obs)
    mean, std = 2.0 * outputs[:, 0], 2.0 * outputs[:, 1].exp()
    expected = torch.distributions.Normal(mean, std).log_prob(torch.from_numpy(action[:, 0]))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-4)
    greedy = policy.act(obs, explore=False)[:, 0]
    np.testing.assert_allclose(greedy, mean.clamp(-2.0, 2.0), rtol=1e-5, atol=1e-6)
    policy.learn([draw_rollout(0, PENDULUM)])


@pytest.mark.parametrize(
    ("spec", "module"), [(SCREEN, FromBytes), (PARTS, FromParts)], ids=["bytes", "parts"]
)
@EVERY_KIND
def test_a_network_gets_observations_as_the_environment_gives_them(kind, spec, module):
    policy = make(kind, spec, network=module())
    rollout = draw_rollout(0, spec)
    if spec.has_action_mask:
        rollout.obs[..., -2:] = [0.0, 1.0]
        rollout.action[:] = 1
        assert (policy.act(rollout.obs[0]) == 1).all()
    assert np.isfinite(policy.learn([rollout])["loss"])


def test_values_may_have_an_axis_of_one():
    module = Together(CARTPOLE, flat_value=False)
    policy = make("A2C", network=module)
    assert policy.module is module
    assert policy.values(np.zeros((3, 4), dtype=np.float32)).shape == (3,)


def test_a_torso_that_actor_and_critic_share_stays_shared():
    torso = nn.Linear(4, 8)
    actor, critic = (nn.Sequential(torso, nn.Linear(8, count)) for count in (2, 1))
    policy = make("PPO", actor=actor, critic=critic)
    assert len(policy.weights()) == 6
    twin = policy.clone()
    for one in (policy, twin):
        one.learn([draw_rollout(0, CARTPOLE)])
    torch.testing.assert_close(twin.weights(), policy.weights(), rtol=0, atol=0)


PARTS_OF_PENDULUM = {
    "none": lambda: {},
    "network": lambda: {"network": Together},
    "apart": lambda: {"actor": mlp(3, 1), "critic": mlp(3, 1)},
}


@pytest.mark.parametrize("settings", [{}, {"normalize_obs": True}], ids=str)
@pytest.mark.parametrize("parts", PARTS_OF_PENDULUM)
def test_the_plain_module_says_what_the_policy_says(parts, settings):
    policy = make("PPO", PENDULUM, settings=settings, **PARTS_OF_PENDULUM[parts]())
    policy.learn([draw_rollout(0, PENDULUM)])
    obs = 2.0 * draw_obs(np.random.default_rng(0), PENDULUM, (6,))
    with torch.no_grad():
        outputs, value = policy.module(torch.from_numpy(obs))
    np.testing.assert_allclose(value, policy.values(obs), rtol=1e-4, atol=1e-5)
    greedy = np.clip(2.0 * outputs.numpy(), -2.0, 2.0)
    np.testing.assert_allclose(greedy, policy.act(obs, explore=False), rtol=1e-4, atol=1e-5)


class Drawing(nn.Module):
    """Machin's actor, which draws actions itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, state, action=None):
        drawn = torch.distributions.Categorical(logits=self.linear(state))
        action = drawn.sample() if action is None else action
        return action, drawn.log_prob(action), drawn.entropy()


class MeanAndLogStd(nn.Linear):
    def forward(self, state):
        mean = super().forward(state)
        return (mean, torch.zeros_like(mean)), mean[:, 0]


def test_probabilities_in_place_of_logits_are_warned_of(caplog):
    PPO(CARTPOLE, actor=nn.Linear(4, 2), critic=nn.Linear(4, 1))
    assert not caplog.messages
    PPO(CARTPOLE, actor=nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1)), critic=nn.Linear(4, 1))
    assert "the outputs of `actor` are probabilities" in caplog.text


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ({"actor": Drawing(), "critic": nn.Linear(4, 1)}, ShapeError, "Leave sampling to the"),
        ({"network": nn.Linear(4, 2)}, ShapeError, r"\(2, 2\) for .*\(2, 2\) and .*\(2, 1\) was"),
        ({"network": lambda s: Together(s, num_outputs=3)}, ShapeError, r"float32 \(2, 3\)"),
        ({"actor": nn.Linear(4, 2)}, ConfigError, "`actor` was given. Give `network`"),
        ({"actor": nn.Linear(4, 2), "critic": nn.Linear(4, 2)}, ShapeError, "`critic` .*returned"),
        ({"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)}, ShapeError, "`actor` .*returned"),
        ({"network": Together, "actor": Together}, ConfigError, "`network` and `actor` were given"),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_once(parts, error, message):
    with pytest.raises(error, match=message):
        PPO(CARTPOLE, **parts)
    with pytest.raises(ShapeError, match=r"`torch\.cat\(\(mean, log_std\), dim=-1\)`"):
        PPO(PENDULUM, network=MeanAndLogStd(3, 1))
