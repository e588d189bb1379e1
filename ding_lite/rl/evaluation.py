"""How good a policy is."""

from __future__ import annotations

from dataclasses import dataclass

from ding_lite.errors import ConfigError
from ding_lite.rl.envs import Envs
from ding_lite.rl.protocols import Policy


def mean_return(policy: Policy, envs: Envs, *, episodes: int | None = None) -> float:
    """Play whole episodes without exploring and average their returns.

    Every environment plays the same number of episodes, from a fresh start. Taking the first
    episodes to end, wherever they were played, would favour the short ones.

    Args:
        policy: Acts with `explore=False`.
        envs: Environments to play in. Not those of a collector: they are reset.
        episodes: How many in all, a multiple of `envs.num_envs`; one per environment if None.

    Raises:
        ConfigError: If `episodes` is no multiple of the number of environments.
    """
    return play(policy, envs, episodes=episodes).mean_return


@dataclass(frozen=True)
class Played:
    """What came of playing some episodes."""

    mean_return: float
    """The mean of their returns."""
    env_steps: int
    """How many env steps that took, those of environments that waited for others included."""


def play(policy: Policy, envs: Envs, *, episodes: int | None = None) -> Played:
    """Play whole episodes without exploring, average their returns, and count the env steps.

    Arguments and errors are those of `mean_return`.
    """
    episodes = envs.num_envs if episodes is None else episodes
    if episodes < 1 or episodes % envs.num_envs:
        raise ConfigError(
            f"`episodes` is {episodes}; a multiple of the {envs.num_envs} environments was "
            f"expected, so that each plays the same number."
        )
    wanted = episodes // envs.num_envs
    returns: list[list[float]] = [[] for _ in range(envs.num_envs)]

    env_steps = 0
    envs.reset()
    envs.take_finished()
    while any(len(own) < wanted for own in returns):
        envs.step(policy.act(envs.obs, explore=False))
        env_steps += envs.num_envs
        for episode in envs.take_finished():
            returns[episode.env_index].append(episode.ret)
    mean = sum(sum(own[:wanted]) for own in returns) / episodes
    return Played(mean, env_steps)
