"""Train a policy from replay: random actions first, then collect and learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ding_lite import middleware as mw
from ding_lite.middleware.checks import check_batch
from ding_lite.recipes.recipe import SingleConfig
from ding_lite.rl.envs.sizes import check_steps_fit
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.formulas.schedules import linear
from ding_lite.rl.protocols import BatchConfig, Policy
from ding_lite.rl.replay.episodes import EpisodeBuffer
from ding_lite.rl.replay.prioritized import PrioritizedReplay
from ding_lite.rl.replay.storage import check_replay_fits
from ding_lite.rl.replay.uniform import ReplayBuffer
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, NATURAL, SHARE, inside, setting, whole

UPDATE_RATIO = partial(inside, 1e-6, 1e6)
"""The bounds of `update_ratio`: beyond them a step of the pipeline would never end."""


@suggests
@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(SingleConfig):
    """The settings of training from replay, in addition to those of the policy."""

    capacity: int = setting(100_000, COUNT)
    """Maximum number of transitions in the replay. More keeps older transitions and takes more
    memory."""
    warmup: int = setting(1_000, NATURAL)
    """Random env steps before the first update. More makes the first batches more diverse."""
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

    def steps_per_update(self, num_envs: int) -> int:
        """Return the env steps in each step of the pipeline: enough for an update."""
        return _steps_per_update(self.update_ratio, num_envs)

    def check_sizes(self, envs: Envs, policy: Policy) -> None:
        check_replay_sizes(envs, policy, capacity=self.capacity)

    def learn(self, task: Task, policy: Policy, envs: Envs, *, seed: int) -> dict[str, Stateful]:
        steps = self.steps_per_update(envs.num_envs)
        updates = max(1, round(steps * self.update_ratio))
        alpha, beta = self.priority_alpha, self.priority_beta
        replay = ReplayBuffer(envs.spec, capacity=self.capacity, seed=seed)
        if self.prioritized:
            replay = PrioritizedReplay(
                envs.spec, capacity=self.capacity, alpha=alpha, beta=beta, seed=seed
            )
        if self.warmup:
            task.use(mw.random_warmup(envs, replay, steps=self.warmup, hold=self.warmup_hold))
        task.use(mw.collect(policy, envs, steps=steps))
        task.use(mw.add_to(replay))
        rising = linear(beta, 1.0, steps=self.priority_beta_steps) if self.prioritized else None
        measured = self.normalizer(envs)
        task.use(mw.train(policy, replay, updates=updates, beta=rising, normalize_rewards=measured))
        if isinstance(replay, PrioritizedReplay):
            task.use(mw.update_priorities(replay))
        return {"replay": replay}


@suggests
@dataclass(frozen=True, kw_only=True)
class SequenceConfig(SingleConfig):
    """The settings of training from sequences of episodes, in addition to those of the policy."""

    capacity: int = setting(100_000, partial(whole, 2))
    """Maximum number of observations in the buffer of whole episodes. More keeps older episodes and
    takes more memory, also for the recurrent state before each step."""
    update_ratio: float = setting(0.125, UPDATE_RATIO)
    """Updates for each env step. Each update learns from many steps; 1/32 to 1/4 are usual."""

    def steps_per_update(self, num_envs: int) -> int:
        return _steps_per_update(self.update_ratio, num_envs)

    def learn(self, task: Task, policy: Policy, envs: Envs, *, seed: int) -> dict[str, Stateful]:
        steps = self.steps_per_update(envs.num_envs)
        updates = max(1, round(steps * self.update_ratio))
        episodes = EpisodeBuffer(
            envs.spec,
            capacity=self.capacity,
            num_envs=envs.num_envs,
            state_size=getattr(policy, "state_size", 0) or None,
            seed=seed,
        )
        task.use(mw.collect(policy, envs, steps=steps))
        task.use(mw.add_to(episodes))
        measured = self.normalizer(envs)
        task.use(mw.train(policy, episodes, updates=updates, normalize_rewards=measured))
        return {"replay": episodes}


def check_replay_sizes(envs: Envs, policy: Policy, *, capacity: int) -> None:
    """Refuse a replay that is too large for the machine, or too small for the policy."""
    check_replay_fits(envs.spec, capacity=capacity)
    check_steps_fit(envs.spec, policy.n_step * envs.num_envs, n_step=policy.n_step)
    if isinstance(policy.config, BatchConfig):
        check_batch(policy.config.batch_size, capacity=capacity)


def _steps_per_update(update_ratio: float, num_envs: int) -> int:
    return num_envs * math.ceil(1.0 / (update_ratio * num_envs) - 1e-9)
