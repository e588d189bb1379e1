"""Collect rollouts, env steps in order, for `collect(unroll=)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ding_lite.middleware.episodes import RecentEpisodes
from ding_lite.rl.batch import NumpyArray, Rollout
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.memory import Memory, fitted, memory_of
from ding_lite.rl.protocols import ActorCritic
from ding_lite.rl.spec import within
from ding_lite.runtime.context import Context


class EnvMemory:
    """The memory of a policy between steps of a collector, if the policy has one."""

    def __init__(self, policy: object, envs: Envs) -> None:
        self._policy, self._envs = policy, envs
        self._memory = memory_of(policy, envs.num_envs)
        self._seen_obs: NumpyArray | None = None

    def begin(self) -> Memory | None:
        """Return the memory, without the states of envs that have changed since `end`.

        They change in an evaluation, in a resumed run, or if another collector has stepped them.
        """
        memory = self._memory = fitted(self._memory, self._policy, self._envs.num_envs)
        if memory is not None and self._seen_obs is not None:
            memory.reset((self._envs.obs != self._seen_obs).reshape(len(memory), -1).any(axis=1))
        return memory

    def end(self) -> None:
        self._seen_obs = None if self._memory is None else self._envs.obs.copy()

    def state_dict(self) -> dict[str, Any]:
        memory = fitted(self._memory, self._policy, self._envs.num_envs)
        return {} if memory is None else {"memory": {**memory.state_dict(), "obs": self._seen_obs}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory = fitted(self._memory, self._policy, self._envs.num_envs)
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
            self._seen_obs = state["memory"].get("obs")


class CollectRollout:
    """Acts `num_steps` times in each env, and puts one `Rollout` on the ctx."""

    __name__ = "collect"

    def __init__(self, policy: ActorCritic, envs: Envs, num_steps: int) -> None:
        self._envs = envs
        self._num_steps = num_steps
        self._episodes = RecentEpisodes()
        self._memory = EnvMemory(policy, envs)
        self._policy: Any = policy

    def __call__(self, ctx: Context) -> None:
        ctx.trajectories = [self._collect(version=ctx.get("weights_version", 0))]
        ctx.env_step = ctx.get("env_step", 0) + self._num_steps * self._envs.num_envs
        ctx.keep("env_step")
        self._episodes.report(ctx, self._envs)

    def state_dict(self) -> dict[str, Any]:
        return {**self._episodes.state_dict(), **self._memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._episodes.load_state_dict(state)
        self._memory.load_state_dict(state)

    def _collect(self, *, version: int) -> Rollout:
        policy, envs, memory = self._policy, self._envs, self._memory.begin()
        more = {} if memory is None else {"memory": memory}
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

        self._memory.end()
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
