"""Own networks in populations: weights, settings, optimisers, and architectures where they grow."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.errors import ConfigError
from ding_lite.evolution import Population, Search, uniform
from ding_lite.evolution.agent import Agent, make_agent
from ding_lite.evolution.growth.modules import Grows, grow_policy, growth_seeds
from ding_lite.nest import leaves
from ding_lite.rl import A2C, DDPG, DQN, PPO, R2D2, SAC, TD3, TorchPolicy, TorchPolicyConfig
from ding_lite.rl.spec import EnvSpec
from tests.evolution.conftest import assert_close, only, some_transitions
from tests.evolution.kinds import computes
from tests.rl.nets import GrowingLeaky, Joins
from tests.rl.rollouts import CARTPOLE, PENDULUM, lesson


class GrowingLayers(nn.Module):
    """Two layers of any sizes, of which the hidden one grows."""

    def __init__(self, num_inputs: int, num_outputs: int, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(num_inputs, width), nn.Linear(width, num_outputs)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.relu(self.first(torch.cat(inputs, dim=-1))))
        return found

    def grow(self, rng: np.random.Generator) -> nn.Module | None:
        width = self.first.out_features
        if width > 40:
            return None
        sizes = self.first.in_features, self.last.out_features
        new = type(self)(*sizes, width + int(rng.integers(1, 9)))
        new.first.weight[:width], new.first.bias[:width] = self.first.weight, self.first.bias
        new.last.weight.zero_()
        new.last.weight[:, :width] = self.last.weight
        new.last.bias.copy_(self.last.bias)
        return new


class GrowingInPlace(GrowingLayers):
    def grow(self, rng: np.random.Generator) -> nn.Module | None:
        new: Any = super().grow(rng)
        if new is not None:
            self.first, self.last = new.first, new.last
        return self


class GrowingBoth(GrowingLayers):
    def forward(self, *inputs: torch.Tensor) -> Any:
        found = super().forward(*inputs)
        return found[:, :-1], found[:, -1]


class GrowingActor(GrowingLayers):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(*inputs))


class GrowingQ(TorchPolicy[TorchPolicyConfig]):
    """DQN with a network that grows and a part that does not, both followed by targets."""

    def build(self) -> None:
        self.torso, self.head = nn.Linear(4, 4), GrowingLayers(4, 2)
        self.again, self.scale = self.head, nn.Parameter(torch.ones(()))
        self.old_torso = self.follow(self.torso, tau=0.1)
        self.old_head = self.follow(self.head, tau=0.5, every=2)

    def choose(self, obs: torch.Tensor, explore: bool) -> torch.Tensor:
        actions: torch.Tensor = self.again(self.torso(obs)).argmax(-1)
        return actions

    def loss(self, batch: Any) -> Any:
        q = self.scale * self.head(self.torso(batch.obs))
        with torch.no_grad():
            goal = batch.reward + self.old_head(self.old_torso(batch.next_obs)).amax(1)
        return (q.gather(1, batch.action[:, None])[:, 0] - goal) ** 2, {}

    def computes(self, obs: torch.Tensor) -> list[np.ndarray[Any, Any]]:
        pairs = (self.torso, self.again), (self.old_torso, self.old_head)
        return [head(torso(obs)).numpy() for torso, head in pairs]


def growing(_: EnvSpec) -> nn.Module:
    return GrowingLayers(4, 2)


KINDS: dict[str, Any] = {
    "dqn": (DQN, CARTPOLE, {"network": growing}),
    "in place": (DQN, CARTPOLE, {"network": lambda _: GrowingInPlace(4, 2)}),
    "shared": (PPO, CARTPOLE, {"network": lambda _: GrowingBoth(4, 3)}),
    "apart": (A2C, CARTPOLE, {"actor": GrowingLayers(4, 2), "critic": GrowingLayers(4, 1)}),
    "box": (PPO, PENDULUM, {"actor": GrowingLayers(3, 1), "critic": GrowingLayers(3, 1)}),
    "actor alone": (A2C, CARTPOLE, {"actor": GrowingLayers(4, 2), "critic": nn.Linear(4, 1)}),
    "ddpg": (DDPG, PENDULUM, {"actor": lambda _: GrowingActor(3, 1)}),
    "twin critics": (TD3, PENDULUM, {"critic": GrowingLayers(4, 1)}),
    "both critics": (TD3, PENDULUM, {"critic": lambda _: GrowingLayers(4, 2)}),
    "own algorithm": (GrowingQ, CARTPOLE, {}),
    "memory": (R2D2, CARTPOLE, {"network": lambda _: GrowingLeaky()}),
    "soft": (SAC, PENDULUM, {"actor": GrowingLayers(3, 2), "critic": GrowingLayers(4, 1)}),
}


def learned(kind: str, **more: Any) -> Agent:
    policy, spec, parts = KINDS[kind]
    copies = {n: copy.deepcopy(p) if isinstance(p, nn.Module) else p for n, p in parts.items()}
    agent = make_agent(policy(spec, **{**copies, **more}), searched=("gamma",))
    for seed in range(5):
        agent.learn(lesson(agent.policy, seed))
    return agent


def test_growth_of_a_module_keeps_the_moments_of_its_old_parts() -> None:
    agent = learned("dqn")
    old = agent.policy.state_dict()["adam"]
    before, lagging = computes(agent)
    assert np.abs(before - lagging).max() > 1e-4
    assert only("architecture").mutate(agent).startswith("parameters 59 -> ")
    new = agent.policy.state_dict()["adam"]
    assert torch.equal(new["mean"][-2:], old["mean"][-2:])  # of the last bias
    assert torch.equal(new["square"][-2:], old["square"][-2:])
    assert not new["mean"][:-2].any()
    weights = old["square"][:32].mean()
    torch.testing.assert_close(new["square"][:32], weights.expand(32))


def test_a_module_that_does_not_say_how_it_grows_stays_as_it_is(spec: EnvSpec) -> None:
    agent = learned("dqn", network=lambda _: nn.Linear(4, 2))
    before = computes(agent)
    assert not isinstance(agent.policy.module, Grows)
    mutation = only("architecture")
    mutation.check(agent.policy)
    assert mutation.mutate(agent) == "none"
    assert_close(computes(agent), before, atol=0.0)
    with pytest.raises(ConfigError, match="network of its user"):
        only("activation").check(agent.policy)
    with pytest.raises(ConfigError, match="this FrozenTorso has networks that its `build` makes"):
        only("activation").check(FrozenTorso(spec))
    only("activation").check(R2D2(spec))


class Plain(GrowingLayers):
    def grow(self) -> Any:  # type: ignore[override]
        return None


class Wrong(GrowingLayers):
    def grow(self, rng: np.random.Generator) -> Any:
        return rng.integers(3)


class Random(GrowingLayers):
    widths = iter(range(9, 99))

    def grow(self, rng: np.random.Generator) -> Any:
        return type(self)(4, 2, next(self.widths))


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (Plain, r"`grow` of Plain does .*`def grow\(self, rng\):`"),
        (Wrong, r"returned an int64; a new nn\.Module was"),
        (Random, r"`grow` of Random returned other shapes when"),
    ],
)
def test_a_grow_that_does_something_else_is_refused(spec: EnvSpec, head: Any, told: str) -> None:
    class OwnQ(GrowingQ):
        def build(self) -> None:
            super().build()
            self.head = head(4, 2)
            self.old_head = self.follow(self.head, tau=0.5)

    for policy in (DQN(spec, network=head(4, 2)), OwnQ(spec)):
        only("weights").check(policy)
        with pytest.raises(ConfigError, match=told):
            grow_policy(policy, 0)
        with pytest.raises(ConfigError, match=told):
            only("architecture").mutate(Agent(policy))
        if head is Plain:  # known before the first mutation
            with pytest.raises(ConfigError, match=told):
                only("architecture").check(policy)


def test_modules_that_share_layers_do_so_in_every_agent(spec: EnvSpec) -> None:
    actor, critic = GrowingLayers(4, 2), GrowingLayers(4, 1)
    critic.first = actor.first
    population = Population.of(PPO, spec, size=2, actor=actor, critic=critic)
    for agent in population:
        modules: Any = agent.policy.module
        assert modules.critic.first is modules.actor.first
        assert only("architecture").mutate(agent) == "none"
    weights = [agent.policy.module.actor.first.weight.data_ptr() for agent in population]
    assert len(set(weights)) == 2


def test_noise_moves_network_and_target_alike_and_keeps_the_optimiser() -> None:
    agent = learned("dqn", optimizer=torch.optim.RMSprop)
    before = agent.policy.state_dict()
    assert only("weights", mutation_sd=0.2).mutate(agent) == "weights 0.2"
    after = agent.policy.state_dict()
    for name in ("first.weight", "last.bias"):
        moved = after["q_net"][name] - before["q_net"][name]
        assert float(moved.abs().max()) > 1e-3
        torch.testing.assert_close(after["target_net"][name] - before["target_net"][name], moved)
    assert after["q_net"]["calls"] == 0.0
    torch.testing.assert_close(after["optimizer"]["state"], before["optimizer"]["state"])


def test_an_own_optimiser_starts_anew_where_networks_grow(spec: EnvSpec) -> None:
    for network in (None, growing):
        agent = learned("dqn", optimizer=torch.optim.RMSprop, network=network)
        before = computes(agent)
        assert only("architecture", remove_prob=0.0).mutate(agent) != "none"
        assert_close(computes(agent), before)
        assert not agent.policy.state_dict()["optimizer"]["state"]
        agent.learn(some_transitions(spec, 16))


def test_a_module_that_is_given_is_copied_for_each_agent_and_a_function_called(spec):
    given, made = (
        Population.of(DQN, spec, size=2, network=network, optimizer=torch.optim.SGD)
        for network in (GrowingLayers(4, 2), growing)
    )
    before, other = computes(given[1]), computes(made[1])
    assert_close(computes(given[0]), before, atol=0.0)
    assert np.abs(computes(made[0])[0] - other[0]).max() > 1e-3
    given[0].learn(some_transitions(spec, 16))
    assert_close(computes(given[1]), before, atol=0.0)
    assert only("architecture").mutate(made[0]) != "none"
    assert all(life.hidden is None for life in made.lives_now())
    resumed = made.clone()
    assert growth_seeds(resumed[0].policy) == growth_seeds(made[0].policy) != ()
    assert_close(computes(resumed[0]), computes(made[0]), atol=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grown_policy_computes_the_same_and_is_copied_saved_and_goes_on(kind: str) -> None:
    agent = learned(kind)
    before, old = computes(agent), agent.policy.state_dict()
    mutation = only("architecture")
    for _ in range(2):
        described = mutation.mutate(agent).removeprefix("parameters ")
        fewer, more = (int(count) for count in described.split(" -> "))
        assert fewer < more
    assert len(growth_seeds(agent.policy)) == 2
    assert_close(computes(agent), before)
    new = agent.policy.state_dict()
    for key in (key for key in new if key.endswith("adam")):
        assert new[key]["num_updates"] == old[key]["num_updates"] > 0
        if new[key]["mean"].shape == old[key]["mean"].shape:  # a part that does not grow
            assert torch.equal(new[key]["mean"], old[key]["mean"])
    other, heir = learned(kind), learned(kind)
    other.load_state_dict(agent.state_dict())
    heir.inherit(agent, seed=1)
    # The heir has random numbers of its own, which TD3 and SAC draw in an update.
    draws = isinstance(agent.policy, TD3 | SAC)
    twins = [agent.clone(), other, *([] if draws else [heir])]
    for one in (agent, *twins):
        one.learn(lesson(one.policy, 9))
    for one in twins:
        assert_close(computes(one), computes(agent), atol=0.0)
    changes = zip(computes(agent), before, strict=True)
    assert any(np.abs(now - was).max() > 1e-6 for now, was in changes)
    other.load_state_dict(learned(kind).state_dict())  # back to the first width
    assert growth_seeds(other.policy) == ()


def with_frozen(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(num_inputs, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, num_outputs)
    )


class FrozenTorso(TorchPolicy[TorchPolicyConfig]):
    def build(self) -> None:
        self.net = with_frozen(4, 2)

    def choose(self, obs: torch.Tensor, explore: bool) -> torch.Tensor:
        actions: torch.Tensor = self.net(obs).argmax(-1)
        return actions

    def loss(self, batch: Any) -> Any:
        return self.net(batch.obs).mean(1), {}


def test_networks_of_a_torch_policy_grow_and_keep_the_moments_of_the_others() -> None:
    agent = learned("own algorithm")
    policy: Any = agent.policy
    policy.scale.requires_grad_(False)
    agent.learn(lesson(policy, 5))
    old = policy.state_dict()
    only("architecture").mutate(agent)
    grown: Any = agent.policy
    assert grown.again is grown.head
    kept, new = slice(1 + 4 * 4 + 4), grown.state_dict()  # `scale` and the part that stays
    assert torch.equal(new["adam"]["mean"][kept], old["adam"]["mean"][kept])
    assert new["adam"]["mean"][kept].all()
    assert old["adam"]["num_updates"].tolist() == new["adam"]["num_updates"].tolist()
    assert new["adam"]["num_updates"].tolist() == [5.0, *[6.0] * 6]


def test_networks_that_share_or_hide_layers_or_are_learned_apart_stay_as_they_are() -> None:
    class Shares(GrowingQ):
        def build(self) -> None:
            super().build()
            self.last = self.head.last

    class Hides(GrowingQ):
        def build(self) -> None:
            super().build()
            del self.old_head

    class Apart(GrowingQ):
        def build(self) -> None:
            super().build()
            self.own = torch.optim.SGD(self.head.last.parameters(), lr=0.1)

    for kind in (Shares, Hides, Apart, FrozenTorso):
        assert only("architecture").mutate(make_agent(kind(CARTPOLE))) == "none"


@pytest.mark.parametrize(
    "make",
    [
        lambda: DQN(CARTPOLE, network=lambda _: with_frozen(4, 2)),
        lambda: SAC(PENDULUM, actor=with_frozen(3, 2), critic=Joins(with_frozen(4, 1))),
        lambda: PPO(CARTPOLE, actor=with_frozen(4, 2), critic=with_frozen(4, 1)),
        lambda: FrozenTorso(CARTPOLE),
    ],
    ids=["DQN", "SAC", "PPO", "TorchPolicy"],
)
def test_noise_leaves_frozen_parameters_alone(make: Any) -> None:
    agent = make_agent(make())
    before = dict(leaves(agent.policy.state_dict()))
    assert only("weights").mutate(agent) == "weights 0.1"
    after = dict(leaves(agent.policy.state_dict()))
    layers = [path for path in before if str(path[-1]).endswith(".weight")]
    assert layers
    moved = {path: not torch.equal(before[path], after[path]) for path in layers}
    assert moved == {path: str(path[-1]).endswith("2.weight") for path in layers}


@pytest.mark.parametrize("mutation", ["hyperparameters", "architecture"])
@pytest.mark.parametrize("kind", ["dqn", "soft", "shared", "own algorithm"])
def test_layers_that_the_user_froze_later_stay_frozen(kind: str, mutation: str) -> None:
    def parameters() -> dict[str, torch.Tensor]:
        policy: Any = agent.policy
        modules = next(iter(policy.own_modules.values())).items()
        return {prefix + n: p for prefix, m in modules for n, p in m.named_parameters()}

    agent = learned(kind)
    frozen = [path for path in parameters() if path.endswith("first.bias")]
    assert frozen
    for path in frozen:
        parameters()[path].requires_grad_(False)
    search = Search(gamma=uniform(0.5, 1.0))
    assert only(mutation, search, seed=1).mutate(agent) != "none"
    assert [path for path, one in parameters().items() if not one.requires_grad] == frozen


def test_new_layers_are_drawn_by_the_seed_and_not_by_the_global_generator() -> None:
    weights = []
    for global_seed in (0, 1):
        agent = learned("soft")
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        only("architecture").mutate(agent)
        assert torch.equal(torch.get_rng_state(), state)
        weights.append(agent.policy.weights())
    torch.testing.assert_close(*weights, rtol=0.0, atol=0.0)
