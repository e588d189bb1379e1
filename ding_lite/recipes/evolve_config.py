"""The settings of evolution by name."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.evolution.mutation import Mutation
from ding_lite.evolution.population import Population
from ding_lite.evolution.search import Search
from ding_lite.evolution.tournament import Tournament
from ding_lite.recipes.train_config import (
    UPDATE_RATIO,
    FromReplay,
    FromRollouts,
    FromSequences,
    FromStore,
    TrainConfig,
)
from ding_lite.rl.envs.sizes import check_steps_fit
from ding_lite.rl.envs.vector import Envs
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, NOT_NEGATIVE, SHARE, setting

LOWERED_BY_SMOKE = ("eval_every", "eval_episodes", "eval_limit")
_SMOKE_GENERATION, _SMOKE_EPISODE = 500, 50
_MOST_OF_LEARNING, _SHORT_EPISODE = 4, 500


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig(TrainConfig):
    """The settings of evolution, in addition to those of the policy."""

    population: int = setting(6, COUNT)
    """Number of agents. A larger population explores more, at a cost in proportion; 4 to 10 are
    usual."""
    eval_every: int = 4_000
    """Env steps of all agents together in one generation, at the end of which all agents are
    evaluated. More gives settings more time to show their effect."""
    eval_episodes: int = 2
    """Greedy episodes for each agent in an evaluation. More is less noisy and costs more, as env
    steps of evaluations count towards `max_env_steps`."""
    eval_limit: int | None = setting(None, COUNT)
    """Maximum length of an episode in an evaluation, in env steps. By default, None, this is the
    time limit of the environment, but at most the larger of 500 and the length at which an agent is
    evaluated for 4 times the env steps that it collects in a generation. Lower spends fewer env
    steps on agents that survive without earning more. Episodes that confirm a good agent, those of
    the verdict, and those of a function that makes vector environments are not cut."""
    log_every: int = 1_000
    """Env steps from one row of the metrics to the next."""
    tournament_size: int = setting(2, COUNT)
    """Number of agents in a tournament. More favours the best agents and reduces diversity."""
    elitism: bool = True
    """Keep the best agent unchanged."""
    window: int = setting(1, COUNT)
    """Number of evaluations; the fitness is their mean. More is less noisy and follows changes more
    slowly."""
    mutate_none: float = setting(0.4, NOT_NEGATIVE)
    """Probability of no mutation; this and the next four are normalised by their sum."""
    mutate_architecture: float = setting(0.2, NOT_NEGATIVE)
    """Probability that units or a layer are added or removed."""
    mutate_weights: float = setting(0.2, NOT_NEGATIVE)
    """Probability that noise is added to the weights."""
    mutate_activation: float = setting(0.0, NOT_NEGATIVE)
    """Probability of another activation function of the hidden layers."""
    mutate_hyperparameters: float = setting(0.2, NOT_NEGATIVE)
    """Probability that one of the searched settings takes another value."""
    new_layer_prob: float = setting(0.2, SHARE)
    """Probability that an architecture mutation changes a whole layer."""
    remove_prob: float = setting(0.25, SHARE)
    """Probability that an architecture mutation removes instead of adding."""
    mutation_sd: float = setting(0.1, NOT_NEGATIVE)
    """The standard deviation of the noise, in units of the usual size of a weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tournament_size > self.population:
            agents = "1 agent" if self.population == 1 else f"{self.population} agents"
            raise ConfigError(
                f"`tournament_size` is {self.tournament_size}, and the population has {agents}, so "
                f"that no more can take part. Choose tournament_size={self.population}, or a "
                f"larger population."
            )

    def tournament(self, seed: int) -> Tournament:
        return Tournament(
            size=self.tournament_size, elitism=self.elitism, window=self.window, seed=seed
        )

    def mutation(self, search: Search, seed: int) -> Mutation:
        return Mutation(
            search,
            none=self.mutate_none,
            architecture=self.mutate_architecture,
            weights=self.mutate_weights,
            activation=self.mutate_activation,
            hyperparameters=self.mutate_hyperparameters,
            new_layer_prob=self.new_layer_prob,
            remove_prob=self.remove_prob,
            mutation_sd=self.mutation_sd,
            seed=seed,
        )

    def evaluation_limit(self, max_episode_steps: int | None) -> int | None:
        """Return the length at which evaluations cut episodes; None for no limit of their own."""
        if self.eval_limit is not None:
            return self.eval_limit
        own = _MOST_OF_LEARNING * self.eval_every // (self.population * self.eval_episodes)
        most = max(own, _SHORT_EPISODE)
        return most if max_episode_steps is None or max_episode_steps > most else None

    def for_smoke(self, *, cuts: bool) -> Self:
        """Return a copy for a trial, which also lowers `eval_limit` if it may cut episodes."""
        cut = min(self.eval_limit or _SMOKE_EPISODE, _SMOKE_EPISODE)
        return dataclasses.replace(
            self,
            eval_every=min(self.eval_every, _SMOKE_GENERATION),
            eval_episodes=1,
            eval_limit=cut if cuts else self.eval_limit,
        )

    def steps_per_update(self, num_envs: int) -> int:
        return self.population * self.turn_steps(num_envs)

    def learn(
        self, task: Task, population: Population, envs: Envs, *, seed: int
    ) -> dict[str, Stateful]:
        """Add the middleware by which agents take turns to learn; return further parts to save."""
        replay = self.start(task, envs, population[0].policy, seed)
        task.use(mw.for_each(population, lambda agent: self.stages(agent, envs, replay)))
        return {} if replay is None else {"replay": replay}


@dataclass(frozen=True, kw_only=True)
class TurnsConfig(FromStore, EvolutionConfig):
    """The settings of evolution for policies that learn from one replay, which all agents share."""

    turn: int = setting(64, COUNT)
    """Env steps that an agent makes before the next agent uses the environments, rounded up to a
    multiple of their number. More learns in larger blocks and is faster."""
    update_ratio: float = setting(1.0, UPDATE_RATIO)
    """Updates of an agent for each of its own env steps, unless `learn_every` is searched. An agent
    also learns from the env steps of all others, so a lower ratio leaves many of them unused."""

    def turn_steps(self, num_envs: int) -> int:
        return num_envs * math.ceil(self.turn / num_envs)

    def check_sizes(self, envs: Envs) -> None:
        check_steps_fit(envs.spec, self.turn, turn=self.turn)


@suggests
@dataclass(frozen=True, kw_only=True)
class ReplayEvolutionConfig(FromReplay, TurnsConfig):
    """The settings of evolution for policies that learn from transitions."""

    warmup: int = 1_000
    """Random env steps before the first update, at most a quarter of `max_env_steps`."""


@suggests
@dataclass(frozen=True, kw_only=True)
class SequenceEvolutionConfig(FromSequences, TurnsConfig):
    """The settings of evolution for policies that learn from sequences of episodes."""

    update_ratio: float = 0.125
    """Updates of an agent for each of its own env steps, unless `learn_every` is searched. Each
    update learns from many steps; 1/32 to 1/4 are usual."""


@suggests
@dataclass(frozen=True, kw_only=True)
class RolloutEvolutionConfig(FromRollouts, EvolutionConfig):
    """The settings of evolution for policies that learn from their own newest rollouts."""

    unroll: int = 16
    """Env steps of each environment in a rollout, after which the agent learns from it."""
