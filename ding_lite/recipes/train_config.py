"""The settings of training by name: common ones, and those of learning from replay or rollouts."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias, cast

from ding_lite import middleware as mw
from ding_lite.recipes.runs.verdict import ENVS_FOR_ONE_OF_EVALUATIONS, verdict_is_short
from ding_lite.rl.envs.sizes import check_steps_fit
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.formulas.schedules import Schedule, linear
from ding_lite.rl.networks.precision import Precision
from ding_lite.rl.protocols import ActorCritic, Policy
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.rl.replay.prioritized import PrioritizedReplay
from ding_lite.rl.replay.uniform import ReplayBuffer
from ding_lite.runtime.middleware import Middleware
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import (
    COUNT,
    NATURAL,
    NOT_NEGATIVE,
    SHARE,
    check_settings,
    choice,
    finite,
    inside,
    positive,
    setting,
    whole,
)

EVAL_EPISODES, EVAL_EPISODES_WITHIN_SHARE = 20, 5
"""Greedy episodes in an evaluation without and with an `eval_share`."""
UPDATE_RATIO = partial(inside, 1e-6, 1e6)
"""The bounds of `update_ratio`: beyond them a step of the pipeline would never end."""
Store: TypeAlias = ReplayBuffer | EpisodeBuffer


class Learning(ABC):
    """A mode of learning, of one policy or of each agent of a population.

    The subclasses here are bases for settings, beside `TrainConfig`. They do not inherit from it:
    its defaults would replace those of its other subclasses.
    """

    @abstractmethod
    def turn_steps(self, num_envs: int) -> int:
        """Return the env steps that a policy makes before it learns."""

    def check_sizes(self, envs: Envs) -> None:  # noqa: B027 - may be nothing
        """Refuse settings that need more memory than the machine has, also in a long run."""

    @abstractmethod
    def normalizer(self, envs: Envs) -> Envs | None:
        """Return the environments that measure rewards; None without `normalize_rewards`."""

    def start(self, task: Task, envs: Envs, policy: Policy, seed: int) -> Store | None:
        """Return an empty replay, if there is one, and add the middleware that fills it first."""
        return None

    @abstractmethod
    def stages(self, policy: Policy, envs: Envs, replay: Any) -> list[Middleware]:  # noqa: ANN401 - that of `start`
        """Return the middleware by which a policy, or an agent, collects and learns."""


class FromStore(Learning):
    """The settings of learning from stored experience."""

    @property
    @abstractmethod
    def update_ratio(self) -> float:
        """Updates for each env step."""

    def turn_steps(self, num_envs: int) -> int:
        return num_envs * math.ceil(1.0 / (self.update_ratio * num_envs) - 1e-9)

    def stages(
        self, policy: Policy, envs: Envs, replay: Store, beta: Schedule | None = None
    ) -> list[Middleware]:
        steps, measured = self.turn_steps(envs.num_envs), self.normalizer(envs)
        updates = steps * self.update_ratio
        train = mw.train(policy, replay, updates=updates, beta=beta, normalize_rewards=measured)
        return [mw.collect(policy, envs, steps=steps), mw.add_to(replay), train]


@dataclass(frozen=True, kw_only=True)
class FromReplay(FromStore):
    """The settings of learning from a replay of transitions."""

    capacity: int = setting(100_000, COUNT)
    """Maximum number of transitions in the replay. More keeps older transitions and takes more
    memory."""
    warmup: int = setting(1_000, NATURAL)
    """Random env steps before the first update. More makes the first batches more diverse."""

    def start(self, task: Task, envs: Envs, policy: Policy, seed: int) -> ReplayBuffer:
        replay = self.make_replay(envs, seed)
        if self.warmup:
            hold = getattr(self, "warmup_hold", 1)
            task.use(mw.random_warmup(envs, replay, steps=self.warmup, hold=hold))
        return replay

    def make_replay(self, envs: Envs, seed: int) -> ReplayBuffer:
        return ReplayBuffer(envs.spec, capacity=self.capacity, seed=seed)


@dataclass(frozen=True, kw_only=True)
class FromSequences(FromStore):
    """The settings of learning from sequences of episodes."""

    capacity: int = setting(100_000, partial(whole, 2))
    """Maximum number of observations in the buffer of whole episodes. More keeps older episodes and
    takes more memory, also for the recurrent state before each step."""

    def start(self, task: Task, envs: Envs, policy: Policy, seed: int) -> EpisodeBuffer:
        return EpisodeBuffer(
            envs.spec,
            capacity=self.capacity,
            num_envs=envs.num_envs,
            state_size=getattr(policy, "state_size", 0) or None,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class FromRollouts(Learning):
    """The settings of learning from rollouts, each of which is learned from once it is complete."""

    unroll: int = setting(16, COUNT)
    """Env steps of each environment in a rollout, after which the policy learns from it. More uses
    longer sums of rewards before it bootstraps, and learns less often; 5 to 128 are usual, and up
    to 2,048 for PPO."""

    def turn_steps(self, num_envs: int) -> int:
        return num_envs * self.unroll

    def check_sizes(self, envs: Envs) -> None:
        check_steps_fit(envs.spec, self.unroll * envs.num_envs, unroll=self.unroll)

    def stages(self, policy: Policy, envs: Envs, replay: object = None) -> list[Middleware]:
        train = mw.train(policy, normalize_rewards=self.normalizer(envs))
        return [mw.collect(cast(ActorCritic, policy), envs, unroll=self.unroll), train]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Learning):
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
    """An evaluation that reaches the target is continued to this many greedy episodes, beyond 20
    only while `eval_share` covers them; without a share, it is repeated with this many. Their mean
    decides whether the run ends and which policy is kept as the best. 0 accepts the evaluation
    itself. More is safer if returns vary widely, as the best of many noisy evaluations is too
    high."""
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
        warmup = max_env_steps // (2 if agents == 1 else 4)
        most = {"warmup": warmup, "unroll": unroll, "turn": room}
        fitting: Any = {k: max(1, fits) for k, fits in most.items() if getattr(self, k, 0) > fits}
        return dataclasses.replace(self, **fitting)

    def row_every(self, max_env_steps: int) -> int:
        """Return `log_every`, or its default in a run of so many env steps."""
        usual = min(max(200, max_env_steps // 2_000), 10_000)
        return usual if self.log_every is None else self.log_every

    def steps_per_update(self, num_envs: int) -> int:
        """Return the env steps in each step of the pipeline."""
        return self.turn_steps(num_envs)

    def every(self, env_steps: int, num_envs: int) -> int:
        """Convert a period in env steps to steps of the pipeline."""
        steps = max(1, self.steps_per_update(num_envs))  # 0 if a later check refuses it
        return max(1, env_steps // steps)

    def normalizer(self, envs: Envs) -> Envs | None:
        return envs if self.normalize_rewards else None


@dataclass(frozen=True, kw_only=True)
class SingleConfig(TrainConfig):
    """The settings of training a single policy."""

    eval_share: float | None = setting(0.1, positive, optional=True)
    """The maximum ratio of evaluation env steps to training env steps. An evaluation that exceeds
    it delays the next one. Not counted are the 20 or more episodes of a policy that reaches the
    target, and a verdict with at most 10,000 env steps in all; a longer verdict is limited to the
    rest of the share. With None, and by default if `eval_every` is given, there is an
    evaluation every `eval_every` env steps."""
    eval_episodes: int | None = None
    """Greedy episodes in an evaluation. More is less noisy and costs more. None: 5 with an
    `eval_share`, else 20. If the run ends before the share covers so many, it has fewer."""

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

    def learn(self, task: Task, policy: Policy, envs: Envs, *, seed: int) -> dict[str, Stateful]:
        """Add the middleware that collect and learn; return further parts to save, by name."""
        replay = self.start(task, envs, policy, seed)
        for stage in self.stages(policy, envs, replay):
            task.use(stage)
        return {} if replay is None else {"replay": replay}


@suggests
@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(FromReplay, SingleConfig):
    """The settings of training from replay, in addition to those of the policy."""

    warmup_hold: int = setting(1, COUNT)
    """Steps for which each random action of the warm-up is repeated. About 20 explores further
    where single random actions cancel each other out, as with a weak motor."""
    update_ratio: float = setting(1.0, UPDATE_RATIO)
    """Updates for each env step. More learns more from each env step and takes longer; 1/16 to 1
    are usual."""

    prioritized: bool = False
    """Sample transitions with larger errors more often. This learns more from each env step where
    rewards are rare, and takes longer."""
    priority_alpha: float = setting(0.6, SHARE)
    """Exponent of the priorities: 0 samples uniformly, 1 in proportion to them; 0.5 to 0.7 are
    usual."""
    priority_beta: float = setting(0.4, SHARE)
    """Initial exponent of the importance weights. It rises to 1, which corrects the bias of
    prioritized sampling in full."""
    priority_beta_steps: int = setting(100_000, COUNT)
    """Env steps over which `priority_beta` rises linearly to 1; those of the whole run are
    usual."""

    def make_replay(self, envs: Envs, seed: int) -> ReplayBuffer:
        if not self.prioritized:
            return super().make_replay(envs, seed)
        alpha, beta = self.priority_alpha, self.priority_beta
        return PrioritizedReplay(
            envs.spec, capacity=self.capacity, alpha=alpha, beta=beta, seed=seed
        )

    def stages(
        self, policy: Policy, envs: Envs, replay: Store, beta: Schedule | None = None
    ) -> list[Middleware]:
        if not isinstance(replay, PrioritizedReplay):
            return super().stages(policy, envs, replay, beta)
        beta = linear(self.priority_beta, 1.0, steps=self.priority_beta_steps)
        return [*super().stages(policy, envs, replay, beta), mw.update_priorities(replay)]


@suggests
@dataclass(frozen=True, kw_only=True)
class SequenceConfig(FromSequences, SingleConfig):
    """The settings of training from sequences of episodes, in addition to those of the policy."""

    update_ratio: float = setting(0.125, UPDATE_RATIO)
    """Updates for each env step. Each update learns from many steps; 1/32 to 1/4 are usual."""


@suggests
@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(FromRollouts, SingleConfig):
    """The settings of training from rollouts, in addition to those of the policy."""


@suggests
@dataclass(frozen=True, kw_only=True)
class ShortRolloutConfig(OnPolicyConfig):
    """The settings of training from rollouts for a policy that makes one update of each."""

    unroll: int = 8
    """Env steps of each environment in a rollout, after which the policy learns from it. More uses
    longer sums of rewards before it bootstraps, and learns less often; 5 to 32 are usual."""
