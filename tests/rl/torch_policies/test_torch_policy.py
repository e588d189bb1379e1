"""Algorithms of users: what the base adds to networks and a loss."""

import copy
import random
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import nn

from ding_lite.errors import ConfigError, ShapeError
from ding_lite.rl import (
    DQN,
    DQNConfig,
    TorchPolicy,
    TorchPolicyConfig,
    load_checkpoint,
    save_checkpoint,
)
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.torch_policies.config import config_type
from tests.rl.policies.base.test_open_policy import Alone
from tests.rl.policies.test_dqn import CARTPOLE, batch, prioritized
from tests.threads import together

OBS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class PlainDQNConfig(TorchPolicyConfig):
    tau: float = 0.05
    dropout: float = 0.0
    every: int = 1


class PlainDQN(TorchPolicy[PlainDQNConfig]):
    """Double DQN, as a user would write it."""

    def build(self):
        self.net = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Dropout(self.config.dropout), nn.Linear(16, 2)
        )
        self.target = self.follow(self.net, tau=self.config.tau, every=self.config.every)

    def choose(self, obs, explore):
        best = self.net(obs).argmax(-1)
        if not explore:
            return best
        return torch.where(torch.rand(best.shape) < 0.5, torch.randint(2, best.shape), best)

    def loss(self, batch):
        rows = torch.arange(len(batch), device=self.device)
        q = self.net(batch.obs)[rows, batch.action]
        with torch.no_grad():
            best = self.net(batch.next_obs).argmax(-1)
            later = self.target(batch.next_obs)[rows, best]
            discount = self.config.gamma**batch.num_steps * ~batch.terminated
            goal = batch.reward + discount * later
        loss = nn.functional.smooth_l1_loss(q, goal, reduction="none")
        return loss, {"q_mean": q.mean(), "td_error": q - goal}


def copies(policy, tmp_path, *, other=None):
    """Return a clone, and another policy that has loaded a checkpoint."""
    other = other or type(policy)(CARTPOLE)
    save_checkpoint(tmp_path / "c", {"policy": policy.state_dict()})
    other.load_state_dict(load_checkpoint(tmp_path / "c").state["policy"])
    return policy.clone(), other


def make(**settings):
    more = {name: settings.pop(name) for name in ("optimizer", "device") if name in settings}
    return PlainDQN(CARTPOLE, PlainDQNConfig(**settings), **more)


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("limit", [None, 0.1])
def test_it_learns_as_the_built_in_dqn_does(limit, normalize_obs):
    settings = {"lr": 2e-3, "lr_end": 1e-4, "lr_updates": 15, "max_grad_norm": limit}
    settings["normalize_obs"] = normalize_obs
    house = DQN(CARTPOLE, DQNConfig(hidden=(16,), target_tau=0.05, **settings))
    own = make(**settings)
    own.load_weights(dict(zip(own.weights(), house.weights().values(), strict=True)))
    own.target.load_state_dict(own.net.state_dict())
    for seed in range(20):
        one = prioritized(seed) if seed % 2 else batch(seed)
        expected, found = house.learn(one), own.learn(one)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)
    pairs = zip(own.weights().values(), house.weights().values(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    values = house.module(torch.from_numpy(OBS))
    assert own.module(torch.from_numpy(OBS)).tolist() == values.argmax(-1).tolist()
    assert own.act(OBS, explore=False).tolist() == values.argmax(-1).tolist()


def _deeper(network):
    return nn.Sequential(*copy.deepcopy(network), nn.Linear(2, 2))


def test_the_module_for_inference_is_pickled_with_its_weights(tmp_path):
    policy = PlainDQN(CARTPOLE, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert policy.change_networks(_deeper)
    policy.learn(batch(0))
    torch.save(policy.module, tmp_path / "module.pt")
    expected = policy.act(OBS, explore=False)
    policy.learn(batch(1))
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    assert not any(part.training for part in loaded.modules())
    np.testing.assert_array_equal(loaded(torch.from_numpy(OBS)), expected)


def test_a_target_follows_every_so_often():
    policy = make(tau=1.0, every=3)
    for update in range(1, 7):
        before = policy.target[0].weight.clone()
        policy.learn(batch(update))
        if update % 3:
            assert torch.equal(policy.target[0].weight, before)
        else:
            assert torch.equal(policy.target[0].weight, policy.net[0].weight)
    assert not any(parameter.requires_grad for parameter in policy.target.parameters())


def test_targets_may_be_kept_in_a_module_list():
    def build(self):
        self.nets = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))
        self.targets = nn.ModuleList(self.follow(net, tau=1.0) for net in self.nets)
        self.net, self.target = self.nets[0], self.targets[0]

    policy = broken(build=build)(CARTPOLE)
    policy.clone().learn(batch(0))
    policy.learn(batch(0))
    torch.testing.assert_close(policy.targets.state_dict(), policy.nets.state_dict())
    assert len(policy.weights()) == 6


def test_errors_without_learning_are_those_of_the_network_as_it_acts():
    policy, drawn = make(dropout=0.5), prioritized(3)
    errors = policy.td_errors(drawn)
    with torch.no_grad():
        _, metrics = policy.loss(drawn)  # in the mode for acting, as it was left
    np.testing.assert_array_equal(errors, metrics["td_error"].abs().numpy())
    with pytest.raises(ConfigError, match="`loss` of Silent reports no `td_error`"):
        Silent(CARTPOLE).td_errors(drawn)


class Silent(PlainDQN):
    """Reports no errors."""

    def loss(self, batch):
        return super().loss(batch)[0], {}


def test_frozen_networks_pass_gradients_on():
    policy = make()
    obs = torch.from_numpy(OBS).requires_grad_()
    policy._flat.grads.flat.zero_()
    with policy.frozen(policy.net):
        policy.net(obs).sum().backward()
    assert obs.grad is not None
    assert obs.grad.any()
    assert not policy._flat.grads.flat.any()
    assert all(parameter.requires_grad for parameter in policy.net.parameters())


class Delayed(PlainDQN):
    """Learns a second network in every third update."""

    def build(self):
        self.actor = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        super().build()
        self.scale = nn.Parameter(torch.ones(()))

    def loss(self, batch):
        loss, metrics = super().loss(batch)
        if self.train_iter % 3 == 0:
            loss = loss + self.scale * self.actor(batch.obs).square().mean(-1)
        return loss, metrics


@pytest.mark.parametrize("optimizer", [None, torch.optim.AdamW])
@pytest.mark.parametrize("learners", ["one", "a group", "other nodes"])
def test_networks_that_a_loss_does_not_use_stay_as_they_are(optimizer, learners):
    policy = Delayed(CARTPOLE, optimizer=optimizer)
    if learners == "a group":
        policy.data_parallel(Alone(policy.state_dict()))
    for update in range(7):
        before = policy.weights()
        if learners == "other nodes":
            policy.apply_gradient(policy.gradients(batch(update))[0])
        else:
            policy.learn(batch(update))
        changed = {name for name, now in policy.weights().items() if not now.equal(before[name])}
        delayed = {name for name in before if name.startswith(("actor", "scale"))}
        assert changed == before.keys() - (delayed if update % 3 else set())


class ReZero(PlainDQN):
    """Adds a branch that has no gradient before the first update."""

    def build(self):
        super().build()
        self.branch, self.scale = nn.Linear(4, 16), nn.Parameter(torch.zeros(1))

    def loss(self, batch):
        loss, metrics = super().loss(batch)
        return loss + (self.scale * self.branch(batch.obs) - 1.0).square().mean(-1), metrics


@pytest.mark.parametrize("optimizer", [None, torch.optim.AdamW])
def test_gradients_of_zero_are_taken_by_learners_and_other_nodes_as_by_one_learner(optimizer):
    one, learner, node = (ReZero(CARTPOLE, optimizer=optimizer) for _ in range(3))
    learner.data_parallel(Alone(learner.state_dict()))
    for update in range(4):
        one.learn(batch(update))
        learner.learn(batch(update))
        node.apply_gradient(node.gradients(batch(update))[0])
    assert one.scale.item()
    for each in (learner, node):
        torch.testing.assert_close(each.weights(), one.weights(), rtol=0, atol=0)


def test_gradients_may_be_sparse():
    class Embedded(PlainDQN):
        def build(self):
            super().build()
            self.rows = nn.EmbeddingBag(6, 3, mode="sum", sparse=True)

        def loss(self, batch):
            loss, metrics = super().loss(batch)
            return loss + self.rows(torch.tensor([[1, 1, 4]])).sum(), metrics

    policy = Embedded(CARTPOLE)
    policy.gradients(batch(0))
    grad = policy.rows.weight.grad
    assert grad is not None
    assert grad[:, 0].tolist() == [0.0, 2.0, 0.0, 0.0, 1.0, 0.0]


class Named(TorchPolicy[Any]):
    build = PlainDQN.build
    choose = PlainDQN.choose
    loss = PlainDQN.loss


@dataclass(frozen=True, kw_only=True)
class NamedConfig(PlainDQNConfig):
    lr: float = 0.5


class Derived(PlainDQN):
    pass


class Early(TorchPolicy["LateConfig"]):
    """Names its config before it is defined, and not like itself."""


class LateConfig(TorchPolicyConfig):
    pass


def test_the_config_class_is_found():
    assert config_type(PlainDQN) is PlainDQNConfig
    assert config_type(Named) is NamedConfig
    assert config_type(Derived) is PlainDQNConfig
    assert config_type(Early) is LateConfig
    assert config_type(TorchPolicy) is TorchPolicyConfig
    assert Named(CARTPOLE).config.lr == 0.5


def broken(**methods):
    return type("Broken", (PlainDQN,), methods)


def in_a_list(self):
    PlainDQN.build(self)
    self.layers = [nn.Linear(2, 2)]


def naming(name, value):
    def build(self):
        PlainDQN.build(self)
        setattr(self, name, value)

    return build


NOT_HELD = nn.Linear(2, 1)


def followed_from_elsewhere(self):
    self.net = nn.Linear(4, 2)
    self.target = self.follow(nn.Linear(4, 2), tau=0.1)


def followed_beside_others(self):
    self.nets = nn.ModuleList([nn.Linear(4, 2)])
    self.nets.append(self.follow(self.nets[0], tau=0.1))


def followed_without_a_shape(self):
    self.net = nn.LazyLinear(2)
    self.target = self.follow(self.net, tau=0.1)


def followed_after_what_shares_its_layers(self):
    self.torso = nn.Linear(4, 2)
    self.net = nn.Sequential(self.torso, nn.Linear(2, 2))
    self.target = self.follow(self.net, tau=0.1)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"build": followed_beside_others}, r"`self\.nets` of Broken contains .*of its own"),
        ({"build": followed_without_a_shape}, "has no shape yet. Run the module once"),
        ({"build": followed_after_what_shares_its_layers}, "set what shares layers with it after"),
        ({"build": in_a_list}, r"`self.layers` of Broken is a list of networks.*nn.ModuleList"),
        ({"build": lambda self: None}, "without parameters"),
        ({"build": naming("act", nn.GELU())}, r"sets `self\.act` to a GELU, and the base classes"),
        ({"build": naming("weights", torch.ones(2))}, r"sets `self\.weights` to a Tensor"),
        ({"build": naming("_norm", nn.LayerNorm(4))}, r"sets `self\._norm` to a LayerNorm"),
        ({"build": naming("gamma", 0.9)}, r"sets `self\.gamma` to another value, and the base"),
        ({"build": naming("module", nn.Linear(4, 2))}, r"sets `self\.module` to another value"),
        ({"build": naming("half", nn.Linear(4, 2))}, r"sets `self\.half` to a Linear"),
        ({"build": naming("type", nn.Parameter(torch.ones(1)))}, r"sets `self\.type` to a Param"),
        ({"build": naming("train_iter", 50)}, r"sets `self\.train_iter` to an int"),
        ({"build": followed_from_elsewhere}, "no network of the policy"),
    ],
)
def test_networks_that_cannot_be_learned_are_refused(methods, message):
    with pytest.raises(ConfigError, match=message):
        broken(**methods)(CARTPOLE)


PLAIN, WEIGHTED = batch(0), prioritized(0)


@pytest.mark.parametrize(
    ("found", "one", "error", "message"),
    [
        (lambda q, b: (q, {}), PLAIN, ShapeError, r"\(32, 2\) for 32.*\(32,\)"),
        (lambda q, b: (q.mean(), {}), WEIGHTED, ShapeError, "importance weights apply to each"),
        (lambda q, b: (q.mean(1), {}), WEIGHTED, ConfigError, "reports no `td_error`"),
        (lambda q, b: (q.mean(1), {"q": q}), PLAIN, ShapeError, r"'q' of Broken has the shape"),
        (lambda q, b: q.mean(1), PLAIN, ShapeError, "returned a Tensor; the loss of each .* and"),
        (lambda q, b: (q.mean(1).detach(), {}), PLAIN, ConfigError, "Broken has no gradient"),
        (lambda q, b: (NOT_HELD(q).sum(), {}), PLAIN, ConfigError, "neither learned nor saved"),
        (lambda q, b: (q.argmax(1), {}), PLAIN, ConfigError, "Broken has no gradient"),
        (lambda q, b: (q.mean(1), {"q": {"x": 0.0}}), PLAIN, ShapeError, "'q' of Broken is a dict"),
        (lambda q, b: (q.mean(1), {"td_error": q}), WEIGHTED, ShapeError, r"is \(32, 2\);"),
    ],
)
def test_a_loss_of_another_form_is_refused(found, one, error, message):
    policy = broken(loss=lambda self, batch: found(self.net(batch.obs), batch))(CARTPOLE)
    with pytest.raises(error, match=message):
        policy.learn(one)


def test_a_single_loss_is_taken_as_it_is():
    policy = broken(loss=lambda self, b: (self.net(b.obs).mean(), {"n": 3}))(CARTPOLE)
    assert policy.learn(batch(0))["n"] == 3


def test_a_loss_may_have_a_backward_of_its_own():
    def probing(self, batch):
        self.net(batch.obs).sum().backward()
        self.net[2].zero_grad()
        return PlainDQN.loss(self, batch)

    policy, plain = broken(loss=probing)(CARTPOLE), broken()(CARTPOLE)
    for seed in range(3):
        policy.learn(batch(seed))
        plain.learn(batch(seed))
    torch.testing.assert_close(policy.weights(), plain.weights(), rtol=0, atol=0)


def test_a_network_that_is_replaced_after_build_is_refused_unless_it_has_the_same_parameters():
    policy = PlainDQN(CARTPOLE)
    policy.net = nn.Sequential(policy.net)
    policy.learn(batch(0))
    policy.net = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=r"`self\.net` of PlainDQN was replaced after `build`"):
        policy.learn(batch(0))


def test_actions_of_another_form_are_refused():
    of_two = broken(choose=lambda self, obs, explore: self.net(obs))
    with pytest.raises(ShapeError, match=r"`choose` of Broken returned the actions \(5, 2\);"):
        of_two(CARTPOLE).act(OBS)
    assert of_two(replace(CARTPOLE, action_space=Box(-1, 1, (2,)))).act(OBS).shape == (5, 2)
    with pytest.raises(ShapeError, match=r"actions as torch\.float32; whole numbers"):
        broken(choose=lambda self, obs, explore: self.net(obs)[:, 0])(CARTPOLE).act(OBS)


class Centred(PlainDQN):
    """Learns from rewards without their running mean, which it keeps itself."""

    def build(self):
        super().build()
        self.mean, self.count, self.half = torch.zeros(1), 0, 0.5 * self.config.tau
        self.counts, self.kept = (
            np.zeros(2),
            dict[str, Any]({"latest": None, "all": [torch.zeros(())]}),
        )
        self.seen = defaultdict[str, int](int)
        self.recent = deque[torch.Tensor](maxlen=2)
        self.parities, self.pairs = set[int](), frozenset[tuple[str, int]]()
        self.later: Any = None

    def loss(self, batch):
        self.count += 1
        self.counts[0] += 1
        self.kept["all"][0] += 1
        self.kept["latest"] = self.count
        self.seen[str(self.count)] += 1
        self.recent.append(torch.tensor(self.count))
        self.parities.add(self.count % 2)
        self.pairs |= {("count", self.count)}
        self.later = deque([self.count])  # `build` has set no deque
        self.mean = self.mean + (batch.reward.mean() - self.mean) / self.count
        loss, metrics = super().loss(batch)
        return loss * (1.0 + self.mean**2), metrics


def test_plain_attributes_that_change_are_saved(tmp_path):
    policy = Centred(CARTPOLE)
    first = policy.state_dict()
    for seed in range(3):
        policy.learn(batch(seed))
    for twin in copies(policy, tmp_path):
        assert twin.count == 3
        assert torch.equal(twin.mean, policy.mean)
        assert (twin.counts.tolist(), twin.kept) == ([3, 0], {"latest": 3, "all": [3]})
        assert twin.seen == {"1": 1, "2": 1, "3": 1}
        assert ([*map(int, twin.recent)], twin.recent.maxlen) == ([2, 3], 2)
        assert twin.parities == {0, 1}
        assert twin.pairs == frozenset({("count", 1), ("count", 2), ("count", 3)})
        assert (type(twin.parities), type(twin.pairs)) == (set, frozenset)
        assert twin.later is None
    twin.learn(batch(3))
    assert (policy.counts[0], policy.kept["all"]) == (3, [3])  # memory is not shared
    assert list(policy.recent) == [2, 3]
    twin.load_state_dict(first)
    assert (twin.count, float(twin.mean)) == (0, 0.0)
    assert (twin.recent, twin.parities, twin.pairs) == (deque(), set(), frozenset())
    changed = Centred(CARTPOLE, PlainDQNConfig(tau=0.5))
    changed.load_state_dict(first)
    assert changed.half == 0.25  # it follows from the config


@pytest.mark.parametrize(
    ("built", "later"),
    [
        (torch.tensor(0.5), 2.5),
        (torch.zeros(2), None),
        (torch.zeros(2), [1, 2]),
        (torch.zeros(2), np.ones(2)),
        (deque([1]), None),
        (None, 1 + 2j),
    ],
)
def test_attributes_may_become_values_of_another_kind(built, later, tmp_path):
    def build(self):
        self.net, self.kept = nn.Linear(4, 2), built

    policy: Any = broken(build=build)(CARTPOLE)
    first = policy.state_dict()
    policy.kept = later
    for twin in copies(policy, tmp_path):
        assert type(twin.kept) is type(later)
        assert np.array_equal(twin.kept, later)
        twin.load_state_dict(first)
        assert type(twin.kept) is type(built)


class Draws(PlainDQN):
    """Explores and learns by generators of its own."""

    def build(self):
        super().build()
        self._rng, self.legacy = (
            np.random.Generator(bits(self.config.seed))
            for bits in (np.random.PCG64, np.random.MT19937)
        )
        self.drawn = torch.Generator().manual_seed(self.config.seed)
        self.older = np.random.RandomState(self.config.seed)
        self.python = random.Random(self.config.seed)
        self.system = random.SystemRandom()  # has no state

    def draw(self):
        return [
            self._rng.random(),
            self.legacy.random(),
            torch.rand(1, generator=self.drawn).item(),
            self.older.normal(),  # draws two, and keeps one
            self.python.gauss(),
        ]


def test_generators_that_are_attributes_are_saved_and_reseeded(tmp_path):
    policy = Draws(CARTPOLE)
    policy.draw()
    (twin, other), reseeded = copies(policy, tmp_path), policy.clone()
    reseeded.reseed(7)
    expected = policy.draw()
    assert expected == other.draw() == twin.draw()
    assert not {*expected} & {*reseeded.draw()}


def test_learners_keep_generators_that_are_attributes():
    first, second = Draws(CARTPOLE), Draws(CARTPOLE)
    first.draw()
    expected = second.clone().draw()
    second.data_parallel(Alone(first.state_dict()))
    assert second.draw() == expected


class WithBonus(PlainDQN):
    """Adds a reward that a network with an optimiser and a learning rate of its own predicts."""

    def build(self):
        super().build()
        self.bonus = nn.Linear(4, 1)
        own = torch.optim.Adam(self.bonus.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(own, gamma=0.5)
        self.own = {"optimizers": [own]}

    def loss(self, batch):
        (own,) = self.own["optimizers"]
        own.zero_grad()
        loss, metrics = super().loss(batch)
        bonus = self.bonus(batch.obs)[:, 0]
        (bonus - batch.reward).square().mean().backward()
        own.step()
        self.schedule.step()
        return loss + bonus.detach(), metrics


def test_optimisers_in_lists_and_schedules_are_saved(tmp_path):
    policy = WithBonus(CARTPOLE)
    for seed in range(3):
        policy.learn(batch(seed))
    for each in (policy, *copies(policy, tmp_path)):
        each.learn(batch(3))
        assert each.schedule.get_last_lr() == [0.1 * 0.5**4]
        torch.testing.assert_close(each.weights(), policy.weights(), rtol=0, atol=0)


class Tempered(PlainDQN):
    """Learns plain tensors by an optimiser of its own."""

    def build(self):
        super().build()
        self.alpha = torch.zeros(1, requires_grad=True)
        self.more = {"beta": [torch.zeros(1, requires_grad=True)]}
        self.own = torch.optim.Adam([self.alpha, *self.more["beta"]], lr=self.config.tau)

    def loss(self, batch):
        self.own.zero_grad()
        (self.alpha + self.more["beta"][0] - 1.0).square().sum().backward()
        self.own.step()
        loss, metrics = super().loss(batch)
        return loss * (1.0 + self.alpha.detach()), metrics


def test_tensors_that_an_own_optimiser_learns_are_learned_in_copies_too(tmp_path):
    policy, other = Tempered(CARTPOLE), Tempered(CARTPOLE)
    policy.learn(batch(0))
    other.learn(batch(5))
    twins = copies(policy, tmp_path, other=other)
    for each in (policy, *twins):
        each.learn(batch(1))
    assert policy.alpha.item() == policy.more["beta"][0].item() == pytest.approx(0.1, rel=0.1)
    for twin in twins:
        assert (twin.alpha, twin.more) == (policy.alpha, policy.more)
        torch.testing.assert_close(twin.weights(), policy.weights(), rtol=0, atol=0)


def test_settings_of_an_own_optimiser_follow_from_the_config_until_they_change():
    policy = Tempered(CARTPOLE)
    policy.learn(batch(0))
    for lr in (0.5, 0.25):
        changed = policy.like(PlainDQNConfig(tau=0.5))
        changed.load_state_dict(policy.state_dict())
        assert changed.own.param_groups[0]["lr"] == lr
        assert changed.alpha.item() == policy.alpha.item()
        policy.own.param_groups[0]["lr"] = 0.25


def test_a_further_optimiser_is_refused_where_its_steps_would_be_lost():
    policy = WithBonus(CARTPOLE)
    with pytest.raises(ConfigError, match=r"does not contain the steps of `self\.own\['optim"):
        policy.gradients(batch(0))
    with pytest.raises(ConfigError, match=r"only `if torch\.is_grad_enabled\(\):`"):
        policy.td_errors(batch(0))
    policy.data_parallel(Alone(policy.state_dict()))
    policy.learn(batch(0))
    with pytest.raises(ConfigError, match="called with a closure"):
        policy.own["optimizers"][0].step(lambda: 0.0)


class OneOfTwo(TorchPolicy[TorchPolicyConfig]):
    """Its loss uses one of two networks."""

    used = "first"

    def build(self):
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def choose(self, obs, explore):
        return self.first(obs).argmax(-1)

    def loss(self, batch):
        return getattr(self, self.used)(batch.obs).square().sum(-1), {}


def test_learners_change_what_the_loss_of_one_of_them_uses():
    barrier, sent = threading.Barrier(2), [torch.empty(0)] * 2

    def averaging(rank):
        def average(grad_P):
            sent[rank] = grad_P.clone()
            barrier.wait(10.0)
            mean = (sent[0] + sent[1]) / 2
            barrier.wait(10.0)
            grad_P.copy_(mean)

        return average

    one = OneOfTwo(CARTPOLE)
    other = one.clone()
    other.used = "second"
    for rank, policy in enumerate((one, other)):
        policy.reduce_gradient = averaging(rank)
    before = one.weights()
    together(*(partial(policy.learn, batch(rank)) for rank, policy in enumerate((one, other))))
    torch.testing.assert_close(one.weights(), other.weights(), rtol=0, atol=0)
    assert not any(torch.equal(one.weights()[name], before[name]) for name in before)


class Fixed(TorchPolicy[TorchPolicyConfig]):
    """Returns the actions of its attribute."""

    def build(self):
        self.net = nn.Linear(self.spec.obs_shape[0], 1)
        self.actions = [0]

    def choose(self, obs, explore):
        return torch.tensor(self.actions)

    def loss(self, batch):
        return self.net(batch.obs).mean(), {}


@pytest.mark.parametrize(
    ("space", "mask", "legal", "excluded"),
    [
        (Discrete(3, start=5), [1, 0, 1], [0, 2], [2, 1]),
        (MultiDiscrete([2, 3]), [0, 1, 1, 1, 0], [[1, 0], [1, 1]], [[1, 1], [1, 2]]),
    ],
)
def test_a_warning_tells_once_of_an_action_that_the_mask_excludes(
    space, mask, legal, excluded, caplog
):
    vector = Box(-1.0, 1.0, (2,))
    spec = EnvSpec(env_id="masked", obs_space=vector, action_space=space, has_action_mask=True)
    obs = spec.pack(np.zeros((2, 2), np.float32), action_mask=np.array([mask, mask], bool))
    policy = Fixed(spec)
    policy.actions = legal
    policy.act(obs)
    assert not caplog.records
    policy.actions = excluded
    for _ in range(2):
        np.testing.assert_array_equal(policy.act(obs), excluded)
    assert [record.getMessage() for record in caplog.records] == [
        "`choose` of Fixed returned an action that `action_mask` of masked excludes. "
        "`self.spec.action_mask(obs)` returns the legal ones"
    ]
