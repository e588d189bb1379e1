"""Tournament selection among the agents of a population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ding_lite.errors import ConfigError
from ding_lite.evolution.agent import Agent
from ding_lite.rl.seeding import make_rng, rng_state, set_rng_state
from ding_lite.settings.rules import check_all, whole


@dataclass(frozen=True)
class Selection:
    """The result of the tournaments of a generation."""

    elite: int | None
    """The place of the fittest agent, which stays unchanged; None without elitism."""
    parents: tuple[int, ...]
    """The place of the parent for each place of the next generation. A parent keeps its own
    place."""


class Tournament:
    """Selects the parents of the next generation.

    For each place of the next generation some agents are drawn, and the fittest of them wins.
    Fitness is the mean of an agent's newest evaluations. Agents with a fault are not drawn.

    Args:
        size: The number of agents in one tournament. A larger one favours the best agents and
            loses diversity sooner; 2 is usual.
        elitism: Whether the fittest agent always stays, unchanged.
        window: The number of evaluations in the mean. More are less noisy, and slower to follow
            changes.
        seed: Seed of the draws.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> from ding_lite.rl import DQN, make_envs
        >>> spec = make_envs("CartPole-v1", 1).spec
        >>> agents = [Agent(DQN(spec), place=place) for place in range(4)]
        >>> for place, agent in enumerate(agents):
        ...     agent.note_evaluation(100.0 * place)
        >>> Tournament(size=4).select(agents).elite
        3
    """

    def __init__(
        self, *, size: int = 2, elitism: bool = True, window: int = 1, seed: int = 0
    ) -> None:
        check_all(whole(1, size=size, window=window))
        self.size = size
        self.elitism = elitism
        self.window = window
        self._rng = make_rng(seed, "tournament")

    def check(self, agents: Sequence[Agent]) -> None:
        """Raise if a tournament is larger than the population.

        Raises:
            ConfigError: There are fewer agents than a tournament has.
        """
        if self.size > len(agents):
            of_agents = "1 agent" if len(agents) == 1 else f"{len(agents)} agents"
            raise ConfigError(
                f"`size` of the tournament is {self.size}, but the population has {of_agents}. "
                f"Write Tournament(size={len(agents)}), or make a larger population."
            )

    def select(self, agents: Sequence[Agent]) -> Selection:
        """Hold a tournament for each place.

        Raises:
            ConfigError: A tournament is larger than the population.
        """
        self.check(agents)
        worth = np.array([agent.mean_fitness(self.window) for agent in agents])
        elite = int(worth.argmax()) if self.elitism else None
        winners = [] if elite is None else [elite]
        able = np.flatnonzero(worth > -np.inf)
        if not len(able):
            able = np.arange(len(agents))
        while len(winners) < len(agents):
            entrants = self._rng.choice(able, size=min(self.size, len(able)), replace=False)
            winners.append(int(entrants[worth[entrants].argmax()]))
        return Selection(elite, _placed(winners))

    def state_dict(self) -> dict[str, Any]:
        """Copy the state that an exact resume needs."""
        return {"rng": rng_state(self._rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        set_rng_state(self._rng, state["rng"])


def _placed(winners: Sequence[int]) -> tuple[int, ...]:
    """Return the parent of each place: winners keep their places, copies take the others.

    Example:
        >>> _placed([2, 0, 2, 2])
        (0, 2, 2, 2)
    """
    parents: list[int | None] = [None] * len(winners)
    copies = []
    for winner in winners:
        if parents[winner] is None:
            parents[winner] = winner
        else:
            copies.append(winner)
    left = iter(copies)
    return tuple(next(left) if parent is None else parent for parent in parents)
