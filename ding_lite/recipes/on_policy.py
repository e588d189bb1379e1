"""Train a policy from its own newest rollouts: collect a rollout and learn."""

from __future__ import annotations

from dataclasses import dataclass

from ding_lite import middleware as mw
from ding_lite.errors import ConfigError
from ding_lite.recipes.recipe import SingleConfig
from ding_lite.rl.envs.sizes import check_steps_fit
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.protocols import ActorCritic, Policy
from ding_lite.runtime.saving import Stateful
from ding_lite.runtime.task import Task
from ding_lite.settings.config import suggests
from ding_lite.settings.rules import COUNT, setting


@suggests
@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(SingleConfig):
    """The settings of training from rollouts, in addition to those of the policy."""

    unroll: int = setting(16, COUNT)
    """Env steps of each environment in a rollout, after which the policy learns from it. More uses
    longer sums of rewards before it bootstraps, and learns less often; 5 to 128 are usual, and up
    to 2,048 for PPO."""

    def steps_per_update(self, num_envs: int) -> int:
        return num_envs * self.unroll

    def check_sizes(self, envs: Envs, policy: Policy) -> None:
        check_steps_fit(envs.spec, self.unroll * envs.num_envs, unroll=self.unroll)

    def learn(self, task: Task, policy: Policy, envs: Envs, *, seed: int) -> dict[str, Stateful]:
        if not isinstance(policy, ActorCritic):
            raise ConfigError(
                f"{type(policy).__name__} cannot learn from rollouts: it has no `explore` method. "
                f"Train it from a replay."
            )
        task.use(mw.collect(policy, envs, unroll=self.unroll))
        task.use(mw.train(policy, normalize_rewards=self.normalizer(envs)))
        return {}


@suggests
@dataclass(frozen=True, kw_only=True)
class ShortRolloutConfig(OnPolicyConfig):
    """The settings of training from rollouts for a policy that makes one update of each."""

    unroll: int = 8
    """Env steps of each environment in a rollout, after which the policy learns from it. More uses
    longer sums of rewards before it bootstraps, and learns less often; 5 to 32 are usual."""
