"""Sources of env steps: environments one after the other, or as one array program.

A source never resets by itself: `Envs` resets it where an episode has ended. The source with worker
processes is in `workers`; each has an `EnvLoop`.

Gymnasium's environments cannot be saved, so their history is saved instead: the state of the random
generator at the last reset, and the actions since then. Replaying the actions restores the state,
unless an environment has other sources of randomness, so the caller compares the observations and
the sums of rewards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward

from ding_lite.errors import ConfigError, EnvError
from ding_lite.rl.batch import BoolArray, FloatArray, NumpyArray
from ding_lite.rl.envs.actions import ActionForm, RandomActions
from ding_lite.rl.envs.checks.faults import (
    Env as Env,
    close_all,
    five_values,
    obs_and_info,
    raising_env_errors,
)
from ding_lite.rl.envs.checks.masks import check_batch, check_masks, refuse_late_mask
from ding_lite.rl.envs.checks.observations import ObsCheck
from ding_lite.rl.envs.checks.wrapper import CheckedEnv
from ding_lite.rl.envs.forms import Form
from ding_lite.rl.seeding import rng_state, set_rng_state
from ding_lite.rl.spec import EnvSpec

RawStep: TypeAlias = tuple[NumpyArray, FloatArray, BoolArray, BoolArray]
"""The next observations, rewards, and the flags terminated and truncated."""
Restored: TypeAlias = tuple[NumpyArray, NumpyArray | None, BoolArray]
"""The frames; the sums of the rewards of replayed actions, in float64, or None without a replay;
and which environments were restored."""
History: TypeAlias = dict[str, Any]
"""Restores the state of one environment: `seed` or `rng`, and `actions`."""

MAX_HISTORY = 100_000
"""The longest episode that is saved, in env steps; a longer one restarts when it is restored."""


class Source(Protocol):
    """Steps N environments of one kind, without resetting them by itself."""

    success_N: NumpyArray
    """The `info["is_success"]` of the last step: 0 if there is none, 1 for no, 2 for yes."""

    def reset(self) -> NumpyArray:
        """Reset all environments, the first time by the seeds; return frames, [N, ...]."""

    def step(self, action: NumpyArray) -> RawStep:
        """Act once in each environment; return newly allocated arrays."""

    def reset_where(self, done_N: BoolArray) -> NumpyArray:
        """Reset the environments of the mask; return only their first frames."""

    def save(self) -> dict[str, Any]:
        """Return the data from which `restore` restores each environment's state."""

    def restore(self, state: dict[str, Any]) -> Restored:
        """Restore a result of `save`."""

    def close(self) -> None:
        """Close the environments. It may be called more than once."""


_loops: WeakValueDictionary[int, EnvLoop] = WeakValueDictionary()
"""The loop that steps an environment, by the identity of the environment."""


class EnvLoop:
    """Steps plain environments one after the other.

    `first_index` is the number of the first environment among all workers', for messages.
    """

    def __init__(
        self, envs: Sequence[Env], *, seeds: Sequence[int], spec: EnvSpec, first_index: int = 0
    ) -> None:
        ids = [id(env.unwrapped) for env in envs]
        if len({*ids}) < len(ids) or any(one in _loops for one in ids):
            raise ConfigError(
                f"`{spec.env_id}` returned an environment that is in use already; a new one was "
                f"expected at each call, because several are stepped together, and evaluations "
                f"have their own. Make it there: lambda: gymnasium.make(...)."
            )
        _loops.update(dict.fromkeys(ids, self))
        self._envs = [
            CheckedEnv(env, index=index, spec=spec) for index, env in enumerate(envs, first_index)
        ]
        self._spec = spec
        self._steps = [env.step for env in self._envs]
        self._form = Form(spec)
        self._seeds: list[int | None] = list(seeds)
        self._action_form = ActionForm(spec)
        self.success_N = np.zeros(len(envs), dtype=np.int8)
        # The history of each environment: its generator when its episode began, and the actions of
        # all environments since then, of which it reads its own.
        self._origins: list[History] = [{} for _ in envs]
        self._actions: list[deque[NumpyArray]] = [deque(maxlen=MAX_HISTORY + 1) for _ in envs]

    def reset(self) -> NumpyArray:
        return self.reset_where(np.ones(len(self._envs), dtype=np.bool_))

    def step(self, action: NumpyArray) -> RawStep:
        num_envs, kept = len(self._envs), action.copy()
        for history in self._actions:
            history.append(kept)
        reward = np.empty(num_envs, dtype=np.float32)
        terminated, truncated = np.empty((2, num_envs), dtype=np.bool_)
        actions, raws = self._action_form.of_each(action), []
        self.success_N.fill(0)
        for index, step in enumerate(self._steps):
            raw, reward[index], terminated[index], truncated[index], info = step(actions[index])
            raws.append(raw)
            if info and "is_success" in info:
                self.success_N[index] = 1 + bool(info["is_success"])
        frames = self._form.empty(num_envs)
        self._form.write(frames, raws)
        if self._spec.has_action_mask:
            self._form.write_masks(frames, np.stack([env.action_mask for env in self._envs]))
        return frames, reward, terminated, truncated

    def reset_where(self, done_N: BoolArray) -> NumpyArray:
        done = np.flatnonzero(done_N).tolist()
        frames = self._form.empty(len(done))
        for index, frame in zip(done, frames, strict=True):
            self._reset_one(index, frame)
        return frames

    def save(self) -> dict[str, Any]:
        return {"histories": [self._history(index) for index in range(len(self._envs))]}

    def _history(self, index: int) -> History:
        """Return the history of an environment; empty if it is unknown or too long."""
        origin, kept = self._origins[index], self._actions[index]
        if not origin or len(kept) > MAX_HISTORY:
            return {}
        actions = np.array([action[index] for action in kept])
        return origin | {"actions": actions.astype(self._spec.action_dtype)}

    def restore(self, state: dict[str, Any]) -> Restored:
        """Replay histories; an empty history begins a new episode."""
        histories, frames = state["histories"], self._form.empty(len(self._envs))
        returns = np.zeros(len(frames))
        for index, history in enumerate(histories):
            self._seeds[index] = history.get("seed", self._seeds[index])
            if "rng" in history:
                self._seeds[index] = None
                set_rng_state(_generator(self._envs[index]), history["rng"])
            self._reset_one(index, frames[index])
            for action in history.get("actions", ()):
                self._actions[index].append(np.broadcast_to(action, (len(frames), *action.shape)))
                raw, reward, *_ = self._envs[index].step(self._action_form.of_each(action[None])[0])
                returns[index] += np.float32(reward)  # as `step` returns it
                self._write(index, frames[index], raw)
        return frames, returns, np.array(list(map(bool, histories)))

    def close(self) -> None:
        for env in self._envs:
            _loops.pop(id(env.unwrapped), None)
        close_all(self._envs)

    def _reset_one(self, index: int, frame: NumpyArray) -> None:
        env, seed = self._envs[index], self._seeds[index]
        self._seeds[index] = None
        self._actions[index].clear()
        self._origins[index] = _origin(env, seed)
        raw, _ = env.reset(seed=seed)
        self._write(index, frame, raw)

    def _write(self, index: int, frame: NumpyArray, raw: Any) -> None:  # noqa: ANN401 - a tree
        self._form.write_row(frame, raw)
        if self._spec.has_action_mask:
            self._form.write_masks(frame, self._envs[index].action_mask)


def _generator(env: CheckedEnv) -> np.random.Generator:
    with raising_env_errors(env.name, "np_random"):
        generator: np.random.Generator = env.unwrapped.np_random
    return generator


def _origin(env: CheckedEnv, seed: int | None) -> History:
    """Return the generator's state before the next reset; empty if it cannot be saved."""
    if seed is not None:
        return {"seed": seed}
    generator = _generator(env)
    is_known = isinstance(getattr(generator, "bit_generator", None), np.random.PCG64)
    return {"rng": rng_state(generator)} if is_known else {}


class NativeVector:
    """Steps a vector environment of another package.

    An environment that resets itself at the next step (NEXT_STEP) is reset with `reset_mask` before
    that step, like one that leaves resets to its user (DISABLED). Such a reset returns the first
    observations of all environments, or, as EnvPool's does, of those that were reset. An
    environment that resets itself at once (SAME_STEP) returns the true last observations as
    `final_obs`. They are false if an environment returns the same array each time, which its reset
    has overwritten by then.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seed: int, spec: EnvSpec) -> None:
        self._env = env
        self._seed: int | None = seed
        self._name = f"The vector form of {spec.env_id}"
        self._form = Form(spec)
        self._action_form = ActionForm(spec)
        self._spec = spec
        self._checked_obs = ObsCheck(self._name, spec)
        self._newest: NumpyArray = np.empty(0)
        self._returns_reset_only = False
        self.success_N = np.zeros(env.num_envs, dtype=np.int8)
        self._newest_final_obs: list[tuple[int, Any, NumpyArray]] = []
        """The newest `final_obs` by environment, as they are and as frames."""
        try:
            mode = self._autoreset_mode()
            self._returns_final_obs = mode == AutoresetMode.SAME_STEP
            self._check_processes(mode)
            self._check_wrappers()
            if not self._returns_final_obs and env.num_envs > 1:
                self._check_mask()
        except BaseException:
            self.close()
            raise

    def reset(self) -> NumpyArray:
        raw, info = self._reset(seed=self._seed)
        self._seed = None
        everywhere_N = np.ones(self._env.num_envs, np.bool_)
        self._newest = self._batch(raw, info, "reset", matters_N=everywhere_N)
        return self._newest.copy()

    def step(self, action: NumpyArray) -> RawStep:
        with raising_env_errors(self._name, "step"):
            answer = self._env.step(self._action_form.of_all(action))
        raw, reward, terminated, truncated, info = five_values(self._name, answer)
        one_each = (self._env.num_envs,)
        reward = check_batch(self._name, "reward", reward, shape=one_each, kinds="iuf")
        terminated = check_batch(self._name, "terminated", terminated, shape=one_each, kinds="b")
        truncated = check_batch(self._name, "truncated", truncated, shape=one_each, kinds="b")
        frames = self._batch(raw, info, "step", matters_N=~terminated)
        done_N = terminated | truncated
        if self._newest_final_obs:
            self._check_final_obs_kept(done_N)
        self.success_N[:] = 0
        last_info = info.get("final_info", info)
        if "is_success" in last_info:
            told_N = last_info.get("_is_success", True)
            self.success_N[:] = np.where(told_N, 1 + (np.array(last_info["is_success"]) != 0), 0)
        if self._returns_final_obs and done_N.any():
            self._newest, frames = frames, frames.copy()
            ended = np.flatnonzero(done_N).tolist()
            if "final_obs" not in info:
                raise EnvError(
                    f'{self._name} gave no `info["final_obs"]` from `step` at the end of an '
                    f"episode; the last observation was expected there, as its autoreset mode is "
                    f"SAME_STEP. Return it, or do not reset in `step` (mode DISABLED)."
                )
            with raising_env_errors(self._name, "step"):
                last = [info["final_obs"][index] for index in ended]
            rows = np.zeros_like(self._form.empty(len(last)))
            for row, raw_row in zip(rows, last, strict=True):
                self._form.write_row(row, self._checked_obs(raw_row, "final_obs"))
            self._newest_final_obs = [*zip(ended, last, rows.copy(), strict=True)]
            if self._spec.has_action_mask:
                final = info.get("final_info", {})
                matters_N = done_N & ~terminated  # only ended episodes have a final mask
                masks = check_masks(self._name, final, spec=self._spec, matters_N=matters_N)
                self._form.write_masks(rows, masks[done_N])
            frames[done_N] = rows
        return frames, np.array(reward, np.float32), np.array(terminated), np.array(truncated)

    def _check_final_obs_kept(self, done_N: BoolArray) -> None:
        """Raise if a `final_obs` has changed since, in an environment that did not end again."""
        again = np.zeros_like(self._form.empty(1)[0])
        for index, raw, row in self._newest_final_obs:
            self._form.write_row(again, raw)
            if not done_N[index] and not np.array_equal(again, row, equal_nan=True):
                raise EnvError(
                    f"{self._name} overwrites `final_obs` of environment {index} after it has "
                    f"returned it, so that it was not the last observation of the episode, but the "
                    f"first of the next one. Let the environment return a new array each time, "
                    f"such as `obs.copy()`, or give the plain id or class of the environments."
                )
        self._newest_final_obs = []

    def reset_where(self, done_N: BoolArray) -> NumpyArray:
        if self._returns_final_obs:
            return self._newest[done_N]
        raw, info = self._reset(options={"reset_mask": done_N.copy()})
        if self._returns_reset_only:
            return self._batch(raw, info, "reset", matters_N=np.ones(done_N.sum(), np.bool_))
        frames = self._batch(raw, info, "reset", matters_N=done_N)
        return frames[done_N]

    def _reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        with raising_env_errors(self._name, "reset"):
            answer = self._env.reset(**how)
        return obs_and_info(self._name, answer)

    def _autoreset_mode(self) -> AutoresetMode:
        metadata = getattr(self._env, "metadata", None)
        mode = metadata.get("autoreset_mode") if isinstance(metadata, dict) else None
        if isinstance(own := getattr(self._env, "unwrapped", None), SyncVectorEnv | AsyncVectorEnv):
            mode = own.autoreset_mode  # in gymnasium 1.1 all vectors of one class share `metadata`
        if mode not in set(AutoresetMode):
            raise ConfigError(
                f"{self._name} has the autoreset mode {mode}; one of gymnasium's was expected, as "
                f'`metadata` tells them: {{"autoreset_mode": AutoresetMode.DISABLED}}.'
            )
        return AutoresetMode(mode)

    def _check_processes(self, mode: AutoresetMode) -> None:
        env: object = getattr(self._env, "unwrapped", None)
        if not isinstance(env, AsyncVectorEnv) or env.shared_memory:
            return
        if mode == AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"{self._name} is an AsyncVectorEnv with `shared_memory=False` and the autoreset "
                f"mode NEXT_STEP. Its processes reset an environment once more after `reset`, "
                f"which gives a false transition in each episode. Give it `shared_memory=True`, "
                f"or `autoreset_mode=AutoresetMode.SAME_STEP`."
            )

    def _check_wrappers(self) -> None:
        """Raise for statistics that a reset of some environments breaks or falsifies."""
        instead: dict[object, str] = {NormalizeObservation: "the policy's `normalize_obs=True`"}
        if not self._returns_final_obs:
            instead[NormalizeReward] = (
                "`train(..., normalize_rewards=True)` or `mw.train(..., normalize_rewards=envs)`"
            )
        env: object = self._env
        while isinstance(env, VectorWrapper):
            if type(env) in instead:
                raise ConfigError(
                    f"{self._name} has gymnasium's vector wrapper {type(env).__name__}, and its "
                    f"statistics need resets of all environments at once. Leave it out, and take "
                    f"{instead[type(env)]}."
                )
            env = env.env

    def _check_mask(self) -> None:
        """Raise for an environment that resets all its members when `reset_mask` names one."""
        seed, mask = self._seed, self._spec.action_mask(self.reset())
        self._seed = seed
        # After a step the environments differ from new ones, even if all episodes begin alike.
        frames, *_ = self.step(RandomActions(self._spec, self._env.num_envs, seed=0).draw(mask))
        first_N = np.arange(self._env.num_envs) == 0
        after, _ = self._reset(options={"reset_mask": first_N})
        with raising_env_errors(self._name, "reset"):
            frames_after = self._form.batch(after)
        self._returns_reset_only = len(frames_after) == 1
        mask = self._spec.action_mask(frames)
        if mask is not None and not self._returns_reset_only:
            self._form.write_masks(frames_after, mask)  # only observations are compared
        if not self._returns_reset_only and not np.array_equal(frames[1:], frames_after[1:]):
            raise ConfigError(
                f"{self._name} ignores `reset_mask` at `reset`, which gives false transitions: one "
                f"environment was named, and all were reset. Let it reset only those that the mask "
                f"names, or give the plain id or class of its environments, "
                f'gymnasium.make_vec(..., vectorization_mode="sync"), or a vector with the '
                f"autoreset mode SAME_STEP."
            )

    def _batch(
        self,
        raw: Any,  # noqa: ANN401
        info: dict[str, Any],
        where: str,
        *,
        matters_N: BoolArray,
    ) -> NumpyArray:
        """Return frames, with action masks if there are any; only `matters_N` are checked."""
        frames = self._form.batch(self._checked_obs(raw, where, num=len(matters_N)))
        if self._spec.has_action_mask:
            masks = check_masks(self._name, info, spec=self._spec, matters_N=matters_N)
            self._form.write_masks(frames, masks)
        elif where == "step":
            refuse_late_mask(self._name, info, self._spec)
        return frames

    def save(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> Restored:
        frames = self.reset()
        return frames, None, np.zeros(len(frames), dtype=np.bool_)

    def close(self) -> None:
        with raising_env_errors(self._name, "close"):
            self._env.close()
