"""Vectors of environments of one kind, with one rule for the ends of episodes.

The rule: where an episode ended, `Envs.step` returns its true last observation, and whether it
ended for good (`terminated`) or was cut off (`truncated`). `Envs.obs` is then already the first
observation of the next episode. So no transition crosses an episode or is made up by a reset.

What is ugly here and why: gymnasium has three ways of resetting an env that ended. Its vector
CartPole resets one step late and makes up a transition in doing so. The sources in `sources` and
`workers` therefore never reset by themselves; `Envs` resets them in one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, get_args

import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector.utils import batch_space

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError
from ding_lite.rl.batch import BoolArray, NumpyArray, Step
from ding_lite.rl.envs.catch import register_catch
from ding_lite.rl.envs.checks import CheckedEnv, raising_env_errors
from ding_lite.rl.envs.choice import choose, make_source_of
from ding_lite.rl.envs.forms import FrameStack
from ding_lite.rl.envs.making import (
    EnvMaker,
    EnvsMode as EnvsMode,
    EnvWrapper,
    find_registered,
    ids_of_native,
)
from ding_lite.rl.envs.sizes import check_envs_fit
from ding_lite.rl.envs.sources import Source
from ding_lite.rl.seeding import rng_state, set_rng_state, spawn_seeds
from ding_lite.rl.spec import EnvSpec
from ding_lite.settings import check_all, one_of, positive, whole

logger = logging.getLogger(__name__)
register_catch()

_STATE_KEYS = {"mode", "source", "obs", "returns", "lengths", "finished", "rng"}


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    env_index: int
    """The index of its environment."""
    ret: float
    """The sum of its rewards, as the environment gave them."""
    length: int
    """Its length in env steps."""


class Envs:
    """N environments of one kind, stepped together. Made by `make_envs`.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> with make_envs("CartPole-v1", 2, seed=0, mode="sync") as envs:
        ...     step = envs.step(np.array([0, 1]))
        >>> step.next_obs.shape, step.terminated.tolist(), envs.mode
        ((2, 4), [False, False], 'sync')
    """

    def __init__(
        self,
        *,
        spec: EnvSpec,
        num_envs: int,
        seed: int,
        mode: str,
        make_source: Callable[[str], Source],
        may_change: bool = False,
        reward_scale: float = 1.0,
    ) -> None:
        """Take a function that makes a source in a mode; use `make_envs` instead."""
        self.spec = spec
        self.num_envs = num_envs
        self.mode = mode
        """The mode of stepping: `native`, `sync` or `async`."""
        self.finished: list[Episode] = []
        """The episodes that ended since the last `take_finished`."""

        self._make_source = make_source
        self._may_change = may_change
        self._source = make_source(mode)
        self._obs: NumpyArray | None = None
        stacked = spec.frame_stack > 1
        self._stack = FrameStack(spec.frame_stack, spec, num_envs) if stacked else None
        self._reward_scale = np.float32(reward_scale)
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._actions_shape = (num_envs, *spec.action_shape)
        self._batched_action_space: Space[Any] = batch_space(spec.action_space, num_envs)
        self._batched_action_space.seed(spawn_seeds(seed, "random actions", count=1)[0])

    @property
    def obs(self) -> NumpyArray:
        """The current observations, [N, ...]. The first access starts the episodes."""
        return self.reset() if self._obs is None else self._obs

    def reset(self) -> NumpyArray:
        """Start new episodes everywhere and drop the unfinished ones.

        The first reset uses the seed; later ones continue the random generators.

        Raises:
            NonFiniteError: If an observation holds NaN or infinity.
        """
        self._returns[:] = 0.0
        self._lengths[:] = 0
        frames = self._source.reset()
        self._check_finite("observation", frames)
        self._obs = self._begin(np.ones(self.num_envs, dtype=np.bool_), frames, frames)
        return self._obs

    def step(self, action: NumpyArray) -> Step:
        """Step each environment once, and start the next episode where one ended.

        Args:
            action: One action per environment, [N] integers from 0, or [N, ...] floats.

        Raises:
            ShapeError: If it is not one action per environment.
            ConfigError: If an action is not among the environment's.
            NonFiniteError: If an observation or a reward holds NaN or infinity.
            EnvError: If an environment raises or returns what is not of its spaces, or if the
                process of one dies.
        """
        obs = self.obs
        self._check_action(action)
        next_frames, reward, terminated, truncated = self._source.step(action)
        self._check_finite("observation", next_frames)
        self._check_finite("reward", reward)

        next_obs = next_frames if self._stack is None else self._stack.push(next_frames)
        self._obs = next_obs
        self._returns += reward
        self._lengths += 1
        done_N = terminated | truncated
        if np.count_nonzero(done_N):
            self._note_finished(done_N)
            frames = self._source.reset_where(done_N)
            self._check_finite("observation", frames, of=np.flatnonzero(done_N))
            self._obs = self._begin(done_N, frames, next_obs)

        if self._reward_scale != 1.0:
            reward = reward * self._reward_scale
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

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs.

        An environment is saved as the state of its random generator when its episode began, and
        the actions since.
        """
        started = self._obs is not None
        return {
            "mode": self.mode,
            "source": self._source.save() if started else None,
            "obs": None if self._obs is None else self._obs.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "finished": [(one.env_index, one.ret, one.length) for one in self.finished],
            "rng": rng_state(self._batched_action_space.np_random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        That is exact for environments that draw from `np_random` only, the generator that
        gymnasium gives them, and that keep nothing from one episode to the next. If an environment
        shows another observation than it did, it begins a new episode, and a warning is logged.
        With `mode="auto"` the environments take the mode of the saved ones.

        Raises:
            CheckpointError: If it is no state of such environments, or of another number of them,
                or of some in a mode that these were not made with.
        """
        if set(state) != _STATE_KEYS or len(state["returns"]) != self.num_envs:
            raise CheckpointError(
                f"This is no state of {self.num_envs} environments of {self.spec.env_id}. Make "
                f"as many of the same kind as were saved before loading it."
            )
        if (state["mode"] == "native") != (self.mode == "native"):
            self._change_mode(state["mode"])
        set_rng_state(self._batched_action_space.np_random, state["rng"])
        self.finished = [Episode(*one) for one in state["finished"]]
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        self._obs = None
        if state["obs"] is not None:
            self._go_back(np.array(state["obs"]), state["source"])

    def close(self) -> None:
        """Close the environments. May be called more than once."""
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

    def _begin(self, done_N: BoolArray, frames: NumpyArray, obs: NumpyArray) -> NumpyArray:
        """Return observations after new episodes have begun where the mask is set."""
        if self._stack is not None:
            return self._stack.restart(done_N, frames)
        obs = obs.copy()
        obs[done_N] = frames
        return obs

    def _go_back(self, obs: NumpyArray, source_state: dict[str, Any]) -> None:
        """Restore the environments to the states that showed these observations."""
        frames, is_known_N = self._source.restore(source_state)
        expected = obs[:, -self.spec.frame_shape[0] :]
        is_same_N = (frames == expected).reshape(self.num_envs, -1).all(axis=1)
        lost_N = ~(is_known_N & is_same_N)
        if self._stack is not None:
            self._stack.stacks = obs
        self._obs = obs
        if lost_N.any():
            self._returns[lost_N] = 0.0
            self._lengths[lost_N] = 0
            self._obs = self._begin(lost_N, self._source.reset_where(lost_N), obs)
            logger.warning(
                "environments %s of %s could not be brought back to where they were saved, and "
                "begin new episodes: they draw random numbers from elsewhere than np_random, or "
                "keep something from one episode to the next",
                np.flatnonzero(lost_N).tolist(),
                self.spec.env_id,
            )

    def _change_mode(self, mode: str) -> None:
        """Change to the mode of the saved environments."""
        if not self._may_change:
            raise CheckpointError(
                f'The environments of {self.spec.env_id} were saved in mode "{mode}", '
                f'and these have mode "{self.mode}". Make them with mode="{mode}".'
            )
        self._source.close()
        self._source = self._make_source(mode)
        logger.info(
            "%d environments of %s go on in mode %s, in which they were saved",
            self.num_envs,
            self.spec.env_id,
            mode,
        )
        self.mode = mode

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

    def _check_finite(self, what: str, values: NumpyArray, *, of: NumpyArray | None = None) -> None:
        if values.dtype.kind != "f" or np.count_nonzero(np.isfinite(values)) == values.size:
            return
        finite_N = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        row = int(np.flatnonzero(~finite_N)[0])
        index = row if of is None else int(of[row])
        shown = str(values[row].tolist()) if values[row].size <= 32 else "with NaN or infinity"
        raise NonFiniteError(
            f"Environment {index} of {self.spec.env_id} gave the {what} {shown}; "
            f"finite numbers were expected. Look at what this environment computes, or at the "
            f"actions it was given."
        )

    def _note_finished(self, done_N: BoolArray) -> None:
        for index in np.flatnonzero(done_N).tolist():
            self.finished.append(
                Episode(index, float(self._returns[index]), int(self._lengths[index]))
            )
        self._returns[done_N] = 0.0
        self._lengths[done_N] = 0


def make_envs(
    env_id: str,
    num_envs: int,
    *,
    seed: int = 0,
    mode: EnvsMode = "auto",
    frame_stack: int = 1,
    reward_scale: float = 1.0,
    wrappers: Sequence[EnvWrapper] = (),
    settings: Mapping[str, Any] | None = None,
) -> Envs:
    """Make environments that are stepped together.

    Each mode plays the same episodes for the same seed and actions, bit for bit; only a vector
    form of another package has episodes of its own.

    Args:
        env_id: A name in gymnasium's registry, such as `CartPole-v1`.
        num_envs: How many. More give steadier learning and faster stepping; 8 is usual.
        seed: One seed for all. The same seed gives the same episodes for the same actions.
        mode: `native` steps all of them as one array program, where there is one (CartPole);
            `sync` one after the other in this process, `async` in processes of their own.
            `auto` measures which is the fastest here and logs it with the reason; a vector form of
            another package is never chosen by measurement, as its episodes differ.
        frame_stack: How many of the newest observations are stacked into one; 4 is usual where one
            picture does not show motion.
        reward_scale: Rewards are multiplied by it, but not the returns of episodes. Rewards of
            about 1 are the easiest to learn from.
        wrappers: Each is applied to every environment, the first one innermost: gymnasium's
            wrappers, or functions that return one.
        settings: Keywords for the environment, such as {"gravity": -5.0}.

    Raises:
        ConfigError: If there is no such environment, it has no native form, or a space of it
            is not supported.
        MissingExtraError: If the environment needs a package that is not installed.
        EnvError: If an environment raises, has no spaces, or cannot be made in another process.
    """
    check_all(
        one_of(get_args(EnvsMode), mode=mode),
        whole(1, num_envs=num_envs, frame_stack=frame_stack),
        positive(reward_scale=reward_scale),
    )
    maker = EnvMaker(find_registered(env_id), dict(settings or {}), tuple(wrappers))
    if mode == "native" and maker.native_kind() is None:
        raise ConfigError(
            f"{env_id} has no native vector form here; these have: {', '.join(ids_of_native())}. "
            f'Use mode="sync" or mode="auto"; wrappers need one of them too.'
        )

    chosen = mode
    first = maker()
    try:
        spec = maker.spec_of(first, frame_stack=frame_stack)
        check_envs_fit(spec, num_envs, mode="native" if mode == "auto" else mode)
        seeds = spawn_seeds(seed, "environments", count=num_envs)
        make_source = partial(make_source_of, maker, spec=spec, seeds=seeds)
        if mode == "auto":
            chosen = choose(maker, CheckedEnv(first, index=0, spec=spec), num_envs, make_source)
    finally:
        with raising_env_errors(f"Environment 0 of {maker.registered.id}", "close"):
            first.close()
    check_envs_fit(spec, num_envs, mode=chosen)
    return Envs(
        spec=spec,
        num_envs=num_envs,
        seed=seed,
        mode=chosen,
        make_source=make_source,
        may_change=mode == "auto" and maker.native_kind() == "ours",
        reward_scale=reward_scale,
    )
