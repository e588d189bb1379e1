"""Evaluation of policies: returns of whole episodes without exploration."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from statistics import fmean, stdev

import numpy as np

from ding_lite.errors import ConfigError, NonFiniteError
from ding_lite.interruption import is_interrupted
from ding_lite.rl.batch import BoolArray, NumpyArray
from ding_lite.rl.envs.vector import Envs, Episode
from ding_lite.rl.memory import memory_of
from ding_lite.rl.protocols import Policy

logger = logging.getLogger(__name__)

_LONG = 100_000
"""The length of a first episode after which a warning says that its end is waited for."""


def mean_return(policy: Policy, envs: Envs, *, episodes: int | None = None) -> float:
    """Play whole episodes without exploring and average their returns.

    Every environment plays the same number of episodes, from a reset. The first episodes to end, of
    all environments, would be biased towards short ones.

    Args:
        policy: Acts with `explore=False`; a policy with memory starts from a new memory.
        envs: The environments to play in. They are reset, so do not pass those of a collector.
        episodes: The total number, a multiple of `envs.num_envs`; one per environment if None.

    Raises:
        ConfigError: If `episodes` is not a multiple of the number of environments.
    """
    return play(policy, envs, episodes=episodes).mean_return


@dataclass(frozen=True)
class Played:
    """The mean return and the env steps of some episodes."""

    mean_return: float
    """The mean of their returns; if no episode has ended, of the returns so far."""
    env_steps: int
    """The env steps played, including those of environments that waited for others."""
    episodes: int
    """The number of ended episodes. It is smaller than requested if playing has stopped before."""
    success_rate: float | None = None
    """The share of episodes with `info["is_success"]` among those that tell it, None without."""


def play(
    policy: Policy, envs: Envs, *, episodes: int | None = None, max_env_steps: int | None = None
) -> Played:
    """Play as `mean_return` does, and return the env steps too.

    Playing stops at `max_env_steps`, rounded up to a step of all environments. In environments
    without a time limit, in which an episode may have no end, a signal that ends a run stops it.
    """
    most = math.inf if max_env_steps is None else max_env_steps
    is_endless = envs.spec.max_episode_steps is None
    episodes = envs.num_envs if episodes is None else episodes
    if episodes < 1 or episodes % envs.num_envs:
        raise ConfigError(
            f"`episodes` is {episodes}; a multiple of the {envs.num_envs} environments was "
            f"expected, so that each plays the same number."
        )
    wanted = episodes // envs.num_envs
    episodes_N: list[list[Episode]] = [[] for _ in range(envs.num_envs)]

    env_steps = 0
    envs.reset()
    envs.take_finished()
    steps = greedy_steps(policy, envs)
    while any(len(own) < wanted for own in episodes_N) and env_steps < most:
        if is_endless and is_interrupted():
            break
        if env_steps == _LONG * envs.num_envs and not all(episodes_N):
            logger.warning(
                "an evaluation in %s has made %d env steps, and waits for the end of an episode; a "
                'time limit would end it: env_args={"max_episode_steps": 1000}',
                envs.spec.env_id,
                env_steps,
            )
        for episode in next(steps):
            episodes_N[episode.env_index].append(episode)
        env_steps += envs.num_envs
    ended = [episode for own in episodes_N for episode in own[:wanted]]
    total = sum(sum(one.ret for one in own[:wanted]) for own in episodes_N)
    value = total / len(ended) if ended else float(envs.returns.mean())
    return Played(value, env_steps, len(ended), mean_of_known(one.success for one in ended))


def mean_of_known(numbers: Iterable[float | None]) -> float | None:
    """Return the mean of the numbers that are not None; None if all are."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else None


def greedy_steps(policy: Policy, envs: Envs) -> Iterator[list[Episode]]:
    """Make env steps without end, by greedy actions; yield the episodes that end in each."""
    memory = memory_of(policy, envs.num_envs)
    act: Callable[..., NumpyArray] = policy.act
    if memory is not None:
        act = partial(act, memory=memory)
    while True:
        step = envs.step(act(envs.obs, explore=False))
        if memory is not None:
            memory.reset(step.terminated | step.truncated)
        yield envs.take_finished()


@dataclass(frozen=True)
class PlayedByEach:
    """The returns of several players, and the env steps played."""

    returns: tuple[tuple[float, ...], ...]
    """Each player's returns, in the order in which its episodes ended."""
    env_steps: int
    """The env steps played, including those of environments that had no episode left to play."""

    @property
    def mean_returns(self) -> tuple[float, ...]:
        return tuple(sum(own) / len(own) for own in self.returns)


class BrokenPlayers(NonFiniteError):
    """Actions of some players are not finite."""

    def __init__(self, error: NonFiniteError, players: frozenset[int], env_steps: int) -> None:
        super().__init__(str(error))
        self.players = players
        """The indices of these players."""
        self.env_steps = env_steps
        """The env steps played before."""


def play_each(
    act: Callable[[NumpyArray, NumpyArray], NumpyArray],
    envs: Envs,
    *,
    episodes: Sequence[int],
    reset: Callable[[BoolArray], None] | None = None,
) -> PlayedByEach:
    """Play whole episodes of several players in the same environments, and return their returns.

    Each player plays a fixed number of episodes. Each episode that begins counts, however long it
    is. After an episode an environment begins the next one of any player, so that environments are
    idle only at the end, when no episode is left to begin. `act` gets the observations and the
    index of the player of each environment, [N]. The environments are reset first.

    Raises:
        BrokenPlayers: If actions are not finite.
    """
    if not episodes or min(episodes) < 1:
        raise ConfigError(
            f"`episodes` is {list(episodes)}; one or more were expected of each player."
        )
    rounds = zip_longest(*([player] * count for player, count in enumerate(episodes)))
    waiting = (player for players in rounds for player in players if player is not None)
    idle = -1
    player_N = np.array([next(waiting, idle) for _ in range(envs.num_envs)])
    actor_N = player_N.clip(0)  # an idle environment is left to its last player
    returns: list[list[float]] = [[] for _ in episodes]

    env_steps = 0
    envs.reset()
    envs.take_finished()
    while (player_N != idle).any():
        action = act(envs.obs, actor_N)
        try:
            step = envs.step(action)
        except NonFiniteError as error:
            is_finite_N = np.isfinite(action).reshape(len(action), -1).all(axis=1)
            if is_finite_N.all():  # an environment returned NaN
                raise
            players = frozenset(actor_N[~is_finite_N].tolist())
            raise BrokenPlayers(error, players, env_steps) from error
        if reset is not None:
            reset(step.terminated | step.truncated)
        env_steps += envs.num_envs
        for episode in envs.take_finished():
            player = player_N[episode.env_index]
            if player != idle:
                returns[player].append(episode.ret)
                player_N[episode.env_index] = next(waiting, idle)
        actor_N = np.where(player_N == idle, actor_N, player_N)
    return PlayedByEach(tuple(map(tuple, returns)), env_steps)


def is_below(goal: float, returns: Sequence[float]) -> bool:
    """Return whether the mean of returns is below a goal by more than its standard error."""
    error = stdev(returns) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
    return fmean(returns) + error < goal
