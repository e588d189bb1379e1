"""DQN with networks and optimisers of users."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite import Parallel, Task, middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.rl import (
    DQN,
    R2D2,
    SAC,
    DQNConfig,
    R2D2Config,
    ReplayBuffer,
    SACConfig,
    make_envs,
    mean_return,
)
from ding_lite.rl.policies.base.config import without_unused
from tests.rl.policies.test_dqn import CARTPOLE, batch, prioritized


class QNet(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(spec.obs_shape[0], 16), nn.Linear(16, spec.num_actions)

    def forward(self, obs):
        return self.fc2(torch.relu(self.fc1(obs)))


def with_dropout(spec):
    first = nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16)
    return nn.Sequential(*first, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


@pytest.mark.parametrize("config", [DQNConfig(hidden=(16,)), DQNConfig(hidden=(16,), double=False)])
def test_a_users_network_learns_as_the_built_in_one_does(config):
    house = DQN(CARTPOLE, config)
    module = QNet(CARTPOLE)
    module.load_state_dict(dict(zip(module.state_dict(), house.weights().values(), strict=True)))
    own = DQN(CARTPOLE, replace(config, hidden=DQNConfig.hidden), network=module)
    assert own.module is module
    for seed in range(20):
        one = prioritized(seed) if seed % 2 else batch(seed)
        expected, found = house.learn(one), own.learn(one)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)
    weights = [[*each.weights().values()] for each in (own, house)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


def test_a_policy_like_another_has_its_parts_and_other_settings():
    policy = DQN(CARTPOLE, network=QNet(CARTPOLE), optimizer=torch.optim.SGD)
    twin = policy.like(DQNConfig(lr=0.5))
    assert twin.config.lr == 0.5
    assert twin.has_own_network
    assert twin.has_own_optimizer
    assert not DQN(CARTPOLE).has_own_network
    before = policy.weights()
    twin.learn(batch(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.weights().items())


class Alone:
    """A group of one learner, of rank 1, that gets the state of another."""

    rank = 1

    def __init__(self, state):
        self.state = state

    def broadcast(self, value):
        return self.state

    def averager(self):
        return lambda tensor: None


def test_learners_share_weights_but_not_random_numbers():
    first, second = (DQN(CARTPOLE, DQNConfig(seed=s), network=with_dropout) for s in (0, 1))
    before = second.state_dict()
    second.data_parallel(Alone(first.state_dict()))
    after = second.state_dict()
    assert torch.equal(after["q_net"]["0.weight"], first.weights()["0.weight"])
    for key in ("rng", "network_rng"):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)


def test_a_network_is_refused_where_pytorch_can_record_no_gradients():
    with torch.inference_mode():
        network = nn.Linear(4, 2)
        with pytest.raises(ConfigError, match=r"A DQN made within `torch\.inference_mode"):
            DQN(CARTPOLE)
    with pytest.raises(ConfigError, match=r"'weight' .* made within `torch\.inference_mode"):
        DQN(CARTPOLE, network=network)


@pytest.mark.parametrize("name", ["recur", "encode", "weights", "run"])
def test_a_layer_of_any_name_is_a_layer_and_not_the_network(name):
    class Named(nn.Module):
        def __init__(self, spec):
            super().__init__()
            self.add_module(name, nn.Linear(4, 2))
            self.head = nn.Linear(2, 2)

        def forward(self, obs):
            return self.head(self.get_submodule(name)(obs))

    policy = DQN(CARTPOLE, network=Named)
    before = policy.weights()
    policy.learn(batch(0))
    assert not torch.equal(policy.weights()["head.weight"], before["head.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (512,)}, r"`hidden` is \(512,\), which describes.*Leave `hidden` out"),
        ({"dueling": True, "activation": "tanh"}, "`activation` is 'tanh' and `dueling` is True"),
    ],
)
def test_settings_of_a_network_beside_a_given_one_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        DQN(CARTPOLE, DQNConfig(**settings), network=QNet)
    DQN(CARTPOLE, DQNConfig(**settings), optimizer=torch.optim.SGD)


def test_settings_of_a_network_describe_what_was_not_given():
    pendulum = make_envs("Pendulum-v1", 1).spec
    described = SACConfig(hidden=(7,), activation="tanh")
    actor, critic = (lambda _: nn.Linear(3, 2)), (lambda _: nn.Bilinear(3, 1, 1))
    SAC(pendulum, described, actor=actor)
    SAC(pendulum, described, critic=critic)
    with pytest.raises(ConfigError, match=r"`hidden` is .* and `activation` is 'tanh'"):
        SAC(pendulum, described, actor=actor, critic=critic)
    R2D2(CARTPOLE, R2D2Config(memory="gru"))


def test_what_a_preset_says_of_parts_that_are_replaced_is_left_out():
    preset = {"hidden": (512,), "torso": "nature", "lr": 1e-3, "lr_end": 1e-6}
    own = {"network": QNet, "optimizer": lambda params: torch.optim.SGD(params, lr=0.1)}
    assert without_unused(preset, own) == {"lr": 1e-3}
    assert without_unused(preset, {"actor": QNet, "optimizer": torch.optim.SGD}) == preset


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_task_that_runs_sets_the_threads_of_pytorch_and_nothing_that_is_made_does(monkeypatch):
    replay = ReplayBuffer(CARTPOLE, capacity=64)
    with make_envs("CartPole-v1", 2) as envs, Task() as task:
        policy = DQN(envs.spec)
        task.use(mw.collect(policy, envs, steps=4))
        task.use(mw.add_to(replay))
        task.use(mw.train(policy, replay, batch_size=4))
        task.use(mw.evaluate(policy, envs, every=100))
        mean_return(policy, envs)
        assert torch.get_num_threads() == 2
        task.run(max_step=1)
        assert torch.get_num_threads() == 1
        monkeypatch.setenv("DING_LITE_TORCH_THREADS", "2")
        task.run(max_step=1)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        monkeypatch.setenv("DING_LITE_TORCH_THREADS", "0")
        task.run(max_step=1)
        assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("two_threads")
def test_a_node_has_its_threads_of_pytorch_before_main_is_called(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert Parallel.runner(1)(torch.get_num_threads) == [1]
    assert Parallel.runner(2)(torch.get_num_threads) == [1, 1]


def test_settings_that_could_have_no_effect_any_more_are_refused():
    policy: Any = DQN(CARTPOLE)
    with pytest.raises(ConfigError, match=r"config of a DQN cannot be replaced.*policy\.like"):
        policy.config = replace(policy.config, lr=1e-9)
    with pytest.raises(ConfigError, match="cannot be replaced"):
        policy.config = {"lr": 1e-9}
    assert policy.config == DQNConfig()
