"""Many environments of one kind, stepped together, with one rule for the ends of episodes.

The rule: what `Envs.step` returns is the true last observation of an episode that ended,
and says whether it ended for good (`terminated`) or was cut off (`truncated`). What to act
on next, `Envs.obs`, is then already the first observation of the next episode. So no
transition crosses an episode, and none is made up by a reset.

What is ugly here and why: gymnasium has three ways of resetting an env that ended. Its
vector CartPole resets one step late and makes up a transition in doing so. Both sources
below therefore leave the resets to `Envs`, which asks for them at one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, get_args

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector.utils import batch_space

from ding_lite.errors import (
    ConfigError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
    did_you_mean,
)
from ding_lite.rl.batch import BoolArray, FloatArray, NumpyArray, Step
from ding_lite.rl.seeding import spawn_seeds
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import at_least, check_all, one_of

EnvsMode: TypeAlias = Literal["auto", "native", "sync"]
_RawStep: TypeAlias = tuple[FloatArray, FloatArray, BoolArray, BoolArray]


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that has ended, from its first env step to its last."""

    env_index: int
    """Which of the environments played it."""
    ret: float
    """The sum of its rewards."""
    length: int
    """Its length in env steps."""


class _Source(Protocol):
    """Where the steps come from. Nothing resets itself."""

    def reset(self) -> FloatArray:
        """Start new episodes everywhere; the first time from the seed. Returns obs [N, ...]."""

    def step(self, action: NumpyArray) -> _RawStep:
        """Return next_obs, reward, terminated, truncated; all freshly allocated."""

    def reset_where(self, done_N: BoolArray, next_obs: FloatArray) -> FloatArray:
        """Start new episodes where the mask says so, and return the obs of all, as a copy."""

    def close(self) -> None:
        """Give back what the environments hold."""


class Envs:
    """N environments of one kind, stepped together. Made by `make_envs`.

    Example:
        >>> with make_envs("CartPole-v1", 2, seed=0) as envs:
        ...     step = envs.step(np.array([0, 1]))
        >>> step.next_obs.shape, step.terminated.tolist()
        ((2, 4), [False, False])
    """

    def __init__(self, source: _Source, *, spec: EnvSpec, num_envs: int, seed: int) -> None:
        """Take over a source; use `make_envs` instead."""
        self.spec = spec
        self.num_envs = num_envs
        self.finished: list[Episode] = []
        """The episodes that ended since the last `take_finished`."""

        self._source = source
        self._obs: FloatArray | None = None
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._actions_shape = (num_envs, *spec.action_shape)
        self._batched_action_space: Space[Any] = batch_space(spec.action_space, num_envs)
        self._batched_action_space.seed(spawn_seeds(seed, "random actions", count=1)[0])

    @property
    def obs(self) -> FloatArray:
        """What to act on next, [N, ...] float32. The first access starts the episodes."""
        return self.reset() if self._obs is None else self._obs

    def reset(self) -> FloatArray:
        """Start new episodes everywhere and drop the unfinished ones.

        The first reset begins with the seed; later ones go on from there.

        Raises:
            NonFiniteError: If an observation holds NaN or infinity.
        """
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._obs = self._source.reset()
        _check_finite("observation", self._obs, spec=self.spec)
        return self._obs

    def step(self, action: NumpyArray) -> Step:
        """Act in each environment once, and start the next episode where one ended.

        Args:
            action: One action per environment, [N] integers from 0, or [N, ...] floats.

        Raises:
            ShapeError: If it is not one action per environment.
            ConfigError: If an action is not among the environment's.
            NonFiniteError: If an observation or a reward holds NaN or infinity.
        """
        obs = self.obs
        self._check_action(action)
        next_obs, reward, terminated, truncated = self._source.step(action)
        _check_finite("observation", next_obs, spec=self.spec)
        _check_finite("reward", reward, spec=self.spec)

        self._obs = next_obs
        self._returns += reward
        self._lengths += 1
        done_N = terminated | truncated
        if np.count_nonzero(done_N):
            self._note_finished(done_N)
            self._obs = self._source.reset_where(done_N, next_obs)
            _check_finite("observation", self._obs, spec=self.spec)

        return Step(obs, action, reward, next_obs, terminated, truncated)

    def take_finished(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in the order they ended."""
        finished, self.finished = self.finished, []
        return finished

    def random_actions(self) -> NumpyArray:
        """Draw one action per environment, uniformly, from a generator of its own."""
        action: NumpyArray = self._batched_action_space.sample()
        if isinstance(self.spec.action_space, Discrete):
            action = action - self.spec.action_space.start
        return action.astype(self.spec.action_dtype)

    def close(self) -> None:
        """Give back what the environments hold. May be called more than once."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_action(self, action: NumpyArray) -> None:
        if action.shape != self._actions_shape:
            raise ShapeError(
                f"`action` has shape {action.shape}; {self.num_envs} environments of "
                f"{self.spec.env_id} take one of shape {self._actions_shape}."
            )
        num_actions = self.spec.num_actions
        if num_actions is not None and ((action < 0) | (action >= num_actions)).any():
            raise ConfigError(
                f"`action` is {action.tolist()}; {self.spec.env_id} has the actions 0 to "
                f"{num_actions - 1}."
            )

    def _note_finished(self, done_N: BoolArray) -> None:
        for index in np.flatnonzero(done_N).tolist():
            self.finished.append(
                Episode(index, float(self._returns[index]), int(self._lengths[index]))
            )
        self._returns[done_N] = 0.0
        self._lengths[done_N] = 0


def _check_finite(what: str, values: NumpyArray, *, spec: EnvSpec) -> None:
    if np.count_nonzero(np.isfinite(values)) == values.size:
        return
    finite_N = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    index = int(np.flatnonzero(~finite_N)[0])
    raise NonFiniteError(
        f"Environment {index} of {spec.env_id} gave the {what} {values[index].tolist()}; "
        f"finite numbers were expected. Look at what this environment computes, or at the "
        f"actions it was given."
    )


class _NativeCartPole:
    """Gymnasium's vector CartPole with the late resets taken out of its `step`."""

    def __init__(self, num_envs: int, *, seed: int, **settings: Any) -> None:  # noqa: ANN401 gymnasium's
        self._env = CartPoleVectorEnv(num_envs, **settings)
        self._seed: int | None = seed
        self._nothing_done = np.zeros(num_envs, dtype=np.bool_)

    def reset(self) -> FloatArray:
        obs, _ = self._env.reset(seed=self._seed)
        self._seed = None
        return obs

    def step(self, action: NumpyArray) -> _RawStep:
        self._env.prev_done = self._nothing_done  # so that its own late reset finds nothing
        next_obs, reward, terminated, truncated, _ = self._env.step(action)
        return next_obs, reward, terminated, truncated

    def reset_where(self, done_N: BoolArray, next_obs: FloatArray) -> FloatArray:
        env: Any = self._env  # gymnasium types its state as None
        state = env.np_random.uniform(env.low, env.high, size=(4, np.count_nonzero(done_N)))
        env.state[:, done_N] = state
        env.steps[done_N] = 0
        obs = next_obs.copy()
        obs[done_N] = state.T
        return obs

    def close(self) -> None:
        self._env.close()


class _SyncLoop:
    """Plain environments, one after the other."""

    def __init__(self, envs: list[gymnasium.Env[Any, Any]], *, seeds: list[int]) -> None:
        self._envs = envs
        self._seeds: list[int] | None = seeds
        space = envs[0].action_space
        self._start = int(space.start) if isinstance(space, Discrete) else None
        self._obs_shape = (len(envs), *(envs[0].observation_space.shape or ()))

    def reset(self) -> FloatArray:
        seeds: Sequence[int | None] = self._seeds or [None] * len(self._envs)
        self._seeds = None
        obs = np.empty(self._obs_shape, dtype=np.float32)
        for index, (env, seed) in enumerate(zip(self._envs, seeds, strict=True)):
            obs[index], _ = env.reset(seed=seed)
        return obs

    def step(self, action: NumpyArray) -> _RawStep:
        num_envs = len(self._envs)
        next_obs = np.empty(self._obs_shape, dtype=np.float32)
        reward = np.empty(num_envs, dtype=np.float32)
        terminated = np.empty(num_envs, dtype=np.bool_)
        truncated = np.empty(num_envs, dtype=np.bool_)
        actions = list(action) if self._start is None else (action + self._start).tolist()

        for index, (env, one_action) in enumerate(zip(self._envs, actions, strict=True)):
            next_obs[index], reward[index], terminated[index], truncated[index], _ = env.step(
                one_action
            )
        return next_obs, reward, terminated, truncated

    def reset_where(self, done_N: BoolArray, next_obs: FloatArray) -> FloatArray:
        obs = next_obs.copy()
        for index in np.flatnonzero(done_N).tolist():
            obs[index], _ = self._envs[index].reset()
        return obs

    def close(self) -> None:
        for env in self._envs:
            env.close()


NATIVE: dict[str, Callable[..., _Source]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _NativeCartPole,
}
"""Vector entry points of gymnasium's that run as one array program, and who steps them."""


def make_envs(env_id: str, num_envs: int, *, seed: int = 0, mode: EnvsMode = "auto") -> Envs:
    """Make environments that are stepped together, in this process.

    Args:
        env_id: A name in gymnasium's registry, such as `CartPole-v1`.
        num_envs: How many. More give steadier learning and faster stepping; 8 is usual.
        seed: One seed for all. The same seed gives the same episodes for the same actions.
        mode: `native` steps all of them as one array program (CartPole), `sync` one after
            the other; `auto` takes `native` where there is one.

    Raises:
        ConfigError: If there is no such environment, it has no native form, or a space of it
            is not supported yet.
        MissingExtraError: If the environment needs a package that is not installed.
    """
    wanted: str = mode
    if wanted == "async":
        raise ConfigError(
            "`mode` 'async', environments in processes of their own, is not built yet. For now "
            f"there is {', '.join(get_args(EnvsMode))}; small environments are faster in "
            "this process anyway."
        )
    check_all(one_of(get_args(EnvsMode), mode=mode), at_least(1, num_envs=num_envs))
    registered = _find(env_id)
    native = NATIVE.get(str(registered.vector_entry_point))
    if mode == "native" and native is None:
        raise ConfigError(
            f"{env_id} has no native vector form; these have: {', '.join(_native_ids())}. "
            f'Use mode="sync" or mode="auto".'
        )

    seeds = spawn_seeds(seed, "environments", count=num_envs)
    first = _make_one(registered)
    spec = EnvSpec(
        env_id=env_id,
        obs_space=_supported_obs_space(env_id, first.observation_space),
        action_space=_supported_action_space(env_id, first.action_space),
        max_episode_steps=registered.max_episode_steps,
    )
    source: _Source
    if native is None or mode == "sync":
        rest = [_make_one(registered) for _ in range(num_envs - 1)]
        source = _SyncLoop([first, *rest], seeds=seeds)
    else:
        first.close()
        limit = registered.max_episode_steps or np.iinfo(np.int32).max
        source = native(num_envs, seed=seeds[0], max_episode_steps=limit, **registered.kwargs)

    return Envs(source, spec=spec, num_envs=num_envs, seed=seed)


def _find(env_id: str) -> gymnasium.envs.registration.EnvSpec:
    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"There is no environment {env_id!r} in gymnasium's registry."
            f"{did_you_mean(str(env_id), gymnasium.registry)} An environment of your own must be "
            f"registered first (gymnasium.register)."
        ) from error


def _native_ids() -> list[str]:
    return sorted(
        env_id
        for env_id, registered in gymnasium.registry.items()
        if str(registered.vector_entry_point) in NATIVE
    )


def _make_one(registered: gymnasium.envs.registration.EnvSpec) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(registered, disable_env_checker=True)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        extra = 'pip install "ding-lite[box2d]"' if "box2d" in str(error).lower() else None
        raise MissingExtraError(
            f"{registered.id} needs a package that is not installed. "
            f"{f'Install it: {extra}' if extra else str(error).rstrip('.')}."
        ) from error


def _supported_obs_space(env_id: str, space: Space[Any]) -> Box:
    if isinstance(space, Box) and len(space.shape) == 1:
        return space
    raise ConfigError(
        f"{env_id} has the observation space {space}; only vectors, Box with one axis, are "
        f"supported so far. Wrap the environment (gymnasium.wrappers.FlattenObservation, for "
        f"example) and register the wrapped one."
    )


def _supported_action_space(env_id: str, space: Space[Any]) -> Discrete | Box:
    if isinstance(space, Discrete) or (isinstance(space, Box) and len(space.shape) == 1):
        return space
    raise ConfigError(
        f"{env_id} has the action space {space}; only Discrete and Box with one axis are "
        f"supported so far. Wrap the environment so that it has one of them."
    )
