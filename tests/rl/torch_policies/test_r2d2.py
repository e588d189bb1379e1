"""R2D2: its loss beside a slow twin, stored states, burn-in, resume, and a task of memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tests.rl.probes  # noqa: F401 registers the environments
from ding_lite import Task, middleware as mw
from ding_lite.errors import ConfigError, ShapeError
from ding_lite.nest import leaves
from ding_lite.rl import (
    DQN,
    R2D2,
    EpisodeBuffer,
    Memory,
    Policy,
    R2D2Config,
    ReplayBuffer,
    Sequences,
    TorchPolicy,
    TorchPolicyConfig,
    Transitions,
    load_checkpoint,
    make_envs,
    mean_return,
    save_checkpoint,
)
from ding_lite.rl.formulas.returns import rescaled, unscaled
from ding_lite.rl.protocols import LearnsFromSequences
from tests.rl.nets import Leaky

CARTPOLE = make_envs("CartPole-v1", 1).spec
SMALL = R2D2Config(hidden=(6,), memory_size=5, batch_size=8, sequence_length=6, burn_in=3)
OWN = replace(SMALL, hidden=R2D2Config.hidden, memory_size=R2D2Config.memory_size)
"""The same for networks of one's own, which need no sizes."""


def filled(policy, *, steps=60):
    """Return a buffer that a pipeline has filled."""
    episodes = EpisodeBuffer(CARTPOLE, capacity=1_000, num_envs=4, state_size=policy.state_size)
    with Task() as task:
        task.use(mw.collect(policy, make_envs("CartPole-v1", 4, seed=0), steps=8))
        task.use(mw.add_to(episodes))
        task.run(max_step=steps)
    return episodes


def slow_loss(policy, batch):
    """Go through one sequence after the other, and one step after the other."""
    config, target = policy.config, policy.target
    losses = []
    for row in range(len(batch)):
        obs, mask = batch.obs[row], batch.mask[row]

        def values(net, row=row, obs=obs, mask=mask):
            """Return the values at each step from the burn-in's end on."""
            state, found = batch.state[row][None], []
            for time in range(len(obs)):
                if time < batch.burn_in:
                    if mask[time]:
                        state = net(obs[time][None], state)[1].detach()
                    continue
                q, state = net(obs[time][None], state)
                found.append(q[0])
            return found

        online = values(policy.net)
        with torch.no_grad():
            later = values(target)
        reward, action = batch.reward[row, batch.burn_in :], batch.action[row, batch.burn_in :]
        ended, exists = batch.terminated[row, batch.burn_in :], mask[batch.burn_in :]
        for time in range(config.sequence_length):
            if not exists[time]:
                continue
            goal, end = 0.0, time
            while end < time + config.n_step and end < len(exists) and exists[end]:
                goal += config.gamma ** (end - time) * float(reward[end])
                end += 1
            if not ended[end - 1]:
                ranked = online[end] if config.double else later[end]
                value = later[end][ranked.argmax()]
                value = unscaled(value) if config.rescale else value
                goal += config.gamma ** (end - time) * float(value)
            if config.rescale:
                goal = float(rescaled(torch.tensor(goal)))
            error = online[time][action[time]] - goal
            losses.append(torch.where(error.abs() < 1.0, 0.5 * error**2, error.abs() - 0.5))
    return torch.stack(losses).mean()


CONFIGS = {
    "lstm": SMALL,
    "gru, rescaled": replace(SMALL, memory="gru", rescale=True),
    "single, one step": replace(SMALL, double=False, n_step=1),
    "layers, long returns": replace(SMALL, hidden=(6, 5), activation="tanh", n_step=9),
    "no burn-in": replace(SMALL, burn_in=0),
}


@pytest.mark.parametrize("name", [*CONFIGS, "own network"])
def test_loss_and_gradient_are_those_of_single_steps(name):
    torch.manual_seed(0)
    own = Leaky(size=7) if name == "own network" else None
    policy = R2D2(CARTPOLE, CONFIGS.get(name, OWN), network=own)
    episodes = filled(policy, steps=40)
    for _ in range(3):  # the target is another network then
        policy.learn(episodes.sample(8, length=6, burn_in=policy.burn_in))
    batch = episodes.sample(8, length=6, burn_in=policy.burn_in)
    assert not batch.mask.all()

    grad_P, metrics = policy.gradients(batch)
    loss = slow_loss(policy, batch)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    parameters = [*policy.net.parameters()]
    slow = torch.autograd.grad(loss, parameters)
    slow_P = torch.cat([grad.flatten() for grad in slow])
    torch.testing.assert_close(grad_P, slow_P, rtol=1e-3, atol=1e-5)


# -- acting ------------------------------------------------------------------------------


def test_it_acts_by_its_memory():
    policy = R2D2(CARTPOLE, SMALL)
    assert isinstance(policy, Policy)
    assert isinstance(policy, LearnsFromSequences)
    memory = policy.make_memory(3)
    assert isinstance(memory, Memory)
    kept, obs = memory.state, np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    assert policy.act(obs, explore=False, memory=memory).shape == (3,)
    values, state = policy.module(torch.from_numpy(obs), torch.zeros(3, policy.state_size))
    np.testing.assert_allclose(kept, state.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert values.shape == (3, 2)
    assert policy.env_step == 0
    random = policy.act(np.repeat(obs, 100, axis=0), epsilon=1.0, memory=policy.make_memory(300))
    assert 100 < random.sum() < 200
    assert policy.env_step == 300


def test_forbidden_actions_are_neither_chosen_nor_valued():
    spec = replace(CARTPOLE, has_action_mask=True)
    policy = R2D2(spec, SMALL)
    mask = np.array([[True, False], [False, True]] * 50)
    obs = spec.pack(np.zeros((100, 4), np.float32), action_mask=mask)
    for explore in (False, True):
        memory = policy.make_memory(100)
        actions = policy.act(obs, explore=explore, epsilon=0.5, memory=memory)
        assert actions.tolist() == [0, 1] * 50
    none_legal = spec.pack(np.zeros((100, 4), np.float32), action_mask=np.zeros((100, 2), bool))
    actions = policy.act(none_legal, epsilon=0.5, memory=policy.make_memory(100))
    assert set(actions.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (nn.Linear(4, 2), ConfigError, r"`network` \(Linear\) has the `state_size` None"),
        (Leaky(5, 2, 7), ConfigError, "does not take what CartPole-v1 gives"),
        (lambda spec: Leaky(4, 3, 7), ShapeError, r"float32 \(2, 2\) and float32 \(2, 7\) was"),
    ],
)
def test_networks_that_do_not_fit_are_refused(network, error, message):
    with pytest.raises(error, match=message):
        R2D2(CARTPOLE, OWN, network=network)


# -- learning ----------------------------------------------------------------------------


def test_other_batches_are_refused():
    policy = R2D2(CARTPOLE, SMALL)
    batch = filled(policy).sample(4, length=6, burn_in=3)
    with pytest.raises(ConfigError, match=r"learns from sequences .* and got no states"):
        policy.learn(replace(batch, state=None))
    own = R2D2(CARTPOLE, OWN, network=lambda _: Leaky(size=7))
    with pytest.raises(ShapeError, match=r"have shape \(4, 10\); \(4, 7\) was expected"):
        own.learn(batch)
    one, no = batch.reward[:, 0], batch.truncated[:, 0]
    plain = Transitions(batch.obs[:, 0], one, one, batch.obs[:, 1], no, no, one)
    with pytest.raises(ConfigError, match="and got a Transitions"):
        policy.learn(plain)


def test_sequences_and_transitions_are_not_mixed_up():
    policy = R2D2(CARTPOLE, SMALL)
    episodes = EpisodeBuffer(CARTPOLE, capacity=100, num_envs=2, state_size=policy.state_size)
    with pytest.raises(ConfigError, match="`policy` is a R2D2 and `replay` a ReplayBuffer"):
        mw.train(policy, ReplayBuffer(CARTPOLE, capacity=100))
    with pytest.raises(ConfigError, match="`policy` is a DQN and `replay` an EpisodeBuffer"):
        mw.train(DQN(CARTPOLE), episodes)


ONES = torch.ones(8, 5)


class OwnRecurrent(TorchPolicy[TorchPolicyConfig]):
    """Predicts rewards from sums of what it has seen; learns from sequences."""

    state_size, sequence_length, burn_in = 4, 5, 2

    def build(self):
        self.net = nn.Linear(4, 2)

    def choose(self, obs, explore, state):
        return self.net(state + obs).argmax(-1), state + obs

    def loss(self, batch):
        assert all(isinstance(x, torch.Tensor) for x in (batch.obs, batch.state, batch.mask))
        seen = batch.state[:, None] + (batch.obs[:, :-1] * batch.mask[..., None]).cumsum(1)
        assert isinstance(batch.extra["x"], torch.Tensor)
        found = self.net(seen).gather(-1, batch.action[..., None]).squeeze(-1)
        later = batch.mask[:, batch.burn_in :]
        error = (found - batch.reward)[:, batch.burn_in :].square()
        return (error * later).sum(1) / later.sum(1), {}


def test_algorithms_of_users_learn_from_sequences():
    policy = OwnRecurrent(CARTPOLE)
    batch = replace(filled(policy, steps=30).sample(8, length=5, burn_in=2), extra={"x": ONES})
    arrays = {n: np.asarray(getattr(batch, n)) for n in Sequences.__match_args__}
    state, x = np.asarray(batch.state), np.asarray(ONES)
    of_numpy = Sequences(**arrays, burn_in=2, state=state, extra={"x": x})
    left, right = policy.gradients(batch), policy.gradients(of_numpy)
    torch.testing.assert_close(left[0], right[0], rtol=0.0, atol=0.0)
    assert policy.learn(batch)["loss"] == right[1]["loss"]


def make(own, seed=0, optimizer=None, normalize_obs=False):
    config = replace(OWN if own else SMALL, seed=seed, normalize_obs=normalize_obs)
    torch.manual_seed(3)
    network = Leaky(size=7) if own else None
    return R2D2(CARTPOLE, config, network=network, optimizer=optimizer)


class Parts:
    """A pipeline with all that its checkpoint holds."""

    def __init__(self, policy):
        self.envs, self.policy = make_envs("CartPole-v1", 4, seed=0), policy
        self.episodes = EpisodeBuffer(
            CARTPOLE,
            capacity=300,
            num_envs=4,
            state_size=policy.state_size,
            seed=policy.config.seed,
        )
        self.collect: Any = mw.collect(self.policy, self.envs, steps=8)
        self.parts: tuple[Any, ...] = (self.policy, self.episodes, self.collect, self.envs)

    def run(self, steps):
        with Task() as task:
            task.use(self.collect)
            task.use(mw.add_to(self.episodes))
            task.use(mw.train(self.policy, self.episodes))
            task.run(max_step=steps)

    def state_dict(self):
        return {str(k): part.state_dict() for k, part in enumerate(self.parts)}

    def load_state_dict(self, state):
        for k, part in enumerate(self.parts):
            part.load_state_dict(state[str(k)])


@pytest.mark.parametrize("own", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, own):
    settings = {"own": own, "optimizer": torch.optim.RMSprop if own else None}
    first, second = (Parts(make(**settings, normalize_obs=True, seed=seed)) for seed in (0, 1))
    first.run(25)
    assert first.policy.train_iter > 5
    save_checkpoint(tmp_path, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path).state)
    for run in (first, second):
        run.run(8)
    left, right = dict(leaves(first.state_dict())), dict(leaves(second.state_dict()))
    assert left.keys() == right.keys()
    differs = [
        path for path in left if not np.array_equal(np.asarray(left[path]), np.asarray(right[path]))
    ]
    assert not differs


@pytest.mark.parametrize("own", [False, True])
def test_normalised_observations_are_seen_wherever_the_network_is(own):
    policy, batch = make(own, normalize_obs=True), filled(make(own)).sample(8, length=6, burn_in=3)
    policy.learn(batch)
    batch_obs = np.asarray(batch.obs)
    seen = batch_obs[:, :-1][np.asarray(batch.mask)]
    weights = policy.weights()
    np.testing.assert_allclose(weights["norm.mean"], seen.mean(0), rtol=1e-4, atol=1e-6)
    assert weights["norm.count"] == len(seen)

    plain = make(own)
    plain.load_weights({n: w for n, w in weights.items() if not n.startswith("norm.")})
    plain.target.load_state_dict(policy.target.state_dict())
    normed = (batch_obs - seen.mean(0)) / seen.std(0)
    expected = plain.gradients(replace(batch, obs=torch.from_numpy(normed)))
    found = policy.gradients(batch)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-3, atol=1e-5)

    memory: Any = policy.make_memory(8)
    obs = batch_obs[:, 0]
    values, state = policy.module(torch.from_numpy(obs), torch.from_numpy(memory.state.copy()))
    assert policy.act(obs, explore=False, memory=memory).tolist() == values.argmax(-1).tolist()
    np.testing.assert_allclose(memory.state, state.detach().numpy(), atol=1e-6)


def test_a_cue_is_remembered_until_it_is_asked_for():
    envs = make_envs("probe/Recall-v0", 8, seed=0)
    sizes = {"memory": "gru", "memory_size": 16, "hidden": (16,), "sequence_length": 3}
    learning = {"burn_in": 1, "lr": 1e-2, "gamma": 0.9, "target_tau": 0.05, "epsilon_steps": 500}
    policy = R2D2(envs.spec, sizes | learning)
    episodes = EpisodeBuffer(envs.spec, capacity=2_000, num_envs=8, state_size=policy.state_size)
    with Task() as task:
        task.use(mw.collect(policy, envs, steps=8))
        task.use(mw.add_to(episodes))
        task.use(mw.train(policy, episodes))
        task.run(max_step=200)
    assert mean_return(policy, make_envs("probe/Recall-v0", 8, seed=99), episodes=80) == 1.0
