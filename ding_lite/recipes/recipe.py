"""Recipes: the facts about a policy that `ding_lite.train` needs, as entries of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from ding_lite.recipes.runs.run import verdict_is_short
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings import at_least, check_all, finite, positive, whole

EVAL_EPISODES, EVAL_EPISODES_WITHIN_SHARE = 20, 5
"""Greedy episodes in an evaluation: as they are asked for, and within a share of the env steps."""
ENVS_FOR_ONE_OF_EVALUATIONS = 8
"""As many learn for each one that evaluates within a share, so that env steps cost about alike."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of training that no policy has of its own."""

    frame_stack: int = 1
    """How many of the newest observations make one; 4 is usual where one picture does not show
    what moves."""
    atari: bool = False
    """Play an Atari game in the usual way: 4 frames a step, the maximum of the last two, grey,
    84 x 84, 4 pictures in an observation (`frame_stack`). What is learned from ends with each life
    and has rewards of -1, 0 and 1; all returns that are told are full scores of whole games."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it before they are learned from. Rewards about 1 are easiest."""
    normalize_rewards: bool = False
    """Divide rewards by the standard deviation of discounted returns so far when they are learned
    from. It helps where their size is unknown or changes; a replay keeps them as they were, and
    returns are told as they were."""
    episode_limit: int | None = None
    """Where an episode that is learned from is cut, in env steps; None leaves that to the
    environment. What would have followed is estimated there, so that nothing wrong is learned.
    Lower sees more beginnings and fewer long stays, which helps where a policy only holds out. The
    episodes of evaluations are never cut."""
    eval_every: int = 1_000
    """Env steps from one evaluation to the next. Fewer notices success sooner and costs more."""
    eval_episodes: int | None = None
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
                checkpoint_every=self.checkpoint_every,
                log_every=self.log_every,
            ),
            [] if self.eval_episodes is None else whole(1, eval_episodes=self.eval_episodes),
            [] if self.episode_limit is None else whole(1, episode_limit=self.episode_limit),
            positive(reward_scale=self.reward_scale),
            finite(reward_scale=self.reward_scale, target_margin=self.target_margin),
            whole(0, confirm_episodes=self.confirm_episodes),
            at_least(0.0, target_margin=self.target_margin),
        )

    @property
    def learning_from(self) -> dict[str, Any]:
        """Keywords of `make_envs` for the environments that are learned from."""
        return {
            "reward_scale": self.reward_scale,
            "clip_rewards": self.atari,
            "end_at_life_loss": self.atari,
            "env_args": self.env_settings,
        }

    @property
    def env_settings(self) -> dict[str, Any]:
        """Extra arguments for the training environments.

        Those of evaluations are made without it.
        """
        return {} if self.episode_limit is None else {"max_episode_steps": self.episode_limit}

    def within(self, max_env_steps: int, num_envs: int, *, agents: int = 1) -> Self:
        """Return the same with blocks of env steps that fit a run which is shorter than they are.

        So many `agents` make a block each before the run may end.
        """
        room = max_env_steps // agents
        most = {"warmup": max_env_steps // 2, "unroll": room // num_envs, "turn": room}
        fitting: Any = {k: max(1, fits) for k, fits in most.items() if getattr(self, k, 0) > fits}
        return dataclasses.replace(self, **fitting)

    def steps_per_update(self, num_envs: int) -> int:
        """Return the env steps in each step of the pipeline."""
        return num_envs

    def check_sizes(self, envs: Envs, policy: Policy) -> None:
        """Refuse settings that need more memory than the machine has."""


@dataclass(frozen=True, kw_only=True)
class SingleConfig(TrainConfig):
    """The settings of training one policy, and no population."""

    eval_share: float | None = 0.1
    """Env steps of evaluations for each one that is learned from, at most, or nearly: what an
    evaluation takes too many, the next one waits for. The evaluation of 20 episodes or more that
    ends a run comes on top, and so does a verdict of 20 episodes where they take 10,000 env steps
    at most; a longer one shares what is left. None evaluates as often as `eval_every` says, as if
    that is given."""
    eval_episodes: int | None = None
    """Greedy episodes in an evaluation. More is less noisy and costs more. None: 5 within
    `eval_share`, else 20."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_all([] if self.eval_share is None else positive(eval_share=self.eval_share))

    @property
    def num_eval_episodes(self) -> int:
        usual = EVAL_EPISODES if self.eval_share is None else EVAL_EPISODES_WITHIN_SHARE
        return usual if self.eval_episodes is None else self.eval_episodes

    def num_eval_envs(self, num_envs: int) -> int:
        """Return the environments of evaluations beside so many that are learned from.

        Within a share they are few: where several play at once, those that have ended wait for the
        others, and cost env steps, too.
        """
        if self.eval_share is None:
            return EVAL_EPISODES
        return min(self.num_eval_episodes, max(1, num_envs // ENVS_FOR_ONE_OF_EVALUATIONS))

    def running_share(self, max_episode_steps: int | None) -> float | None:
        """Return the `eval_share` for the time before the verdict: half where that has a part."""
        has_own = verdict_is_short(max_episode_steps)
        return self.eval_share and self.eval_share / (1 if has_own else 2)


ConfigT = TypeVar("ConfigT", bound=TrainConfig)


@dataclass(frozen=True, kw_only=True)
class Ingredients(Generic[ConfigT]):
    """The parts from which a recipe makes a pipeline."""

    policy: Policy
    envs: Envs
    config: ConfigT
    seed: int

    @property
    def measured(self) -> Envs | None:
        """The environments that measure rewards; None without `normalize_rewards`."""
        return self.envs if self.config.normalize_rewards else None


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
    sizes: Callable[[EnvSpec], Mapping[str, Any]] | None = None
    """Returns settings that suit the spaces of an environment without a preset."""
    max_env_steps: int = 100_000
    """Where a run ends at the latest, unless that is chosen."""
