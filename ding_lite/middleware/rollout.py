"""Collect rollouts, env steps in order, for `collect(unroll=)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ding_lite.middleware.episodes import RecentEpisodes
from ding_lite.rl.batch import BoolArray, NumpyArray, Rollout
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.memory import fitted, memory_of
from ding_lite.rl.protocols import ActorCritic
from ding_lite.rl.spec import within
from ding_lite.runtime.context import Context


class CollectRollout:
    """Acts `num_steps` times in each env, and puts one `Rollout` on the ctx."""

    __name__ = "collect"

    def __init__(self, policy: ActorCritic, envs: Envs, num_steps: int) -> None:
        self._envs = envs
        self._num_steps = num_steps
        self._episodes = RecentEpisodes()
        self._memory = memory_of(policy, envs.num_envs)
        self._policy: Any = policy
        self._seen_obs: NumpyArray | None = None

    def __call__(self, ctx: Context) -> None:
        ctx.trajectories = [self._collect(version=ctx.get("weights_version", 0))]
        ctx.env_step = ctx.get("env_step", 0) + self._num_steps * self._envs.num_envs
        ctx.keep("env_step")
        self._episodes.report(ctx, self._envs)

    def state_dict(self) -> dict[str, Any]:
        state = self._episodes.state_dict()
        memory = fitted(self._memory, self._policy, self._envs.num_envs)
        if memory is None:
            return state
        seen = self._envs.obs if self._seen_obs is None else self._seen_obs
        return {**state, "memory": {**memory.state_dict(), "obs": seen.copy()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._episodes.load_state_dict(state)
        self._memory = fitted(self._memory, self._policy, self._envs.num_envs)
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
            self._seen_obs = state["memory"].get("obs")

    def _collect(self, *, version: int) -> Rollout:
        policy, envs = self._policy, self._envs
        memory = self._memory = fitted(self._memory, policy, envs.num_envs)
        more = {} if memory is None else {"memory": memory}
        if memory is not None and self._seen_obs is not None:
            memory.reset(differs(envs.obs, self._seen_obs))  # another agent has acted since
        state = None if memory is None else memory.state.copy()
        spec = envs.spec
        shape_TN = (self._num_steps, envs.num_envs)
        obs = np.empty((*shape_TN, *spec.obs_shape), dtype=spec.obs_dtype)
        action = np.empty((*shape_TN, *spec.action_shape), dtype=spec.action_dtype)
        reward, log_prob = np.empty((2, *shape_TN), dtype=np.float32)
        terminated, truncated = np.empty((2, *shape_TN), dtype=np.bool_)
        last_obs = envs.obs
        cut_obs: list[NumpyArray] = []

        for time in range(self._num_steps):
            action[time], log_prob[time] = policy.explore(envs.obs, **more)
            step = envs.step(within(spec, action[time]))
            obs[time] = step.obs
            reward[time] = step.reward
            terminated[time] = step.terminated
            truncated[time] = step.truncated
            last_obs = step.next_obs
            if memory is not None:
                memory.reset(step.terminated | step.truncated)
            if step.truncated.any():
                cut_obs.append(step.next_obs[step.truncated & ~step.terminated])

        self._seen_obs = None if memory is None else envs.obs.copy()
        cut_time, cut_env = np.nonzero(truncated & ~terminated)
        return Rollout(
            obs=obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            log_prob=log_prob,
            last_obs=last_obs,
            cut_time=cut_time.astype(np.int64),
            cut_env=cut_env.astype(np.int64),
            cut_obs=np.concatenate(cut_obs) if cut_obs else obs[0, :0],
            version=version,
            state=state,
        )


def differs(obs: NumpyArray, before: NumpyArray) -> BoolArray:
    """Return the environments with another observation than before, [N]."""
    differs_N: BoolArray = (obs != before).reshape(len(obs), -1).any(axis=1)
    return differs_N
