"""The settings of training, and recipes: entries of the table of policies."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ding_lite.options.run_options import MAX_ENV_STEPS
from ding_lite.recipes.runs.verdict import verdict_is_short
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.networks.precision import Precision
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings.rules import (
    COUNT,
    NATURAL,
    NOT_NEGATIVE,
    check_settings,
    choice,
    finite,
    positive,
    setting,
)

EVAL_EPISODES, EVAL_EPISODES_WITHIN_SHARE = 20, 5
"""Greedy episodes in an evaluation without and with an `eval_share`."""
ENVS_FOR_ONE_OF_EVALUATIONS = 8
"""Training environments for each evaluation environment with an `eval_share`: env steps of both
then cost about the same."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of training that are common to all policies."""

    frame_stack: int = setting(1, COUNT)
    """Number of the newest observations that are stacked into one; 4 is usual if a single image
    does not show motion."""
    atari: bool = False
    """Use the usual preprocessing of Atari games: 4 frames in a step, the maximum of the last two,
    greyscale, 84 x 84, 4 images in an observation (`frame_stack`). Training episodes end with each
    life and have rewards of -1, 0 and 1; all reported returns are full scores of whole games."""
    precision: Precision | None = setting(None, choice(Precision))
    """The precision of matrix products and convolutions in training. `bfloat16` has 3 digits and
    takes a quarter to two thirds of the time for images and wide layers, on processors with
    instructions for it, such as AMX; on others it changes nothing. Weights and losses stay in
    float32. None leaves it as `torch.set_float32_matmul_precision` has it, by default float32."""
    reward_scale: float = setting(1.0, positive, finite)
    """Factor of the rewards in training. Rewards about 1 are easiest to learn from."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns when a batch is
    learned from. It helps if the scale of rewards is unknown or changes. The replay keeps the
    original rewards, and returns are reported from these."""
    episode_limit: int | None = setting(None, COUNT)
    """Maximum length of a training episode, in env steps; None leaves it to the environment. A cut
    episode counts as truncated: its value is bootstrapped. Lower gives more beginnings and fewer
    long stays, which helps if a policy survives without earning more. Episodes of evaluations are
    never cut."""
    eval_every: int = setting(1_000, COUNT)
    """Env steps from one evaluation to the next. A lower number notices success sooner and costs
    more."""
    eval_episodes: int | None = setting(None, COUNT)
    """Greedy episodes in an evaluation. More is less noisy and costs more."""
    target_margin: float = setting(0.0, NOT_NEGATIVE, finite)
    """Margin above the target that an evaluation must reach to end the run. A higher margin takes
    longer, and makes it more likely that the final verdict reaches the target too. If returns vary
    widely, about half of their spread is useful."""
    confirm_episodes: int = setting(20, NATURAL)
    """Fresh greedy episodes that replace an evaluation which reaches the target: their mean decides
    whether the run ends and which policy is kept as the best. 0 accepts the evaluation itself. More
    is safer if returns vary widely, as the best of many noisy evaluations is too high."""
    checkpoint_every: int = setting(10_000, COUNT)
    """Env steps from one checkpoint to the next, which is the most that a killed run loses."""
    log_every: int | None = setting(None, COUNT)
    """Env steps from one row of the metrics to the next. By default, None, this is a 2,000th of
    `max_env_steps`, but at least 200 and at most 10,000."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def learning_from(self) -> dict[str, Any]:
        """Keywords of `make_envs` for the training environments, which evaluations do not have."""
        limit = {} if self.episode_limit is None else {"max_episode_steps": self.episode_limit}
        return {
            "reward_scale": self.reward_scale,
            "clip_rewards": self.atari,
            "end_at_life_loss": self.atari,
            "env_args": limit,
        }

    def within(self, max_env_steps: int, num_envs: int, *, agents: int = 1) -> Self:
        """Return a copy with blocks of env steps that fit into a short run.

        Each of the `agents` makes a block before the run may end.
        """
        room = max_env_steps // agents
        unroll = math.ceil(room / num_envs)  # one block ends the run
        most = {"warmup": max_env_steps // 2, "unroll": unroll, "turn": room}
        fitting: Any = {k: max(1, fits) for k, fits in most.items() if getattr(self, k, 0) > fits}
        return dataclasses.replace(self, **fitting)

    def row_every(self, max_env_steps: int) -> int:
        """Return `log_every`, or its default in a run of so many env steps."""
        usual = min(max(200, max_env_steps // 2_000), 10_000)
        return usual if self.log_every is None else self.log_every

    def steps_per_update(self, num_envs: int) -> int:
        """Return the env steps in each step of the pipeline."""
        return num_envs

    def every(self, env_steps: int, num_envs: int) -> int:
        """Convert a period in env steps to steps of the pipeline."""
        steps = max(1, self.steps_per_update(num_envs))  # 0 if a later check refuses it
        return max(1, env_steps // steps)

    def check_sizes(self, envs: Envs, policy: Policy) -> None:
        """Refuse settings that need more memory than the machine has."""

    def normalizer(self, envs: Envs) -> Envs | None:
        """Return the environments that measure rewards; None without `normalize_rewards`."""
        return envs if self.normalize_rewards else None


@dataclass(frozen=True, kw_only=True)
class SingleConfig(TrainConfig, ABC):
    """The settings of training a single policy."""

    eval_share: float | None = setting(0.1, positive, optional=True)
    """The maximum ratio of evaluation env steps to training env steps. An evaluation that exceeds
    it delays the next one. Not counted are the evaluation of 20 or more episodes that ends a run,
    and a verdict of 20 episodes with at most 10,000 env steps in all; a longer verdict is limited
    to the rest of the share. With None, and by default if `eval_every` is given, there is an
    evaluation every `eval_every` env steps."""
    eval_episodes: int | None = None
    """Greedy episodes in an evaluation. More is less noisy and costs more. None: 5 with an
    `eval_share`, else 20."""

    @property
    def num_eval_episodes(self) -> int:
        usual = EVAL_EPISODES if self.eval_share is None else EVAL_EPISODES_WITHIN_SHARE
        return usual if self.eval_episodes is None else self.eval_episodes

    def num_eval_envs(self, num_envs: int) -> int:
        """Return the number of evaluation environments for a number of training environments.

        With an `eval_share` it is small: environments that have ended their episode are stepped
        until all have, which costs env steps.
        """
        if self.eval_share is None:
            return EVAL_EPISODES
        return min(self.num_eval_episodes, max(1, num_envs // ENVS_FOR_ONE_OF_EVALUATIONS))

    def running_share(self, max_episode_steps: int | None) -> float | None:
        """Return the `eval_share` before the verdict: half of it if the verdict needs the rest."""
        has_own = verdict_is_short(max_episode_steps)
        return self.eval_share and self.eval_share / (1 if has_own else 2)

    @abstractmethod
    def learn(self, task: Task, policy: Policy, envs: Envs, *, seed: int) -> dict[str, Stateful]:
        """Add the middleware that collect and learn; return further parts to save, by name."""


@dataclass(frozen=True)
class Recipe:
    """The classes and presets that train one kind of policy."""

    policy: Callable[[EnvSpec, Any], Policy]
    """The policy's class, or a function that makes it from the spec and its settings."""
    policy_config: type[Any]
    """The class of the policy's settings; it has a field `seed`."""
    config: type[TrainConfig]
    """The class of the settings of training."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings and options for an environment, by its id."""
    sizes: Callable[[EnvSpec], Mapping[str, Any]] | None = None
    """Returns settings for the spaces of an environment without a preset."""
    max_env_steps: int = MAX_ENV_STEPS
    """The default maximum of env steps."""
