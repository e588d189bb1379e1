"""Populations: independent agents, generations, lineage and exact resume."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.evolution import Agent, Mutation, Population, Tournament
from ding_lite.evolution.search import Search, choice, integer, log_uniform
from ding_lite.nest import leaves
from ding_lite.rl import PPO, SAC, EnvSpec, TorchPolicy, TorchPolicyConfig, make_envs
from ding_lite.rl.checkpoint.save_load import load_checkpoint, save_checkpoint
from ding_lite.rl.networks.conv import CONVS
from ding_lite.rl.policies.dqn import DQN, DQNConfig
from ding_lite.rl.protocols import ActorCritic, Policy
from tests.evolution.conftest import some_transitions

SMALL = DQNConfig(hidden=(8, 8))


def judge(population: Population, *, best: int = 0) -> None:
    for agent in population:
        agent.note_evaluation(100.0 - (agent.place - best) % len(population))


def states_equal(one: Any, two: Any) -> bool:
    left, right = dict(leaves(one)), dict(leaves(two))
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


def test_a_clone_is_a_population_of_its_own(spec: EnvSpec, search: Search) -> None:
    population = Population.of(DQN, spec, search, size=4, config=SMALL)
    twin = population.clone()
    assert states_equal(twin.state_dict(), population.state_dict())
    for one in (population, twin):
        judge(one)
        one.evolve(Tournament(), Mutation(search))
    assert states_equal(twin.state_dict(), population.state_dict())
    judge(population)
    population.evolve(Tournament(), Mutation(search))
    assert (population.generation, twin.generation) == (2, 1)


def test_agents_differ_in_weights_and_hyperparameters(spec: EnvSpec, search: Search) -> None:
    population = Population.of(DQN, spec, search, size=6, seed=0, config=SMALL)
    assert len({agent.config.seed for agent in population}) == 6
    assert len({agent.config.lr for agent in population}) == 6
    assert all(1e-4 <= agent.config.lr <= 1e-2 for agent in population)
    assert all(8 <= agent.config.batch_size <= 64 for agent in population)
    assert all(agent.config.hidden == (8, 8) for agent in population)
    first = [agent.weights()["torso.0.weight"].flatten()[0].item() for agent in population]
    assert len(set(first)) == 6


def test_the_same_seed_makes_the_same_population(spec: EnvSpec, search: Search) -> None:
    one, two, other = (
        Population.of(DQN, spec, search, size=3, seed=seed, config=SMALL) for seed in (5, 5, 6)
    )
    assert states_equal(one.state_dict(), two.state_dict())
    assert not states_equal(one.state_dict(), other.state_dict())


LR = Search(lr=log_uniform(1e-4, 1e-2))


def of(policy: Any = DQN, search: Any = None, **how: Any) -> Callable[[EnvSpec], Population]:
    return lambda spec: Population.of(policy, spec, search, **how)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda spec: Agent(DQN(spec), searched="lr"), r'such as \["lr"\]'),
        (lambda spec: Agent(DQN(spec), searched=["batchsize"]), 'Did you mean "batch_size"'),
        (lambda spec: Agent(DQN(spec), learn_every=0), "`learn_every`"),
        (lambda spec: Population([]), "needs agents"),
        (lambda spec: Population([cast(Any, DQN(spec))]), "has a DQN; agents were expected"),
        (lambda spec: Population([Agent(DQN(spec)) for _ in range(2)]), r"places \[0, 0\]; \[0, 1"),
        (of(search=Search(actor_lr=log_uniform(1e-4, 1e-2))), 'Unknown key "actor_lr"'),
        (of(search=LR, optimizer=lambda own: torch.optim.SGD(own, lr=0.1)), "takes no `lr`"),
        (of(size=0), "`size` is 0"),
        (of(config={"gama": 0.9}), 'Did you mean "gamma"'),
        (of(config=3), "a DQNConfig, or a dict"),
        (lambda spec: of(DQN(spec), {"lr": 1})(spec), "`policy` is a DQN; .* `search` is a dict"),
        (of(lambda spec: Agent(DQN(spec))), "returned an Agent; .* `policy` of"),
        (of(lambda spec: None), "None"),
        (of(lambda spec, config: DQN(spec, config), config=SMALL), r"def make\(spec, config=DQNC"),
        (of(lambda spec: trained_dqn(spec), config={"hidden": (16,)}), "makes a trained DQN, and"),
    ],
)
def test_what_makes_no_population_is_refused(spec: EnvSpec, make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make(spec)


def test_settings_common_to_all_may_be_a_dict(spec: EnvSpec) -> None:
    population = Population.of(DQN, spec, size=2, config={"hidden": [8], "gamma": 0.9})
    assert [agent.config.hidden for agent in population] == [(8,), (8,)]


@pytest.mark.parametrize(
    "make",
    [
        lambda spec: DQN(spec, SMALL),
        lambda spec, config=SMALL: DQN(spec, config),
        lambda spec, config=None: DQN(spec, SMALL),
    ],
    ids=["without a config", "with a config", "with a config that it does not use"],
)
def test_each_agent_of_a_function_has_its_own_settings_and_weights(spec, make):
    population, expected = (
        Population.of(each, spec, LR, size=3, config=config)
        for each, config in ((make, None), (DQN, SMALL))
    )
    assert [agent.config for agent in population] == [agent.config for agent in expected]
    assert len({agent.config.lr for agent in population}) == 3
    assert not states_equal(population[0].policy.weights(), population[1].policy.weights())


def trained_dqn(spec: EnvSpec) -> DQN:
    policy = DQN(spec, SMALL)
    for seed in range(3):
        policy.learn(some_transitions(spec, 16, seed=seed))
    policy.act(np.zeros((5, 4), dtype=np.float32))
    return policy


@pytest.mark.parametrize("search", [None, LR])
@pytest.mark.parametrize("form", ["itself", "clone", "with a config"])
@pytest.mark.parametrize("weights_alone", [False, True])
def test_agents_continue_a_trained_policy_each_with_its_own_random_numbers(
    spec: EnvSpec, form: str, search: Search | None, weights_alone: bool
) -> None:
    def continued(config: DQNConfig) -> DQN:
        policy = DQN(spec, config)
        if weights_alone:
            policy.load_weights(donor.weights())
        else:
            policy.load_state_dict(donor.state_dict())
        return policy

    donor = trained_dqn(spec)
    trained = continued(SMALL)
    made: dict[str, Any] = {
        "itself": lambda spec: trained,
        "clone": lambda spec: trained.clone(),
        "with a config": lambda spec, config=SMALL: continued(config),
    }
    state, count = trained.state_dict(), trained.train_iter
    population = Population.of(made[form], spec, search, size=3)
    assert len({agent.config.seed for agent in population}) == 3
    assert len({agent.config.lr for agent in population}) == (1 if search is None else 3)
    obs = np.zeros((200, 4), dtype=np.float32)
    tried = [agent.act(obs, epsilon=1.0).tolist() for agent in population]
    assert tried[0] != tried[1] != tried[2] != tried[0]
    for agent in population:
        policy: Any = agent.policy
        assert policy is not trained
        assert policy.train_iter == count
        if not weights_alone:
            kept = ("q_net", "target_net", "adam")
            assert all(states_equal(policy.state_dict()[key], state[key]) for key in kept)
        assert states_equal(policy.weights(), trained.weights())
    population[0].learn(some_transitions(spec, 16))
    assert not states_equal(population[0].weights(), population[1].weights())
    assert states_equal(population[1].weights(), trained.weights())


def test_an_agent_can_be_used_as_a_policy(spec: EnvSpec, box_spec: EnvSpec) -> None:
    for policy, env, is_critic in ((DQN, spec, False), (SAC, box_spec, False), (PPO, spec, True)):
        agent = Population.of(policy, env, size=1)[0]
        assert isinstance(agent, Policy)
        assert isinstance(agent, ActorCritic) == is_critic
        obs = np.zeros((2, *env.obs_shape), dtype=np.float32)
        np.testing.assert_array_equal(
            agent.act(obs, explore=False), agent.policy.act(obs, explore=False)
        )


class Wrapped:
    """A policy of another class than those of this package: it passes all on to a DQN."""

    def __init__(self, spec: EnvSpec, config: Any = SMALL, **more: Any) -> None:
        self._policy = DQN(spec, config, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def clone(self) -> Any:
        twin = Wrapped(self.spec, self.config)
        twin.load_state_dict(self.state_dict())
        return twin


def test_a_policy_of_any_class_is_inherited_and_resumed(spec: EnvSpec) -> None:
    parent, heir, resumed = (Agent(cast(Any, Wrapped(spec))) for _ in range(3))
    parent.replace_policy(cast(Any, Wrapped(spec, DQNConfig(hidden=(6,), seed=1))))
    heir.inherit(parent, seed=7)
    state, inherited = parent.policy.state_dict(), heir.policy.state_dict()
    assert not states_equal(inherited.pop("rng"), state.pop("rng"))
    assert states_equal(inherited, state)
    resumed.load_state_dict(parent.state_dict())
    assert isinstance(resumed.policy, Wrapped)
    assert resumed.config == parent.config
    assert states_equal(resumed.state_dict(), parent.state_dict())


def test_an_agent_has_the_td_errors_of_its_newest_policy(spec: EnvSpec) -> None:
    agent = Population.of(DQN, spec, size=1, config=SMALL)[0]
    priority, batch = agent.td_errors, some_transitions(spec, 16)
    agent.replace_policy(DQN(spec, DQNConfig(hidden=(8,), seed=3)))
    np.testing.assert_array_equal(priority(batch), agent.policy.td_errors(batch))


def test_the_elite_stays_unchanged_unless_it_is_to_be_mutated_too(spec, search):
    population = Population.of(DQN, spec, search, size=4, config=SMALL)
    for _ in range(5):
        judge(population, best=2)
        before = population[2].policy.state_dict(), population[2].config, population[2].birth
        population.evolve(Tournament(), Mutation(search, none=0.0))
        assert states_equal(population[2].policy.state_dict(), before[0])
        assert (population[2].config, population[2].birth) == before[1:]
    judge(population, best=2)
    population.evolve(Tournament(), Mutation(search, none=0.0, mutate_elite=True))
    assert population[2].birth.mutation != "first"


def test_copies_of_one_agent_share_no_state_and_explore_differently(spec, search):
    population = Population.of(DQN, spec, search, size=4, config=SMALL)
    judge(population, best=1)
    population.evolve(Tournament(size=4), Mutation(none=1.0))  # all are copies of one
    obs = np.zeros((200, 4), dtype=np.float32)
    tried = [agent.act(obs, epsilon=1.0).tolist() for agent in population]
    assert tried[0] != tried[1] != tried[2]
    first = population[1]
    before = first.policy.state_dict()
    configs = [agent.config for agent in population]
    for agent in (one for one in population if one is not first):
        assert agent.config == first.config
        agent.learn(some_transitions(spec, 32))
        Mutation(search, none=0.0, weights=0.0, architecture=0.0).mutate(agent)
        agent.note_evaluation(5.0)
        assert agent.config is not first.config
    assert states_equal(first.policy.state_dict(), before)
    assert first.config is configs[1]
    assert len(first.evaluations) == 1


def test_the_lineage_names_the_parent_of_each_agent(spec: EnvSpec, search: Search) -> None:
    population = Population.of(DQN, spec, search, size=4, config=SMALL)
    mutation = Mutation(search, none=0.3)
    for _ in range(6):
        judge(population, best=3)
        population.evolve(Tournament(), mutation)

    assert len(population.lives) == 24
    ids = {life.id for life in population.lives}
    for life in population.lives:
        assert life.fitness is not None
        assert life.hyperparameters.keys() == {"lr", "batch_size"}
        assert life.convs is None
        if life.parent is None:
            assert life.mutation == "first"
        else:
            assert life.parent in ids
            assert life.parent < life.id


def test_evolving_without_evaluations_is_an_error(spec: EnvSpec) -> None:
    population = Population.of(DQN, spec, size=3, config=SMALL)
    with pytest.raises(ConfigError, match="Agent 0 was not evaluated in generation 0"):
        population.evolve(Tournament(), Mutation())
    judge(population)
    population.evolve(Tournament(), Mutation())
    with pytest.raises(ConfigError, match="generation 1"):
        population.evolve(Tournament(), Mutation())


def test_a_broken_agent_is_replaced(spec: EnvSpec) -> None:
    population = Population.of(DQN, spec, size=3, config=SMALL)
    judge(population)
    population[0].fault = "loss is nan"
    population.evolve(Tournament(size=2), Mutation())
    assert [agent.fault for agent in population] == [None] * 3
    assert population[0].birth.parent in (1, 2)

    for agent in population:
        agent.fault = "The loss is nan."
    with pytest.raises(ConfigError, match="No agent can learn any more"):
        population.evolve(Tournament(), Mutation())


def test_a_saved_population_goes_on_exactly(spec: EnvSpec, search: Search, tmp_path: Any) -> None:
    def make() -> tuple[Population, Tournament, Mutation]:
        population = Population.of(DQN, spec, search, size=4, config=SMALL)
        return population, Tournament(seed=1), Mutation(search, none=0.1, new_layer_prob=0.5)

    def generations(parts: tuple[Population, Tournament, Mutation], count: int) -> Any:
        population, tournament, mutation = parts
        for number in range(count):
            for agent in population:
                agent.learn(some_transitions(spec, agent.config.batch_size, seed=number))
            judge(population, best=number % 4)
            population.evolve(tournament, mutation)
        states: tuple[Any, ...] = parts
        return {str(index): part.state_dict() for index, part in enumerate(states)}

    parts, twins = make(), make()
    save_checkpoint(tmp_path, generations(parts, 4))
    assert len({agent.config.hidden for agent in parts[0]}) > 1  # they have grown apart
    saved, stateful = load_checkpoint(tmp_path).state, cast(tuple[Any, ...], twins)
    for index, twin in enumerate(stateful):
        twin.load_state_dict(saved[str(index)])
    assert states_equal(generations(parts, 3), generations(twins, 3))


def test_a_state_of_another_population_size_is_refused(spec: EnvSpec) -> None:
    small, large = (Population.of(DQN, spec, size=size, config=SMALL) for size in (2, 3))
    with pytest.raises(CheckpointError, match="has 3 agents, this one 2"):
        small.load_state_dict(large.state_dict())
    with pytest.raises(CheckpointError, match="no state of a population"):
        small.load_state_dict({})
    with pytest.raises(CheckpointError, match="no state of an agent"):
        small[0].load_state_dict({})
    with pytest.raises(CheckpointError, match="other settings than PPO"):
        Population.of(PPO, spec, size=2).load_state_dict(small.state_dict())


def test_an_agent_copies_no_weights_of_its_own_to_load_others(spec: EnvSpec, monkeypatch) -> None:
    agent = Population.of(DQN, spec, size=1, config=SMALL)[0]
    state = agent.state_dict()
    monkeypatch.setattr(agent.policy, "state_dict", lambda: pytest.fail("it copied its weights"))
    agent.load_state_dict(state)
    for name in state:
        with pytest.raises(CheckpointError, match=rf"it lacks \['{name}'\]"):
            agent.load_state_dict({key: state[key] for key in state if key != name})


def test_updates_follow_the_env_steps_of_an_agent_and_an_heir_owes_those_of_its_parent(spec):
    heir, agent = Population.of(DQN, spec, Search(learn_every=integer(3, 4)), size=2)
    heir.learn_every = agent.learn_every = 3
    obs = np.zeros((4, 4), dtype=np.float32)
    due = []
    for _ in range(6):
        agent.act(obs)
        due.append(agent.take_updates())
    assert due == [1, 1, 2, 1, 1, 2]
    agent.act(obs, explore=False)
    assert agent.take_updates() == 0
    assert agent.hyperparameters == {"learn_every": 3}
    heir.act(np.zeros((90, 4), dtype=np.float32))
    agent.act(np.zeros((7, 4), dtype=np.float32))
    heir.inherit(agent, seed=1)
    assert (heir.take_updates(), agent.take_updates()) == (2, 2)


def test_a_mutation_of_another_search_is_refused(spec: EnvSpec, search: Search) -> None:
    """Before the first generation, not when such a mutation is drawn."""
    population = Population.of(DQN, spec, Search(batch_size=integer(8, 64)), size=2, config=SMALL)
    for other, said in ((population, "batch_size"), (Population.of(DQN, spec), "nothing")):
        judge(other)
        with pytest.raises(ConfigError, match=f"and the agents search.* {said}"):
            other.evolve(Tournament(), Mutation(search))
    population = Population.of(DQN, spec, search, size=2, config=SMALL)
    for one in (population, population.clone()):
        judge(one)
        for parameter in (log_uniform(1e-1, 1.0), choice(1e-3, 1e-2)):
            with pytest.raises(ConfigError, match=r"searches `lr` in .*, and the agents in Range"):
                one.evolve(Tournament(), Mutation(Search(lr=parameter)))
        one.evolve(Tournament(), Mutation(Search(lr=log_uniform(1e-4, 1e-2))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picky(TorchPolicyConfig):
    """Settings of which two go together, and three do not."""

    a: int = 1
    b: int = 1
    c: int = 1
    activation: str = "relu"
    hidden: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a + self.b + self.c > 11:
            raise ValueError("a + b + c is above 11")


class PickyPolicy(TorchPolicy[Picky]):
    def build(self) -> None:
        kinds = {"relu": nn.ReLU, "tanh": nn.Tanh}
        layers = nn.Linear(4, self.config.hidden), kinds[self.config.activation]()
        self.net = nn.Sequential(*layers, nn.Linear(self.config.hidden, 2))

    def choose(self, obs: Any, explore: bool) -> Any:
        return self.net(obs).argmax(-1)

    def loss(self, batch: Any) -> Any:
        return self.net(batch.obs).square().mean(-1), {}


def test_values_that_settings_refuse_together_are_drawn_again(spec: EnvSpec) -> None:
    parameter = integer(1, 5, grow=2.0, shrink=0.5)
    search = Search(a=parameter, b=parameter, c=parameter)
    with pytest.raises(ConfigError, match=r"to a=4, b=5, c=4, which is refused: a \+ b .* 11\. C"):
        Population.of(PickyPolicy, spec, search, size=2, seed=0)
    population = Population.of(PickyPolicy, spec, search, size=2, seed=1)
    mutation = Mutation(search, none=0.0, architecture=0.0, weights=0.0)
    assert "none" not in [mutation.mutate(agent) for agent in population for _ in range(200)]
    for agent in population:
        sums = sum(int(cast(Any, value)) for value in agent.hyperparameters.values())
        assert sums <= 11
    stuck = Agent(PickyPolicy(spec, Picky(a=5, b=5)), searched=("c",))
    only_c = Mutation(Search(c=choice(2, 5)), none=0.0, architecture=0.0, weights=0.0)
    assert only_c.mutate(stuck) == "none"
    with pytest.raises(ConfigError, match=r"a=1, b=9, which is refused: a \+ b"):
        Population.of(PickyPolicy, spec, Search(a=parameter, b=choice(5, 9)), config=Picky(c=3))


def test_settings_of_an_own_policy_may_have_the_names_of_this_package(spec: EnvSpec) -> None:
    search = Search(activation=choice("relu", "tanh"))
    population = Population.of(PickyPolicy, spec, search, size=2)
    mutation = Mutation(search, none=0.0, architecture=0.0, weights=0.0)
    assert mutation.mutate(population[0]).startswith("activation ")
    with pytest.raises(ConfigError, match="with 16 the networks of PickyPolicy have other shapes"):
        Population.of(PickyPolicy, spec, Search(hidden=choice(8, 16)))
    with pytest.raises(ConfigError, match="`seed` cannot be searched"):
        Population.of(PickyPolicy, spec, Search(seed=integer(1, 2)))


def test_policies_that_average_their_gradients_are_not_evolved(spec: EnvSpec) -> None:
    population = Population.of(DQN, spec, size=2, config=SMALL)
    policy: Any = population[1].policy
    policy.reduce_gradient = torch.Tensor.zero_
    judge(population)
    with pytest.raises(ConfigError, match=r"agents \[1\] have a `reduce_gradient`"):
        population.evolve(Tournament(), Mutation())


@pytest.mark.parametrize(("kind", "config"), [(DQN, DQNConfig(hidden=(8,))), (PPO, None)])
def test_the_lineage_has_the_convolutions_of_networks_for_images(kind: Any, config: Any) -> None:
    with make_envs("ding_lite/Catch-v0", 1) as envs:
        population = Population.of(kind, envs.spec, size=2, config=config)
    first = population.lives_now()[0].convs
    assert first == CONVS["small"]
    judge(population)
    mutation = Mutation(none=0.0, architecture=1.0, weights=0.0, mutate_elite=True, seed=4)
    population.evolve(Tournament(size=2), mutation)
    assert population.lives[0].convs == first
    changed = [life for life in population.lives_now() if "convs" in life.mutation]
    assert changed
    assert all(life.convs not in (None, first) for life in changed)
    twin = Population.of(kind, envs.spec, size=2, config=config)
    twin.load_state_dict(population.state_dict())
    assert twin.lives == population.lives
