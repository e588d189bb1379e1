"""Tournaments: the elite, parents and their places, and fitness."""

import math

import pytest

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.evolution import Agent, Mutation, Population, Tournament
from ding_lite.rl import DQN, DQNConfig, EnvSpec


def agents_with(spec: EnvSpec, *evaluations: tuple[float, ...]) -> list[Agent]:
    agents = []
    for place, values in enumerate(evaluations):
        agents.append(Agent(DQN(spec, DQNConfig(hidden=(4,))), place=place))
        for value in values:
            agents[-1].note_evaluation(value)
    return agents


def test_the_elite_keeps_its_place_and_without_elitism_it_may_be_lost(spec: EnvSpec) -> None:
    agents = agents_with(spec, (1.0,), (2.0,), (9.0,), (3.0,))
    survived = set()
    for seed in range(20):
        selection = Tournament(size=1, seed=seed).select(agents)
        assert selection.elite == 2
        assert selection.parents[2] == 2
        without = Tournament(size=1, elitism=False, seed=seed).select(agents)
        assert without.elite is None
        survived.add(2 in without.parents)
    assert survived == {True, False}


def test_larger_tournaments_favour_the_fittest_and_parents_keep_their_places(spec: EnvSpec) -> None:
    agents = agents_with(spec, *((float(value),) for value in range(6)))
    assert Tournament(size=6).select(agents).parents == (5, 5, 5, 5, 5, 5)
    small = [Tournament(seed=seed).select(agents).parents for seed in range(50)]
    assert 3.0 < sum(map(sum, small)) / 300 < 4.6
    assert all(parents[parent] == parent for parents in small for parent in parents)


def test_fitness_is_the_mean_of_the_last_evaluations(spec: EnvSpec) -> None:
    agents = agents_with(spec, (0.0, 0.0, 90.0), (50.0, 60.0, 50.0), (200.0, 0.0, 0.0))
    elites = [Tournament(window=window).select(agents).elite for window in (1, 2, 3, 100)]
    assert elites == [0, 1, 2, 2]


def test_agents_that_are_broken_or_have_a_fitness_of_nan_never_win(spec: EnvSpec) -> None:
    agents = agents_with(spec, (1.0,), (math.nan,), (3.0,), (9.0, math.nan), (4.0,), (5.0,))
    for place in (4, 5):  # two may not meet either
        agents[place].fault = "its numbers are no longer finite"
    for seed in range(20):
        selection = Tournament(size=3, window=2, seed=seed).select(agents)
        assert selection.elite == 2
        assert {1, 3, 4, 5}.isdisjoint(selection.parents)
    assert Population(agents).best is agents[2]


def test_the_same_seed_selects_the_same_and_a_saved_one_goes_on(spec: EnvSpec) -> None:
    agents = agents_with(spec, *((float(value % 3),) for value in range(8)))
    first, second, third = Tournament(seed=3), Tournament(seed=3), Tournament(seed=4)
    assert [first.select(agents) for _ in range(5)] == [second.select(agents) for _ in range(5)]
    third.load_state_dict(second.state_dict())
    assert first.select(agents) == third.select(agents)


def test_a_tournament_cannot_be_larger_than_the_population(spec: EnvSpec) -> None:
    with pytest.raises(ConfigError, match="has 2 agents"):
        Tournament(size=3).select(agents_with(spec, (1.0,), (2.0,)))
    alone = Population.of(DQN, spec, size=1)
    with pytest.raises(ConfigError, match=r"has 1 agent\. Write Tournament\(size=1\)"):
        mw.evolve(alone, Tournament(), Mutation(), every=1000)  # not after 1000 steps
    with pytest.raises(ConfigError, match="`window` is 0"):
        Tournament(window=0)
