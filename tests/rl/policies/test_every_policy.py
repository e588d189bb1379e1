"""Every policy, built in or with networks of a user, resumes, publishes and refuses alike."""

from __future__ import annotations

import copy
import math
import pickle
import re
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch import nn

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError
from ding_lite.nest import leaves
from ding_lite.rl import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    R2D2,
    SAC,
    TD3,
    A2CConfig,
    DDPGConfig,
    DQNConfig,
    EnvSpec,
    IMPALAConfig,
    Memory,
    Policy,
    PPOConfig,
    R2D2Config,
    SACConfig,
    TD3Config,
    TorchPolicy,
    TorchPolicyConfig,
    TorchRolloutPolicy,
    Transitions,
)
from ding_lite.rl.host_or_device import DeviceMetrics
from ding_lite.rl.policies.actor_critic import ActorCriticPolicy
from ding_lite.settings.config import as_config
from tests.rl.nets import Joins, Splits
from tests.rl.rollouts import draw_batch, draw_obs, draw_prioritized, lesson
from tests.threads import switching_often, together

VECTOR = Box(-1.0, 1.0, (4,))
SCREEN = Box(0, 255, (10, 10, 3), dtype=np.uint8)
CHOICE = EnvSpec(env_id="choice", obs_space=VECTOR, action_space=Discrete(2))
ARM = EnvSpec(env_id="arm", obs_space=VECTOR, action_space=Box(-2.0, 2.0, (2,)))
PICTURES = replace(ARM, obs_space=SCREEN)
PARTS = replace(CHOICE, obs_space=Dict(camera=SCREEN, speed=VECTOR, map=Box(-1.0, 1.0, (2, 2))))
ARM_PARTS = replace(ARM, obs_space=PARTS.obs_space)


class Breaks(nn.Module):
    """Returns its input; its gradient can be made NaN."""

    is_broken = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.is_broken and inputs.requires_grad:
            inputs.register_hook(lambda grad: grad * math.nan)
        return inputs


def layers(num_inputs: int, num_outputs: int) -> nn.Module:
    """Make a network that learns otherwise than it acts."""
    hidden = nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5)
    last = nn.Linear(8, num_outputs), nn.Tanh(), Breaks()
    return nn.Sequential(nn.Linear(num_inputs, 8), *hidden, *last)


class Remembers(nn.Module):
    """With values of its own, an actor-critic; without, the values of R2D2."""

    state_size = np.int64(3)  # as sums of numpy are

    def __init__(self, *, has_value: bool) -> None:
        super().__init__()
        self.layers, self.has_value = layers(4 + 3, 3), has_value

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.layers(torch.cat((obs, state), 1))
        outputs = (found[:, :2], found[:, 2]) if self.has_value else (found[:, :2],)
        return *outputs, 0.5 * state + found


class Plain(TorchPolicy[TorchPolicyConfig]):
    def build(self) -> None:
        self.net = layers(4, 2)
        self.target = self.follow(self.net, tau=0.5, every=3)

    def choose(self, obs: Any, explore: bool) -> Any:
        values = self.net(obs)
        return (values + torch.randn_like(values) if explore else values).argmax(-1)

    def loss(self, batch: Any) -> Any:
        found = self.net(batch.obs).gather(1, batch.action[:, None])[:, 0]
        error = found - batch.reward - self.target(batch.next_obs).amax(1)
        return error**2, {"td_error": error}


class PlainRollout(TorchRolloutPolicy[TorchPolicyConfig]):
    def build(self) -> None:
        self.net = layers(4, 2)

    def choose(self, obs: Any, explore: bool) -> Any:
        found = self.net(obs)
        found = found + torch.randn_like(found) if explore else found
        return found.argmax(-1), found[:, 0]

    def batches(self, rollout: Any) -> Any:
        yield rollout

    def loss(self, batch: Any) -> Any:
        found = self.net(batch.obs.flatten(0, 1)).mean(1)
        return (found - batch.reward.flatten()).square().mean(), {}


def critic(_spec: EnvSpec) -> nn.Module:
    return Joins(layers(4 + 2, 1))


def both(_spec: EnvSpec) -> nn.Module:
    return Splits(layers(4, 3))


def of(num_outputs: int) -> Any:
    return lambda spec: layers(4, num_outputs)


Kind = tuple[Any, EnvSpec, Any, dict[str, Any]]
FALLS: dict[str, Any] = {"lr_end": 1e-4, "lr_updates": 15}
NORM: dict[str, Any] = {"normalize_obs": True}
SMALL: dict[str, Any] = {"hidden": (8, 6)}
RMS: dict[str, Any] = {"optimizer": torch.optim.RMSprop}
BUILT_IN: dict[str, Kind] = {
    "dqn": (DQN, CHOICE, DQNConfig(**SMALL, target_every=3, target_tau=0.5), {}),
    "dueling dqn": (DQN, CHOICE, DQNConfig(**SMALL, **NORM, **FALLS, dueling=True), {}),
    "ddpg": (DDPG, ARM, DDPGConfig(**SMALL), {}),
    "td3 normalized": (TD3, ARM, TD3Config(**SMALL, **NORM), {}),
    "sac": (SAC, ARM, SACConfig(**SMALL), {}),
    "sac of images": (SAC, PICTURES, SACConfig(**SMALL), {}),
    "ddpg of parts": (DDPG, ARM_PARTS, DDPGConfig(**SMALL), {}),
    "td3 of parts": (TD3, ARM_PARTS, TD3Config(**SMALL), {}),
    "sac of parts": (SAC, ARM_PARTS, SACConfig(**SMALL), {}),
    "a2c": (A2C, CHOICE, A2CConfig(**SMALL, **FALLS), {}),
    "ppo": (PPO, CHOICE, PPOConfig(**SMALL, **NORM, batch_size=7, epochs=2), {}),
    "ppo of parts": (PPO, PARTS, PPOConfig(**SMALL, epochs=2), {}),
    "impala of numbers": (IMPALA, ARM, IMPALAConfig(**SMALL, **NORM), {}),
    "a2c memory": (A2C, CHOICE, A2CConfig(**SMALL, memory="gru", memory_size=5), {}),
    "r2d2": (R2D2, CHOICE, R2D2Config(**SMALL, **NORM, memory_size=5), {}),
}
OF_USERS: dict[str, Kind] = {
    "own dqn": (DQN, CHOICE, DQNConfig(), {"network": of(2), **RMS}),
    "own normalized dqn": (DQN, CHOICE, DQNConfig(**NORM), {"network": of(2)}),
    "own ppo": (PPO, CHOICE, PPOConfig(epochs=2), {"network": both, **RMS}),
    "own a2c": (A2C, CHOICE, A2CConfig(), {"actor": of(2), "critic": of(1)}),
    "own memory": (
        IMPALA,
        CHOICE,
        IMPALAConfig(),
        {"network": lambda _: Remembers(has_value=True)},
    ),
    "own ddpg": (DDPG, ARM, DDPGConfig(), {"actor": of(2), "critic": critic, **RMS}),
    "own td3": (TD3, ARM, TD3Config(**NORM), {"actor": of(2), "critic": critic}),
    "own sac": (SAC, ARM, SACConfig(), {"actor": of(4), "critic": critic, **RMS}),
    "own r2d2": (R2D2, CHOICE, R2D2Config(), {"network": lambda _: Remembers(has_value=False)}),
    "own algorithm": (Plain, CHOICE, TorchPolicyConfig(**NORM), RMS),
    "own algorithm of rollouts": (PlainRollout, CHOICE, TorchPolicyConfig(), {}),
}
ENTROPY: dict[str, Any] = {**SMALL, "entropy_coef": 0.01}
OF_PPO: dict[str, Any] = {**ENTROPY, "epochs": 2, "batch_size": 8}
NUMBERS = Box(np.array([-1.0, 0.0], "f4"), np.array([3.0, np.inf], "f4"))
LEGAL = replace(CHOICE, action_space=Discrete(3), has_action_mask=True)
FORMS: dict[str, Kind] = {
    "legal dqn": (DQN, LEGAL, DQNConfig(**SMALL), {}),
    "single legal dqn": (DQN, LEGAL, DQNConfig(**SMALL, double=False, loss="mse"), {}),
    "legal choice": (IMPALA, LEGAL, IMPALAConfig(**ENTROPY, batch_size=8, clip=0.2), {}),
    "choices": (PPO, replace(CHOICE, action_space=MultiDiscrete([3, 2])), PPOConfig(**OF_PPO), {}),
    "flags": (A2C, replace(CHOICE, action_space=MultiBinary(4)), A2CConfig(**ENTROPY), {}),
    "numbers": (PPO, replace(ARM, action_space=NUMBERS), PPOConfig(**OF_PPO), {}),
    "own spread": (
        PPO,
        ARM,
        PPOConfig(entropy_coef=0.01, epochs=2),
        {"network": lambda _: Splits(nn.Linear(4, 5))},
    ),
    "pictures": (A2C, replace(CHOICE, obs_space=SCREEN), A2CConfig(**ENTROPY), {}),
    "ppo memory": (PPO, CHOICE, PPOConfig(**OF_PPO, **NORM, memory="lstm", memory_size=4), {}),
    "impala memory": (IMPALA, CHOICE, IMPALAConfig(**ENTROPY, memory="gru", memory_size=4), {}),
}
"""With every kind of actions; computations on tensors are another code for each."""
KINDS = BUILT_IN | OF_USERS | FORMS
NOT_LEARNED = re.compile("norm|running|num_batches|rng|random|steps|iter")
"""What of a state changes in an update that is left out."""
EVERY_POLICY = pytest.mark.parametrize("name", BUILT_IN | OF_USERS)


def make(name: str, *, seed: int = 0, **more: Any) -> Any:
    policy, spec, config, parts = KINDS[name]
    return policy(spec, replace(config, seed=seed), **parts, **more)


def act(policy: Any, obs: Any = None, **more: Any) -> Any:
    if obs is None:
        obs = draw_obs(np.random.default_rng(5), policy.spec, (9,))
    if getattr(policy, "state_size", 0):
        more["memory"] = policy.make_memory(len(obs))
    return policy.act(obs, **more)


def check_equal(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@EVERY_POLICY
def test_a_clone_and_a_resumed_policy_go_on_exactly(name: str) -> None:
    policy, resumed = make(name), make(name, seed=9)
    for seed in range(4):
        act(policy)
        policy.learn(lesson(policy, seed))
    resumed.load_state_dict(policy.state_dict())
    clone, deep = policy.clone(), copy.deepcopy(policy)

    def go_on(one: Any) -> Any:
        torch.rand(7)  # the global generator is of no importance
        return [(act(one).tolist(), dict(one.learn(lesson(one, seed)))) for seed in range(4, 7)]

    assert go_on(policy) == go_on(resumed) == go_on(clone) == go_on(deep)
    check_equal(policy.state_dict(), resumed.state_dict())
    check_equal(policy.state_dict(), clone.state_dict())
    check_equal(policy.state_dict(), deep.state_dict())
    assert policy.env_step == 7 * 9
    assert isinstance(policy, Policy)
    with pytest.raises(ConfigError, match=r"cannot be pickled .* `clone\(\)` copies it"):
        pickle.dumps(policy)


def test_another_default_type_of_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    with pytest.raises(ConfigError, match=r"is torch\.float64, and weights are torch\.float32"):
        make("dqn")


@EVERY_POLICY
def test_a_copy_of_the_module_has_parameters_of_its_own(name: str) -> None:
    policy = make(name)
    before, module = policy.state_dict(), copy.deepcopy(policy.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    check_equal(policy.state_dict(), before)


@EVERY_POLICY
def test_published_weights_reach_a_collector_and_stay_as_they_are(name: str) -> None:
    learner, collector = make(name), make(name, seed=1)
    for seed in range(2):
        learner.learn(lesson(learner, seed))
    published = learner.weights()
    arrays = {name: tensor.numpy().copy() for name, tensor in published.items()}
    before = collector.weights()
    missing = dict([*arrays.items()][:-1])
    with pytest.raises(ShapeError, match="is missing"):
        collector.load_weights(missing)
    has_norm = "norm.count" in arrays
    other = {name: array for name, array in arrays.items() if not name.startswith("norm.")}
    other |= {} if has_norm else {"norm.count": np.ones(())}
    here, there = ("on", "off") if has_norm else ("off", "on")
    with pytest.raises(ShapeError, match=f"`normalize_obs` {there}, and this one has it {here}"):
        collector.load_weights(other)
    check_equal(collector.weights(), before)
    parameters = {  # some of them as of `dict(module.named_parameters())`
        name: tensor.clone().requires_grad_(tensor.dim() > 1) for name, tensor in published.items()
    }
    for given in (parameters, arrays):
        collector.load_weights(given)
        check_equal(collector.weights(), published)
    np.testing.assert_array_equal(act(collector, explore=False), act(learner, explore=False))
    for seed in range(2, 4):
        learner.learn(lesson(learner, seed))
    check_equal(published, {name: torch.from_numpy(array) for name, array in arrays.items()})
    assert any(
        not torch.equal(tensor, published[name]) for name, tensor in learner.weights().items()
    )


@EVERY_POLICY
def test_the_state_of_another_policy_is_refused_and_changes_nothing(name: str) -> None:
    policy = make(name)
    before = policy.state_dict()
    missing = {key: value for key, value in before.items() if key != "train_iter"}
    for state in (missing, {**before, "more": 1}, make("a2c").state_dict()):
        if state.keys() != before.keys():
            with pytest.raises(CheckpointError, match=rf"no state of a {type(policy).__name__}"):
                policy.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r'take `state\["policy"\]`'):
        policy.load_state_dict({"policy": before, "env_step": 8, "task": {}})
    if name in BUILT_IN:
        other = type(policy)(policy.spec, replace(policy.config, hidden=(8, 5)))
        with pytest.raises(ShapeError, match="same sizes"):
            policy.load_state_dict(other.state_dict())
    key = "target" if "target" in before else policy._saved_networks[0]
    with pytest.raises(ShapeError, match="no tensor 'more'"):
        policy.load_state_dict({**before, key: {**before[key], "more": torch.zeros(1)}})
    check_equal(policy.state_dict(), before)


def poisoned(policy: Any, poison: float) -> Any:
    """Draw what a policy learns from, with rewards that make its loss infinite or NaN."""
    drawn = lesson(policy, 1)
    reward = (drawn[0] if isinstance(drawn, list) else drawn).reward
    reward[:] = -poison
    reward[1] = poison
    return drawn


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("poison", [math.nan, 3e38])
def test_a_loss_that_is_not_finite_raises_and_changes_no_weights(
    name: str, poison: float, recwarn: pytest.WarningsRecorder
) -> None:
    policy = make(name)
    policy.learn(lesson(policy, 0))
    before = policy.weights()
    with pytest.raises(NonFiniteError, match=type(policy).__name__):
        policy.learn(poisoned(policy, poison))
    for key, tensor in policy.weights().items():
        if not key.startswith("norm."):
            check_equal(tensor, before[key])
    assert math.isfinite(policy.learn(lesson(policy, 2))["loss"])
    assert [str(warning.message) for warning in recwarn] == []


@EVERY_POLICY
def test_settings_may_be_a_dict_and_environments_are_no_spec(name: str) -> None:
    policy, spec, config, parts = KINDS[name]
    assert policy(spec, {"gamma": 0.5}, **parts).config == replace(type(config)(), gamma=0.5)
    expected = rf"`config` is an int; a {type(config).__name__}, or a dict, was expected"
    with pytest.raises(ConfigError, match=expected):
        policy(spec, 3, **parts)
    with pytest.raises(ConfigError, match=r"`spec` is a SimpleNamespace; .* Give its `.spec`"):
        policy(SimpleNamespace(spec=spec), config, **parts)


@EVERY_POLICY
def test_observations_of_another_environment_are_refused(name: str) -> None:
    policy = make(name)
    obs = draw_obs(np.random.default_rng(0), policy.spec, (9,))
    for wrong in (obs[:, :2], obs[0]):
        with pytest.raises(ShapeError, match=rf"`obs` has shape .* {policy.spec.env_id}"):
            act(policy, wrong)
    drawn = lesson(policy, 0)
    one = drawn[0] if isinstance(drawn, list) else drawn
    wrong = replace(one, obs=one.obs[..., :2])
    before = policy.state_dict()
    with pytest.raises(ShapeError):
        policy.learn([wrong] if isinstance(drawn, list) else wrong)
    check_equal(policy.state_dict(), before)


@pytest.mark.parametrize("name", [*BUILT_IN, *FORMS, "own a2c", "own memory", "own r2d2"])
def test_an_update_on_a_device_copies_nothing_to_the_host(name: str) -> None:
    """The device `meta` holds no data: what copies some to the host raises.

    Optimizers of PyTorch read their counts there.
    """
    policy = make(name, device="meta")
    metrics = policy.learn(lesson(policy, 1))
    assert policy.train_iter > 0
    if isinstance(policy, ActorCriticPolicy) and name not in OF_USERS:
        policy.gradients(lesson(policy, 2))
    with pytest.raises(NotImplementedError, match=r"meta|no data"):
        metrics["loss"]


@pytest.mark.parametrize("name", OF_USERS)
def test_a_module_is_for_inference_after_an_update_and_learning_goes_on_as_before(
    name: str,
) -> None:
    policy, untouched = make(name), make(name)
    states = (torch.ones(1, 3),) if getattr(policy, "state_size", 0) else ()
    one = (torch.full((1, 4), 0.3), *states)
    for seed in range(3):
        for each in (policy, untouched):
            each.learn(lesson(each, seed))
        before = policy.state_dict()
        module = policy.module
        assert not any(part.training for part in module.modules())
        check_equal(module(*one), module(*one))
        check_equal(policy.state_dict(), before)
    check_equal(policy.state_dict(), untouched.state_dict())


@pytest.mark.parametrize("name", ["own dqn", "own ppo", "own memory", "own algorithm"])
def test_acting_in_a_thread_changes_nothing_that_another_one_learns(name: str) -> None:
    policy, alone = make(name), make(name)
    has_learned = threading.Event()

    def learn(learner: Any) -> None:
        try:
            for seed in range(20):
                learner.learn(lesson(learner, seed % 5))
        finally:
            has_learned.set()

    def play() -> None:
        while not has_learned.is_set():
            act(policy, explore=False)

    with switching_often():
        together(partial(learn, policy), play)
    learn(alone)
    check_equal(policy.weights(), alone.weights())


@pytest.mark.parametrize("given", ["functions", "modules"])
@pytest.mark.parametrize("name", OF_USERS)
def test_layers_that_the_user_freezes_stay_frozen_in_a_copy(name: str, given: str) -> None:
    kind, spec, config, parts = OF_USERS[name]
    if given == "modules":
        parts = {n: part(spec) for n, part in parts.items() if n != "optimizer"}
    policy: Any = kind(spec, config, **(parts | RMS if given == "functions" else parts))
    policy.learn(lesson(policy, 0))  # Adam has a momentum then
    key = next(iter(policy.own_modules))
    first = next(iter(policy.own_modules[key].values()))
    frozen = [n for n, parameter in first.named_parameters() if parameter.dim() == 1]
    for n in frozen:
        first.get_parameter(n).requires_grad_(False)
    twin = policy.clone()
    copied = next(iter(twin.own_modules[key].values()))
    before = {n: copied.get_parameter(n).clone() for n in frozen}
    twin.learn(lesson(twin, 0))
    check_equal({n: copied.get_parameter(n).detach() for n in frozen}, before)
    for other in (twin, policy.like(), twin.clone()):
        copied = next(iter(other.own_modules[key].values()))
        for n, parameter in copied.named_parameters():
            assert parameter.requires_grad == (n not in frozen)


def global_draws() -> Any:
    """Return the states of the global generators."""
    return torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"]


@EVERY_POLICY
def test_weights_and_draws_follow_the_seed_and_leave_the_global_generators_alone(name: str) -> None:
    made: list[Any] = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(made))
        np.random.seed(len(made))
        before = global_draws()
        policy = make(name, seed=seed)
        first = policy.weights()
        policy.learn(lesson(policy, 0))
        made.append((first, act(policy, draw_obs(np.random.default_rng(0), policy.spec, (60,)))))
        check_equal(global_draws(), before)
    (one, drawn), (again, drawn_again), (other, _) = made
    check_equal(one, again)
    np.testing.assert_array_equal(drawn, drawn_again)
    assert any(not torch.equal(tensor, other[key]) for key, tensor in one.items())


@EVERY_POLICY
def test_a_reseeded_policy_draws_other_random_numbers(name: str) -> None:
    policy = make(name)
    twin = policy.clone()
    twin.reseed(5)
    obs = draw_obs(np.random.default_rng(0), policy.spec, (200,))
    assert (act(policy, obs) != act(twin, obs)).any()


@EVERY_POLICY
def test_learners_may_change_every_gradient(name: str) -> None:
    policy = make(name)
    before = dict(leaves(policy.state_dict()))
    policy.reduce_gradient = torch.Tensor.zero_
    for seed in range(2):
        policy.learn(lesson(policy, seed))
    for path, value in leaves(policy.state_dict()):
        if str(path[-1]).endswith((".weight", ".bias", "log_std", "log_alpha")):
            check_equal(value, before[path])


@pytest.mark.parametrize("name", ["a2c", "ppo of parts", "impala of numbers", "a2c memory", "r2d2"])
def test_a_gradient_changes_nothing_and_may_be_applied_elsewhere(name: str) -> None:
    kind, spec, config, _ = KINDS[name]
    one_update = {"epochs": 1, "normalize_obs": False}
    config = replace(config, **{k: v for k, v in one_update.items() if hasattr(config, k)})
    alone, learner = kind(spec, config), kind(spec, config)
    for seed in range(3):
        worker = learner.clone()
        expected, before = alone.learn(lesson(alone, seed)), worker.weights()
        gradient, metrics = worker.gradients(lesson(worker, seed))
        check_equal(worker.weights(), before)
        norm, sent = float(gradient.norm()), gradient.clone()
        assert learner.apply_gradient(gradient.numpy()) == pytest.approx(norm)
        check_equal(gradient, sent)
        assert {"grad_norm": norm, **expected} == pytest.approx({"grad_norm": norm, **metrics})
    check_equal(alone.weights(), learner.weights())
    with pytest.raises(ShapeError, match=r"shape \(3,\); \(\d+,\) was expected"):
        learner.apply_gradient(torch.zeros(3))
    with pytest.raises(NonFiniteError, match=rf"gradient of {kind.__name__}'s update 4 is nan"):
        learner.apply_gradient(gradient * torch.nan)
    check_equal(alone.weights(), learner.weights())


@pytest.mark.parametrize("name", ["own ppo", "own a2c", "own memory", "own r2d2", "own algorithm"])
def test_gradients_that_would_leave_running_means_behind_are_refused(name: str) -> None:
    policy = make(name)
    before = policy.weights()
    with pytest.raises(ConfigError, match=r"running_mean.*nn\.LayerNorm"):
        policy.gradients(lesson(policy, 0))
    check_equal(policy.weights(), before)


@pytest.mark.parametrize("name", ["dqn", "dueling dqn", "own algorithm"])
def test_a_collector_computes_errors_by_the_weights_that_it_has_fetched(name: str) -> None:
    learner, collector = make(name), make(name)
    for seed in range(5):
        learner.learn(draw_prioritized(seed, spec=learner.spec))
    collector.load_weights(learner.weights())
    synchronized = learner.clone()
    synchronized.load_weights(learner.weights())
    drawn = draw_prioritized(7, spec=learner.spec)
    np.testing.assert_allclose(
        collector.td_errors(drawn), synchronized.td_errors(drawn), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["ddpg", "td3 normalized", "sac"])
def test_a_collector_without_critics_computes_no_errors(name: str) -> None:
    learner, collector = make(name), make(name)
    drawn = draw_prioritized(7, spec=learner.spec)
    collector.load_weights(learner.weights())
    with pytest.raises(ConfigError, match="of an actor, without the critics"):
        collector.td_errors(drawn)
    collector.load_state_dict(learner.state_dict())
    np.testing.assert_array_equal(collector.td_errors(drawn), learner.td_errors(drawn))


@pytest.mark.parametrize(
    "name", ["dqn", "dueling dqn", "ddpg", "td3 normalized", "sac", "own algorithm"]
)
def test_errors_without_learning_are_those_that_an_update_reports(name: str) -> None:
    policy = make(name)
    for seed in range(3):
        policy.learn(draw_prioritized(seed, spec=policy.spec))
    drawn, before = draw_prioritized(7, spec=policy.spec), policy.state_dict()
    errors = policy.td_errors(drawn)
    assert errors.dtype == np.float32
    check_equal(policy.state_dict(), before)
    columns = [getattr(drawn, name).numpy() for name in Transitions.__slots__]
    twin = policy.clone()
    np.testing.assert_allclose(twin.td_errors(Transitions(*columns)), errors, rtol=1e-5)
    assert policy.td_errors(Transitions(*[column[:0] for column in columns])).shape == (0,)
    if not policy.config.normalize_obs:  # an update moves the means first
        found = policy.learn(drawn)["td_error"]
        np.testing.assert_allclose(found, np.abs(errors), rtol=1e-4, atol=1e-5)


def weighted(policy: Any, seed: int) -> Any:
    """Draw what a policy learns from, with importance weights if it is from a replay."""
    drawn = lesson(policy, seed)
    return draw_prioritized(seed, spec=policy.spec) if type(drawn) is Transitions else drawn


@pytest.mark.parametrize("name", [*BUILT_IN, *FORMS, "own algorithm", "own algorithm of rollouts"])
def test_updates_on_tensors_are_those_on_arrays(name: str, request: pytest.FixtureRequest) -> None:
    def learned() -> tuple[Any, list[Any]]:
        policy = make(name)
        return policy, [policy.learn(weighted(policy, seed)) for seed in range(4)]

    on_arrays, expected = learned()
    request.getfixturevalue("on_tensors")
    policy, found = learned()
    assert isinstance(found[0], DeviceMetrics)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_allclose(ours[key], value, rtol=1e-3, atol=1e-4)
    weights = policy.weights(), on_arrays.weights()
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("poison", [math.nan, 3e38])
@pytest.mark.parametrize("name", [*BUILT_IN, "own algorithm", "own algorithm of rollouts"])
@pytest.mark.usefixtures("on_tensors")
def test_an_update_on_a_device_that_is_not_finite_is_left_out_and_named_when_it_is_read(
    name: str, poison: float
) -> None:
    """The tensors of a CPU stand for those of a device."""
    policy = make(name)
    policy.learn(lesson(policy, 0))
    before = dict(leaves(policy.state_dict()))
    metrics = policy.learn(poisoned(policy, poison))
    for path, value in leaves(policy.state_dict()):
        if isinstance(value, torch.Tensor) and not NOT_LEARNED.search(str(path)):
            assert torch.equal(value, before[path]), path
    with pytest.raises(NonFiniteError, match=type(policy).__name__):
        metrics["loss"]
    assert math.isfinite(policy.learn(lesson(policy, 2))["loss"])
    policy.reduce_gradient = lambda _: pytest.fail("others took its gradient")
    with pytest.raises(NonFiniteError):
        policy.learn(poisoned(policy, poison))


@pytest.mark.parametrize("is_on_device", [False, True])
@pytest.mark.parametrize("name", OF_USERS)
def test_a_gradient_that_is_not_finite_changes_no_weights(
    name: str,
    is_on_device: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if is_on_device:
        request.getfixturevalue("on_tensors")
    policy = make(name)
    policy.learn(lesson(policy, 0))
    before = dict(leaves(policy.state_dict()))
    monkeypatch.setattr(Breaks, "is_broken", True)
    with pytest.raises(NonFiniteError, match=type(policy).__name__):
        policy.learn(lesson(policy, 1))["loss"]
    for path, value in leaves(policy.state_dict()):
        if isinstance(value, torch.Tensor) and not NOT_LEARNED.search(str(path)):
            check_equal(value, before[path])


@pytest.mark.parametrize("name", ["own ddpg", "own td3", "own sac"])
def test_an_error_of_the_actor_says_that_its_weights_are_the_former_ones(name: str) -> None:
    policy = make(name)
    before = policy.weights()
    for module in policy.module.modules():
        module.is_broken = True  # of the actor alone

    def learn_twice() -> None:  # TD3 updates its actor at the second one
        for seed in range(2):
            policy.learn(lesson(policy, seed))

    with pytest.raises(NonFiniteError, match=r"of the actor .* The weights of the actor are as"):
        learn_twice()
    for key, value in policy.weights().items():
        if not NOT_LEARNED.search(key):
            check_equal(value, before[key])


@EVERY_POLICY
def test_there_may_be_no_observations_to_act_for(name: str) -> None:
    policy = make(name)
    if getattr(policy, "state_size", 0):
        return  # a memory has at least one environment
    obs = draw_obs(np.random.default_rng(0), policy.spec, (0,))
    assert act(policy, torch.from_numpy(obs)).shape == (0, *policy.spec.action_shape)
    assert act(policy, obs, explore=False).shape == (0, *policy.spec.action_shape)


@pytest.mark.parametrize(
    "name", ["dqn", "own dqn", "own normalized dqn", "ddpg", "td3 normalized", "sac", "own sac"]
)
def test_batches_of_arrays_and_doubles_are_learned_and_empty_ones_refused(name: str) -> None:
    policy, twin, drawn = make(name), make(name), draw_batch(0, spec=KINDS[name][1])
    columns = [getattr(drawn, column).numpy() for column in Transitions.__slots__]
    doubles = [x.astype(np.float64) if x.dtype == np.float32 else x.copy() for x in columns]
    for array in doubles:
        array.flags.writeable = False
    assert policy.learn(Transitions(*doubles)) == pytest.approx(twin.learn(drawn), rel=1e-4)
    with pytest.raises(ShapeError, match="batch to learn from is empty"):
        policy.learn(Transitions(*[column[:0] for column in columns]))


@EVERY_POLICY
def test_a_memory_that_is_missing_superfluous_or_of_another_size_is_refused(name: str) -> None:
    policy = make(name)
    if isinstance(policy, DQN | DDPG | SAC):
        return
    obs = draw_obs(np.random.default_rng(0), policy.spec, (9,))
    for method in ("act", "explore", "values") if policy.state_size else ("act",):
        memory = {} if policy.state_size else {"memory": Memory(9, 1)}
        told = "has memory: give `memory=`" if policy.state_size else "has no memory: leave it out"
        with pytest.raises(ConfigError, match=rf"{type(policy).__name__} {told}"):
            getattr(policy, method, policy.act)(obs, **memory)
        if policy.state_size:
            for wrong in (policy.make_memory(2), policy.make_memory(9).state):
                found = r"has .* shape \(2, \d+\)" if isinstance(wrong, Memory) else "is a ndarray"
                with pytest.raises(ShapeError, match=rf"{found}; \(9, \d+\) was expected"):
                    getattr(policy, method, policy.act)(obs, memory=wrong)
    assert (policy.make_memory(2) is None) == (not policy.state_size)


OF_ROLLOUTS: dict[str, Any] = {
    **{"lr": 0.0, "gamma": 1.5, "hidden": (), "activation": "sigmoid", "entropy_coef": -1.0},
    **{"memory": "rnn", "memory_size": 0},
}


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (DQNConfig, {"lr": 0.0, "lr_end": -1e-4, "gamma": 1.5, "n_step": 0, "batch_size": 1.5}),
        (DQNConfig, {"seed": -1, "hidden": (), "loss": "hubert", "target_tau": 0.0}),
        (R2D2Config, {"lr": 0.0, "gamma": 1.5}),
        (R2D2Config, {"burn_in": -1, "sequence_length": 0, "memory": "rnn"}),
        *((config, OF_ROLLOUTS) for config in (A2CConfig, PPOConfig, IMPALAConfig)),
        (A2CConfig, {"gae_lambda": 2.0}),
        (PPOConfig, {"clip": 0.0}),
        (IMPALAConfig, {"rho_clip": 0.5}),
        (IMPALAConfig, {"batch_size": 0, "clip": 0.0}),
        (DDPGConfig, {"actor_lr": 0.0, "hidden": (), "target_tau": 2.0}),
        (DDPGConfig, {"noise": -0.1}),
        (TD3Config, {"policy_delay": 0, "target_noise": -1.0, "target_noise_clip": -1.0}),
        (SACConfig, {"critic_lr": -1.0, "batch_size": 1.5, "gamma": 1.5, "n_step": 0, "seed": -1}),
        (SACConfig, {"alpha": 0.0}),
    ],
)
def test_all_wrong_settings_are_named_at_once(config: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**wrong)
    for name in wrong:
        assert f"`{name}`" in str(caught.value)
    with pytest.raises(ConfigError, match=r'Unknown key "gama". Did you mean "gamma"'):
        config(gama=0.9)
    assert as_config(config, {"hidden": [8, 8], "gamma": 1}).hidden == (8, 8)
