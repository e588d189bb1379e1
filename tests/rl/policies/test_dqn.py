import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError
from ding_lite.rl import DQN, DQNConfig, NStep, Policy, ReplayBuffer, Transitions, make_envs
from ding_lite.settings import as_config
from tests.rl import reference

CARTPOLE = make_envs("CartPole-v1", 1).spec
SMALL = DQNConfig(hidden=(16,), batch_size=32)


def batch(seed, *, size=32):
    """Draw transitions as CartPole would give them."""
    rng = np.random.default_rng(seed)
    return Transitions(
        obs=torch.from_numpy(rng.normal(size=(size, 4)).astype(np.float32)),
        action=torch.from_numpy(rng.integers(0, 2, size=size)),
        reward=torch.from_numpy(rng.normal(scale=2.0, size=size).astype(np.float32)),
        next_obs=torch.from_numpy(rng.normal(size=(size, 4)).astype(np.float32)),
        terminated=torch.from_numpy(rng.random(size) < 0.3),
        truncated=torch.from_numpy(rng.random(size) < 0.3),
        num_steps=torch.from_numpy(rng.integers(1, 4, size=size).astype(np.int32)),
    )


def learn_in(env_id, *, gamma, n_step=1, updates=400, **settings):
    """Let a small DQN act at random in an environment and learn what it saw."""
    config = DQNConfig(
        lr=1e-2, gamma=gamma, n_step=n_step, hidden=(32,), target_tau=0.05, **settings
    )
    envs = make_envs(env_id, 8, seed=0)
    policy, replay = DQN(envs.spec, config), ReplayBuffer(envs.spec, capacity=2_000)
    n_steps = NStep(n_step, gamma, 8)
    for _ in range(120):
        replay.add(n_steps(envs.step(policy.act(envs.obs, epsilon=1.0))))
    for _ in range(updates):
        policy.learn(replay.sample(64))
    return policy


def values(policy, obs):
    return policy.q_values(np.array([[obs]], dtype=np.float32))[0]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_a_reward_of_one_is_worth_one(loss, double):
    policy = learn_in("probe/OneReward-v0", gamma=0.9, loss=loss, double=double)
    assert values(policy, 0.0) == pytest.approx([1.0, 1.0], abs=0.05)


def test_values_follow_the_observation():
    policy = learn_in("probe/RewardIsObs-v0", gamma=0.9)
    assert values(policy, 1.0) == pytest.approx([1.0, 1.0], abs=0.1)
    assert values(policy, -1.0) == pytest.approx([-1.0, -1.0], abs=0.1)


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_a_late_reward_is_discounted(n_step):
    policy = learn_in("probe/LateReward-v0", gamma=0.5, n_step=n_step)
    assert values(policy, 0.0) == pytest.approx([0.5, 0.5], abs=0.05)
    assert values(policy, 1.0) == pytest.approx([1.0, 1.0], abs=0.05)


def test_the_right_action_is_found():
    policy = learn_in("probe/RightAction-v0", gamma=0.9)
    assert values(policy, 0.0) == pytest.approx([-1.0, 1.0], abs=0.1)
    obs = np.zeros((5, 1), dtype=np.float32)
    assert policy.act(obs, explore=False).tolist() == [1] * 5


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncated_episode_is_worth_what_an_endless_one_is(n_step):
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
    "three layers": replace(SMALL, hidden=(8, 12, 16)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_fifty_updates_are_those_of_plain_torch(name):
    config = CONFIGS[name]
    policy = DQN(CARTPOLE, config)
    plain = reference.PlainDQN(policy.weights(), config=config)
    for seed in range(50):
        loss = policy.learn(batch(seed))["loss"]
        assert loss == pytest.approx(plain.learn(batch(seed)), rel=1e-4)
    for tensor_name, tensor in policy.weights().items():
        torch.testing.assert_close(tensor, plain.named[tensor_name].detach(), rtol=1e-4, atol=1e-5)
    for tensor_name, tensor in policy.state_dict()["target_net"].items():
        torch.testing.assert_close(tensor, plain.target[tensor_name], rtol=1e-4, atol=1e-5)


def test_arrays_and_tensors_are_learned_from_alike():
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


def test_an_infinite_loss_is_refused_before_it_does_harm():
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


def test_weights_of_another_process_are_acted_with():
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


def test_a_resumed_policy_goes_on_as_if_nothing_had_happened():
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    config = replace(SMALL, target_every=3, target_tau=0.5)

    def go_on(policy):
        actions = [policy.act(obs).tolist() for _ in range(20)]
        losses = [policy.learn(batch(seed))["loss"] for seed in range(10, 20)]
        return actions, losses, policy.weights()["head.weight"].tolist()

    policy = DQN(CARTPOLE, config)
    for seed in range(10):
        policy.act(obs)
        policy.learn(batch(seed))
    resumed = DQN(CARTPOLE, replace(config, seed=99))
    resumed.load_state_dict(policy.state_dict())
    clone = policy.clone()
    assert go_on(policy) == go_on(resumed) == go_on(clone)
    assert isinstance(policy, Policy)


def test_a_state_of_something_else_is_refused():
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


def test_observations_of_something_else_are_refused():
    policy = DQN(CARTPOLE, SMALL)
    wrong = batch(0)
    for obs in (np.zeros((2, 3), dtype=np.float32), np.zeros(4, dtype=np.float32)):
        with pytest.raises(ShapeError, match=r"`obs` has shape .* CartPole-v1 .*\(N, 4\)"):
            policy.act(obs)
    with pytest.raises(ShapeError, match=r"\(32, 2\)"):
        policy.learn(replace(wrong, obs=wrong.obs[:, :2]))


def test_box_actions_are_refused():
    with pytest.raises(ConfigError, match=r"DQN chooses .* Pendulum-v1 .*Box"):
        DQN(make_envs("Pendulum-v1", 1).spec)


@pytest.mark.parametrize("name", ["n_step", "batch_size", "target_every", "epsilon_steps", "seed"])
@pytest.mark.parametrize("value", [1.5, True, "1", None, -1])
def test_a_setting_that_counts_is_a_whole_number(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` is .*; it must be a whole number from"):
        DQNConfig(**{name: value})


def test_a_mistyped_setting_is_answered_with_the_one_that_was_meant():
    with pytest.raises(ConfigError) as caught:
        DQNConfig(hiden=1)  # type: ignore[call-arg]
    message = str(caught.value)
    assert message.startswith('Unknown key "hiden". Did you mean "hidden"? The keys of DQNConfig')
    assert "lr, gamma, n_step, hidden, double," in message


def test_all_wrong_settings_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        DQNConfig(
            lr=0.0,
            gamma=1.5,
            n_step=0,
            hidden=(),
            loss="hubert",  # type: ignore[arg-type]
            target_tau=0.0,
        )
    for name in ("lr", "gamma", "n_step", "hidden", "loss", "target_tau"):
        assert f"`{name}`" in str(caught.value)
    with pytest.raises(ConfigError, match=r'Did you mean "hidden"'):
        as_config(DQNConfig, {"hiden": (8,)})
    assert as_config(DQNConfig, {"hidden": [8, 8], "lr": 1e-3}).hidden == (8, 8)
