"""Recipes: the facts about a policy that `ding_lite.train` needs, as entries of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings import at_least, check_all, finite, positive, whole


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of training that no policy has of its own."""

    frame_stack: int = 1
    """How many of the newest observations make one; 4 is usual where one picture does not show
    what moves."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it before they are learned from. Rewards about 1 are easiest."""
    episode_limit: int | None = None
    """Where an episode that is learned from is cut, in env steps; None leaves that to the
    environment. What would have followed is estimated there, so that nothing wrong is learned.
    Lower sees more beginnings and fewer long stays, which helps where a policy only holds out. The
    episodes of evaluations are never cut."""
    eval_every: int = 1_000
    """Env steps from one evaluation to the next. Fewer notices success sooner and costs more."""
    eval_episodes: int = 20
    """Greedy episodes in an evaluation. More is less noisy and costs more."""
    target_margin: float = 0.0
    """How far above the target an evaluation must be to end the run. Higher takes longer, and the
    fresh episodes that judge the policy in the end are surer to reach the target too: where
    returns scatter widely, half of their spread or so is useful."""
    confirm_episodes: int = 20
    """Fresh greedy episodes that take the place of an evaluation which reaches the target: what
    ends the run, and what is kept as its best, is so in their mean; 0 believes that evaluation.
    More is surer where returns scatter widely: one of many noisy evaluations is always lucky."""
    checkpoint_every: int = 10_000
    """Env steps from one checkpoint to the next: what a killed run loses at most."""
    log_every: int = 200
    """Env steps from one row of the metrics to the next."""

    def __post_init__(self) -> None:
        check_all(
            whole(
                1,
                frame_stack=self.frame_stack,
                eval_every=self.eval_every,
                eval_episodes=self.eval_episodes,
                checkpoint_every=self.checkpoint_every,
                log_every=self.log_every,
            ),
            [] if self.episode_limit is None else whole(1, episode_limit=self.episode_limit),
            positive(reward_scale=self.reward_scale),
            finite(reward_scale=self.reward_scale, target_margin=self.target_margin),
            whole(0, confirm_episodes=self.confirm_episodes),
            at_least(0.0, target_margin=self.target_margin),
        )

    @property
    def env_settings(self) -> dict[str, Any]:
        """Extra arguments for the training environments.

        Those of evaluations are made without it.
        """
        return {} if self.episode_limit is None else {"max_episode_steps": self.episode_limit}

    def steps_per_update(self, num_envs: int) -> int:
        """Return the env steps in each step of the pipeline."""
        return num_envs

    def check_sizes(self, envs: Envs, policy: Policy) -> None:
        """Refuse settings that need more memory than the machine has.

        Raises:
            ConfigError: Names the setting to lower.
        """


ConfigT = TypeVar("ConfigT", bound=TrainConfig)


@dataclass(frozen=True, kw_only=True)
class Ingredients(Generic[ConfigT]):
    """The parts from which a recipe makes a pipeline."""

    policy: Policy
    envs: Envs
    config: ConfigT
    seed: int


@dataclass(frozen=True, kw_only=True)
class Recipe(Generic[ConfigT]):
    """The training of one kind of policy."""

    policy: Callable[[EnvSpec, Any], Policy]
    """Makes the policy from what it acts on and its settings: its class."""
    policy_config: type[Any]
    """The class of those settings; it has a field `seed`."""
    config: type[ConfigT]
    """The class of the settings of training."""
    learn: Callable[[Task, Ingredients[ConfigT]], dict[str, Stateful]]
    """Uses the middleware that collect and learn; returns what else is to be saved, by name."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings and options that suit an environment, by its id."""
