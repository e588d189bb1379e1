import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError
from ding_lite.nest import leaves
from ding_lite.rl import (
    DQN,
    DQNConfig,
    EnvSpec,
    NStep,
    Policy,
    ReplayBuffer,
    Transitions,
    host_or_device,
    make_envs,
)
from ding_lite.rl.batch import PrioritizedTransitions, to_numpy
from ding_lite.rl.formulas.rows import Rows
from ding_lite.rl.networks.conv import CONVS
from ding_lite.settings import as_config
from ding_lite.testing.probes import AsImage
from tests.rl import reference

CARTPOLE = make_envs("CartPole-v1", 1).spec
SCREEN = EnvSpec(
    env_id="x", obs_space=Box(0, 255, (10, 10, 3), dtype=np.uint8), action_space=Discrete(2)
)
SMALL = DQNConfig(hidden=(16,), batch_size=32)


def draw_obs(rng, size, spec):
    if spec.is_image:
        return torch.from_numpy(rng.integers(0, 256, (size, *spec.obs_shape), dtype=np.uint8))
    return torch.from_numpy(rng.normal(size=(size, *spec.obs_shape)).astype(np.float32))


def batch(seed, *, size=32, spec=CARTPOLE):
    """Draw transitions like those of CartPole."""
    rng = np.random.default_rng(seed)
    return Transitions(
        obs=draw_obs(rng, size, spec),
        action=torch.from_numpy(rng.integers(0, 2, size=size)),
        reward=torch.from_numpy(rng.normal(scale=2.0, size=size).astype(np.float32)),
        next_obs=draw_obs(rng, size, spec),
        terminated=torch.from_numpy(rng.random(size) < 0.3),
        truncated=torch.from_numpy(rng.random(size) < 0.3),
        num_steps=torch.from_numpy(rng.integers(1, 4, size=size).astype(np.int32)),
    )


def prioritized(seed, *, size=32, spec=CARTPOLE):
    """Draw transitions like those of a prioritized replay."""
    plain = batch(seed, size=size, spec=spec)
    weight = torch.from_numpy(np.random.default_rng(seed).random(size).astype(np.float32))
    columns = {name: getattr(plain, name) for name in Transitions.__slots__}
    return PrioritizedTransitions(**columns, weight=weight, serial=np.arange(size))


def learn_in(env_id, *, gamma, n_step=1, updates=400, size=64, lr=1e-2, wrappers=(), **settings):
    """Train a small DQN on random actions in an environment."""
    config = DQNConfig(lr=lr, gamma=gamma, n_step=n_step, hidden=(32,), target_tau=0.05, **settings)
    envs = make_envs(env_id, 8, seed=0, wrappers=wrappers)
    policy, replay = DQN(envs.spec, config), ReplayBuffer(envs.spec, capacity=2_000)
    n_steps = NStep(n_step, gamma, 8)
    for _ in range(120):
        replay.add(n_steps(envs.step(policy.act(envs.obs, epsilon=1.0))))
    for _ in range(updates):
        policy.learn(replay.sample(size))
    return policy


def values(policy, obs):
    if policy.spec.is_image:
        return policy.q_values(np.full((1, 1, 10, 10), (obs + 1.0) * 85.0, dtype=np.uint8))[0]
    return policy.q_values(np.array([[obs]], dtype=np.float32))[0]


IMAGES = {"wrappers": [AsImage], "lr": 3e-3, "updates": 200, "size": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "double": {},
    "single": {"double": False},
    "squared": {"loss": "mse"},
    "dueling": {"dueling": True},
    "normalized": {"normalize_obs": True},
    "images": IMAGES,
    "dueling images": {**IMAGES, "dueling": True},
    "flat images": {**IMAGES, "torso": "mlp"},
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


@EVERY_VARIANT
def test_values_follow_the_observation(variant):
    policy = learn_in("probe/RewardIsObs-v0", gamma=0.9, **VARIANTS[variant])
    assert values(policy, 1.0) == pytest.approx([1.0, 1.0], abs=0.1)
    assert values(policy, -1.0) == pytest.approx([-1.0, -1.0], abs=0.1)


@EVERY_VARIANT
def test_the_right_action_depends_on_the_observation(variant):
    policy = learn_in("probe/RightActionForObs-v0", gamma=0.9, **VARIANTS[variant])
    assert values(policy, 1.0) == pytest.approx([-1.0, 1.0], abs=0.15)
    assert values(policy, -1.0) == pytest.approx([1.0, -1.0], abs=0.15)


@EVERY_VARIANT
def test_a_reward_one_step_later_is_discounted_once(variant):
    policy = learn_in("probe/LateReward-v0", gamma=0.5, **VARIANTS[variant])
    assert values(policy, 0.0) == pytest.approx([0.5, 0.5], abs=0.05)
    assert values(policy, 1.0) == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_a_delayed_reward_is_discounted(n_step):
    policy = learn_in("probe/LateReward-v0", gamma=0.5, n_step=n_step)
    assert values(policy, 0.0) == pytest.approx([0.5, 0.5], abs=0.05)
    assert values(policy, 1.0) == pytest.approx([1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncated_episode_has_the_value_of_an_endless_one(n_step):
    # 1 + 1/2 + 1/4 + ... = 2. Episodes of four steps that ended for good would be worth at
    # most 1.875, and 1.5 on average.
    policy = learn_in("probe/Endless-v0", gamma=0.5, n_step=n_step)
    assert values(policy, 0.0) == pytest.approx([2.0, 2.0], abs=0.05)


CONFIGS = {
    "default": SMALL,
    "single": replace(SMALL, double=False),
    "squared": replace(SMALL, loss="mse"),
    "clipped": replace(SMALL, max_grad_norm=0.05),
    "hard target": replace(SMALL, target_tau=1.0, target_every=7),
    "falling step size": replace(SMALL, lr_end=1e-4, lr_updates=30),
    "three layers": replace(SMALL, hidden=(8, 12, 16)),
    "dueling": replace(SMALL, dueling=True),
    "deep dueling": replace(SMALL, dueling=True, double=False, hidden=(8, 12, 16)),
}


def assert_learns_as_plain_torch(policy, batches, *, convs=()):
    plain = reference.PlainDQN(policy.weights(), config=policy.config, convs=convs)
    for drawn in batches:
        output = policy.learn(drawn)
        assert output["loss"] == pytest.approx(plain.learn(drawn), rel=1e-3)
        if isinstance(drawn, PrioritizedTransitions):
            np.testing.assert_allclose(output["td_error"], plain.td_error, rtol=1e-3, atol=1e-4)
        else:
            falls = {"lr"} if policy.config.lr_end is not None else set()
            assert set(output) == {"loss", "q_mean"} | falls
    for tensor_name, tensor in policy.weights().items():
        torch.testing.assert_close(tensor, plain.named[tensor_name].detach(), rtol=1e-3, atol=1e-4)
    for tensor_name, tensor in policy.state_dict()["target_net"].items():
        torch.testing.assert_close(tensor, plain.target[tensor_name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_fifty_updates_are_those_of_plain_torch(name):
    assert_learns_as_plain_torch(DQN(CARTPOLE, CONFIGS[name]), [batch(seed) for seed in range(50)])


@pytest.mark.parametrize("name", ["default", "squared", "dueling", "clipped"])
def test_updates_with_importance_weights_are_those_of_plain_torch(name):
    policy = DQN(CARTPOLE, CONFIGS[name])
    assert_learns_as_plain_torch(policy, [prioritized(seed) for seed in range(50)])


@pytest.mark.parametrize("name", ["default", "single", "squared", "dueling"])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_errors_without_learning_are_those_that_an_update_reports(name, normalize_obs):
    policy = DQN(CARTPOLE, replace(CONFIGS[name], normalize_obs=normalize_obs))
    for seed in range(5):
        policy.learn(prioritized(seed))
    drawn, before = prioritized(7), policy.state_dict()
    errors = policy.td_errors(drawn)
    assert errors.dtype == np.float32
    after = dict(leaves(policy.state_dict()))
    for path, value in leaves(before):
        np.testing.assert_array_equal(value, after[path])
    if not normalize_obs:  # an update moves the means first
        np.testing.assert_allclose(np.abs(errors), policy.learn(drawn)["td_error"], rtol=1e-4)
    arrays = {n: to_numpy(getattr(drawn, n)) for n in Transitions.__match_args__}
    twin = DQN(CARTPOLE, policy.config)
    twin.load_state_dict(before)
    np.testing.assert_allclose(twin.td_errors(Transitions(**arrays)), errors, rtol=1e-5)
    none = Transitions(**{name: array[:0] for name, array in arrays.items()})
    assert policy.td_errors(none).shape == (0,)


@pytest.mark.parametrize("name", ["default", "single"])
def test_errors_without_learning_value_legal_actions_only(name):
    spec = replace(CARTPOLE, has_action_mask=True)
    policy, drawn = DQN(spec, CONFIGS[name]), prioritized(7)
    mask = np.random.default_rng(0).integers(0, 2, size=32)[:, None] == [0, 1]
    packed = [spec.pack(to_numpy(obs), action_mask=mask) for obs in (drawn.obs, drawn.next_obs)]
    obs, next_obs = map(torch.from_numpy, packed)
    legal = torch.from_numpy(mask.argmax(axis=1))
    drawn = replace(drawn, obs=obs, next_obs=next_obs, action=legal)
    errors = policy.td_errors(drawn)
    assert np.isfinite(errors).all()
    np.testing.assert_allclose(np.abs(errors), policy.learn(drawn)["td_error"], rtol=1e-4)


@pytest.mark.parametrize("name", ["default", "single", "squared", "clipped", "dueling"])
@pytest.mark.parametrize("draw", [batch, prioritized])
def test_updates_on_images_are_those_of_plain_torch(name, draw):
    policy = DQN(SCREEN, replace(CONFIGS[name], torso="small"))
    batches = [draw(seed, size=8, spec=SCREEN) for seed in range(12)]
    assert_learns_as_plain_torch(policy, batches, convs=CONVS["small"])


def test_an_update_of_the_nature_network_is_that_of_plain_torch():
    big = EnvSpec(
        env_id="big",
        obs_space=Box(0, 255, (40, 36), dtype=np.uint8),
        action_space=Discrete(2),
        frame_stack=4,
    )
    policy = DQN(big, replace(SMALL, hidden=(32,)))
    assert "conv.2.weight" in policy.weights()
    batches = [batch(seed, size=4, spec=big) for seed in range(3)]
    assert_learns_as_plain_torch(policy, batches, convs=CONVS["nature"])


def test_learners_that_average_their_gradients_stay_alike():
    drawn = [batch(seed) for seed in range(8)]
    one, other, both = (DQN(CARTPOLE, replace(SMALL, max_grad_norm=0.5)) for _ in range(3))
    seen = []
    other.reduce_gradient = lambda grad_P: seen.append(grad_P.clone())

    def average(grad_P):
        grad_P.add_(seen.pop()).mul_(0.5)

    one.reduce_gradient = average
    for left, right in zip(drawn[::2], drawn[1::2], strict=True):
        whole = Transitions(
            *(
                torch.cat((getattr(left, name), getattr(right, name)))
                for name in Transitions.__slots__
            )
        )
        other.learn(right)
        one.learn(left)
        both.learn(whole)
        other.load_state_dict(one.state_dict())
    for name, tensor in one.weights().items():
        torch.testing.assert_close(tensor, both.weights()[name], rtol=1e-3, atol=1e-5)
    assert seen == []


def test_weights_include_the_statistics_of_observations():
    config = replace(SMALL, normalize_obs=True)
    learner, collector = DQN(CARTPOLE, config), DQN(CARTPOLE, config)
    obs = 100.0 + np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    for seed in range(5):
        drawn = batch(seed)
        learner.learn(replace(drawn, obs=100.0 + drawn.obs, next_obs=100.0 + drawn.next_obs))
    assert (learner.q_values(obs) != collector.q_values(obs)).any()
    collector.load_weights({name: tensor.numpy() for name, tensor in learner.weights().items()})
    np.testing.assert_array_equal(learner.q_values(obs), collector.q_values(obs))

    before = collector.weights()
    with pytest.raises(ShapeError, match=r"`normalize_obs` off, and this one has it on"):
        collector.load_weights(DQN(CARTPOLE, SMALL).weights())
    with pytest.raises(ShapeError, match=r"`normalize_obs` on, and this one has it off"):
        DQN(CARTPOLE, SMALL).load_weights(before)
    wrong = {name: tensor for name, tensor in before.items() if name != "head.bias"}
    wrong["norm.count"] = before["norm.count"] + 1.0
    with pytest.raises(ShapeError, match=r"'head.bias' is missing"):
        collector.load_weights(wrong)
    assert all(torch.equal(collector.weights()[name], before[name]) for name in before)


def test_a_normalized_policy_learns_from_observations_of_very_different_sizes():
    plain, normalized = (
        DQN(CARTPOLE, replace(SMALL, normalize_obs=on, lr=1e-2)) for on in (False, True)
    )
    scale = torch.tensor([1e-3, 1.0, 1e3, 1e5])
    losses = {}
    for policy in (plain, normalized):
        for seed in range(300):
            drawn = batch(seed)
            target = drawn.obs[:, 0]  # the value is what the smallest number says
            drawn = replace(drawn, obs=drawn.obs * scale, next_obs=drawn.next_obs * scale)
            drawn.reward[:], drawn.terminated[:] = target, True
            losses[policy] = policy.learn(drawn)["loss"]
    assert losses[normalized] < 0.05 < losses[plain]


def test_images_are_not_normalized():
    with pytest.raises(ConfigError, match="`normalize_obs` is on, but x shows images"):
        DQN(SCREEN, replace(SMALL, normalize_obs=True))


def test_arrays_and_tensors_give_the_same_update():
    one, other = DQN(CARTPOLE, SMALL), DQN(CARTPOLE, SMALL)
    tensors = batch(0)
    arrays = Transitions(*(getattr(tensors, name).numpy() for name in Transitions.__slots__))
    assert one.learn(tensors) == other.learn(arrays)


def test_epsilon_is_the_share_of_random_actions():
    policy = DQN(CARTPOLE, SMALL)
    obs = np.repeat(make_envs("CartPole-v1", 1).obs, 4_000, axis=0)
    best = policy.act(obs, explore=False)
    assert (policy.act(obs, epsilon=0.0) == best).all()
    assert np.mean(policy.act(obs, epsilon=1.0) == best) == pytest.approx(0.5, abs=0.05)
    assert np.mean(policy.act(obs, epsilon=0.4) == best) == pytest.approx(0.8, abs=0.04)


def test_epsilon_falls_with_the_env_steps_acted():
    config = replace(SMALL, epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=1_000)
    policy = DQN(CARTPOLE, config)
    obs = np.zeros((500, 4), dtype=np.float32)
    best = policy.act(obs, explore=False)[0]
    shares = [np.mean(policy.act(obs) == best) for _ in range(3)]
    assert shares == pytest.approx([0.5, 0.75, 1.0], abs=0.08)
    assert policy.env_step == 1_500
    policy.act(obs, explore=False)
    assert policy.env_step == 1_500


def test_an_infinite_loss_raises_and_leaves_the_weights():
    policy = DQN(CARTPOLE, SMALL)
    policy.learn(batch(0))
    before = policy.weights()
    poisoned = batch(1)
    poisoned.reward[3] = math.nan
    with pytest.raises(NonFiniteError, match=r"update 2 is nan.*`lr`"):
        policy.learn(poisoned)
    for name, tensor in policy.weights().items():
        assert torch.equal(tensor, before[name])
    assert math.isfinite(policy.learn(batch(2))["loss"])


@pytest.mark.parametrize("loss", ["huber", "mse"])
@pytest.mark.parametrize("reward", [math.inf, 3e38])
def test_a_loss_that_overflows_is_one_error_without_warnings_before_it(loss, reward, recwarn):
    policy = DQN(CARTPOLE, replace(SMALL, loss=loss))
    poisoned = batch(1)
    poisoned.reward[:] = reward
    poisoned.reward[3] = -reward
    with pytest.raises(NonFiniteError):
        policy.learn(poisoned)
    assert [str(warning.message) for warning in recwarn] == []


def test_weights_of_another_process_can_be_loaded():
    source, target = DQN(CARTPOLE, SMALL), DQN(CARTPOLE, replace(SMALL, seed=1))
    obs = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    assert (source.q_values(obs) != target.q_values(obs)).any()
    target.load_weights({name: tensor.numpy() for name, tensor in source.weights().items()})
    np.testing.assert_array_equal(source.q_values(obs), target.q_values(obs))


def test_published_weights_do_not_follow_the_learner():
    policy = DQN(CARTPOLE, SMALL)
    published = policy.weights()
    before = {name: tensor.clone() for name, tensor in published.items()}
    policy.learn(batch(0))
    assert all(torch.equal(published[name], before[name]) for name in before)


def test_weights_of_another_size_are_refused():
    policy = DQN(CARTPOLE, SMALL)
    with pytest.raises(ShapeError, match=r"'torso.0.weight' .*\(8, 4\).*\(16, 4\)"):
        policy.load_weights(DQN(CARTPOLE, replace(SMALL, hidden=(8,))).weights())


FALLING = {"lr_end": 1e-4, "lr_updates": 15}


@pytest.mark.parametrize("settings", [{}, {"dueling": True}, {"normalize_obs": True}, FALLING])
def test_a_resumed_policy_goes_on_as_if_nothing_had_happened(settings):
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    config = replace(SMALL, target_every=3, target_tau=0.5, **settings)

    def go_on(policy):
        actions = [policy.act(obs).tolist() for _ in range(20)]
        losses = [policy.learn(batch(seed))["loss"] for seed in range(10, 20)]
        return actions, losses, policy.weights()["torso.0.weight"].tolist()

    policy = DQN(CARTPOLE, config)
    for seed in range(10):
        policy.act(obs)
        policy.learn(batch(seed))
    resumed = DQN(CARTPOLE, replace(config, seed=99))
    resumed.load_state_dict(policy.state_dict())
    clone = policy.clone()
    assert go_on(policy) == go_on(resumed) == go_on(clone)
    assert isinstance(policy, Policy)


def test_the_step_size_falls_with_the_updates_and_stays_at_its_end():
    policy = DQN(CARTPOLE, replace(SMALL, lr=1e-3, lr_end=2e-4, lr_updates=4))
    sizes = [policy.learn(batch(seed))["lr"] for seed in range(6)]
    assert sizes == pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4])
    before = policy.weights()["head.bias"]
    assert policy.learn(batch(6))["lr"] == 2e-4
    assert (policy.weights()["head.bias"] - before).abs().max() < 2.5e-4


def test_a_state_of_another_kind_is_refused():
    policy = DQN(CARTPOLE, SMALL)
    state = policy.state_dict()
    state["q_nets"] = state.pop("q_net")
    with pytest.raises(CheckpointError, match=r"missing \['q_net'\].*Did you mean \"q_net\""):
        policy.load_state_dict(state)
    other = DQN(CARTPOLE, replace(SMALL, hidden=(8,))).state_dict()
    before = policy.weights()
    with pytest.raises(ShapeError):
        policy.load_state_dict(other)
    assert all(torch.equal(policy.weights()[name], before[name]) for name in before)


def test_policies_do_not_touch_the_global_generators():
    torch.manual_seed(5)
    np.random.seed(5)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)
    learn_in("probe/OneReward-v0", gamma=0.9, updates=3)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_state)


def test_observations_of_another_environment_are_refused():
    policy = DQN(CARTPOLE, SMALL)
    wrong = batch(0)
    for obs in (np.zeros((2, 3), dtype=np.float32), np.zeros(4, dtype=np.float32)):
        with pytest.raises(ShapeError, match=r"`obs` has shape .* CartPole-v1 .*\(N, 4\)"):
            policy.act(obs)
    with pytest.raises(ShapeError, match=r"\(32, 2\)"):
        policy.learn(replace(wrong, obs=wrong.obs[:, :2]))


def test_bytes_that_became_floats_are_refused():
    policy = DQN(SCREEN, SMALL)
    drawn = batch(0, spec=SCREEN)
    policy.learn(drawn)
    with pytest.raises(ShapeError, match=r"type float32; observations of x are bytes"):
        policy.act(np.zeros((2, 3, 10, 10), dtype=np.float32))
    for name in ("obs", "next_obs"):
        with pytest.raises(ShapeError, match=r"type torch.float32; observations of x are bytes"):
            policy.learn(replace(drawn, **{name: getattr(drawn, name).float()}))


def test_box_actions_are_refused():
    with pytest.raises(ConfigError, match=r"DQN chooses .* Pendulum-v1 .*Box"):
        DQN(make_envs("Pendulum-v1", 1).spec)


COUNTS = ["lr_updates", "n_step", "batch_size", "target_every", "epsilon_steps", "seed"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1.5, True, "1", None, -1])
def test_counts_must_be_whole_numbers(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` is .*; it must be a whole number from"):
        DQNConfig(**{name: value})


def test_a_mistyped_setting_gets_a_suggestion():
    with pytest.raises(ConfigError) as caught:
        DQNConfig(hiden=1)  # type: ignore[call-arg]
    message = str(caught.value)
    assert message.startswith('Unknown key "hiden". Did you mean "hidden"? The keys of DQNConfig')
    assert "gamma, hidden, torso, convs, activation," in message


def test_all_wrong_settings_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        DQNConfig(
            lr=0.0,
            lr_end=-1e-4,
            gamma=1.5,
            n_step=0,
            hidden=(),
            loss="hubert",  # type: ignore[arg-type]
            target_tau=0.0,
        )
    for name in ("lr", "lr_end", "gamma", "n_step", "hidden", "loss", "target_tau"):
        assert f"`{name}`" in str(caught.value)
    with pytest.raises(ConfigError, match=r'Did you mean "hidden"'):
        as_config(DQNConfig, {"hiden": (8,)})
    assert as_config(DQNConfig, {"hidden": [8, 8], "lr": 1e-3}).hidden == (8, 8)


def own_network(spec):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(math.prod(spec.obs_shape), 8), torch.nn.Linear(8, 2)
    )


@pytest.mark.parametrize(
    ("settings", "network"),
    [
        ({}, None),
        ({"double": False, "loss": "mse"}, None),
        ({"dueling": True, "max_grad_norm": 1.0, "lr_end": 1e-4}, None),
        ({"max_grad_norm": 1.0, "hidden": DQNConfig.hidden}, own_network),
        ({"normalize_obs": True}, None),
    ],
)
def test_an_update_on_a_device_copies_nothing_to_the_host(settings, network):
    """Tensors of the device `meta` have no data: whatever reads one raises."""
    config = replace(SMALL, **settings)
    policy = DQN(CARTPOLE, config, network=network, device="meta")
    metrics = policy.learn(prioritized(0))
    assert policy.train_iter == 1
    assert set(metrics) >= {"loss", "q_mean", "td_error"}
    with pytest.raises(NotImplementedError, match="no data"):
        metrics["loss"]


def test_an_update_of_a_loss_that_is_not_finite_is_left_out_on_a_device(monkeypatch):
    """The tensors of a CPU stand for those of a device."""
    monkeypatch.setattr(host_or_device, "is_host", lambda device: False)
    Rows.of_one.cache_clear()
    policy, good = DQN(CARTPOLE, replace(SMALL, target_every=1)), batch(0)
    bad = replace(good, reward=torch.full_like(good.reward, math.inf))
    dict(policy.learn(good))
    before = policy.state_dict()
    metrics = policy.learn(bad)
    after = policy.state_dict()
    assert after.pop("train_iter") == before.pop("train_iter") + 1
    unchanged = dict(leaves(before))
    for path, value in leaves(after):
        np.testing.assert_array_equal(to_numpy(value), to_numpy(unchanged[path]), err_msg=str(path))
    policy.learn(good)
    with pytest.raises(NonFiniteError, match="DQN's update 2 is"):
        metrics["q_mean"]
    policy.reduce_gradient = lambda grad_P: pytest.fail("others took its gradient")
    with pytest.raises(NonFiniteError, match="DQN's update 4 is"):
        policy.learn(bad)
    Rows.of_one.cache_clear()
