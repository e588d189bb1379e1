"""Vectors of environments of one kind, with one rule for the ends of episodes.

Where an episode ended, `Envs.step` returns its true last observation, and whether the episode
terminated (`terminated`) or was cut off (`truncated`). `Envs.obs` is then already the first
observation of the next episode. So no transition crosses the end of an episode.

What is ugly here and why: gymnasium has three ways of resetting an environment after an episode;
its vector CartPole resets one step late, and that step is no transition of an episode. The sources
in `sources` and `workers` therefore never reset by themselves: `Envs` resets all of them, in one
place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from ding_lite.errors import CheckpointError, ConfigError, NonFiniteError, ShapeError
from ding_lite.rl.batch import BoolArray, NumpyArray, Step, to_numpy
from ding_lite.rl.envs.actions import RandomActions
from ding_lite.rl.envs.atari import EndAtLifeLoss
from ding_lite.rl.envs.catch import register_catch
from ding_lite.rl.envs.checks.faults import close_all, raising_env_errors
from ding_lite.rl.envs.checks.masks import choice_sizes
from ding_lite.rl.envs.choice import choose, make_source_of
from ding_lite.rl.envs.making import (
    EnvLike as EnvLike,
    EnvMaker,
    EnvsMode as EnvsMode,
    EnvWrapper,
    ids_of_native,
)
from ding_lite.rl.envs.sizes import check_envs_fit
from ding_lite.rl.envs.sources import MAX_HISTORY, NativeVector, Source
from ding_lite.rl.reward_norm import RewardNorm
from ding_lite.rl.seeding import rng_state, set_rng_state, spawn_seeds
from ding_lite.rl.spec import EnvSpec
from ding_lite.rl.wrong_calls import Elsewhere
from ding_lite.settings.rules import check_all, finite, one_of, positive, whole

logger = logging.getLogger(__name__)
register_catch()

_MEASURED = "reward_norm"
_SUCCESS = (None, False, True)
MOST_FINISHED = 1 << 18
"""The most finished episodes that are kept, for a program that never takes them."""
_STATE_KEYS = {"mode", "source", "obs", "returns", "lengths", "finished", "rng"}


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    env_index: int
    """The index of the environment."""
    ret: float
    """The sum of its rewards, as the environment returned them, in float32."""
    length: int
    """The length in env steps."""
    success: bool | None = None
    """The `info["is_success"]` of its last step; None if there is none."""


class Envs:
    """N environments of one kind, stepped together. Made by `make_envs`.

    Example:
        >>> from ding_lite.rl import make_envs
        >>> with make_envs("CartPole-v1", 2, seed=0, mode="sync") as envs:
        ...     step = envs.step(np.array([0, 1]))
        >>> step.next_obs.shape, step.terminated.tolist(), envs.mode
        ((2, 4), [False, False], 'sync')
    """

    if not TYPE_CHECKING:
        single_observation_space, single_action_space = Elsewhere(), Elsewhere()

    def __init__(  # noqa: PLR0913 - all by name, from `make_envs`
        self,
        *,
        spec: EnvSpec,
        num_envs: int,
        seed: int,
        mode: str,
        make_source: Callable[[str], Source],
        may_change: bool = False,
        reward_scale: float = 1.0,
        clip_rewards: bool = False,
        end_at_life_loss: bool = False,
    ) -> None:
        """Make the source with a function of the mode; use `make_envs` instead."""
        self.spec = spec
        self.num_envs = num_envs
        self.mode = mode
        """The mode of stepping: `native`, `sync` or `async`."""
        self.finished: list[Episode] = []
        """The episodes that ended since the last `take_finished`."""

        self._make_source = make_source
        self._may_change = may_change
        self._obs: NumpyArray | None = None
        self._is_halfway = False
        """Whether an error ended a step, so that only some of the environments may have stepped."""
        self._reward_scale = np.float32(reward_scale)
        self._clips_rewards = clip_rewards
        self._ends_at_life_loss = end_at_life_loss
        self.reward_norm: RewardNorm | None = None
        """The statistics of rewards; None before `measure_rewards` is called."""
        self.returns = np.zeros(num_envs, dtype=np.float64)
        """The sums of rewards of unfinished episodes, [N], as the environments returned them."""
        self._num_steps = 0
        self._begun = np.zeros(num_envs, dtype=np.int64)
        """The number of env steps before each episode began."""
        self._actions_shape = (num_envs, *spec.action_shape)
        self._num_choices: NumpyArray | None = None
        if not isinstance(spec.action_space, Box):
            self._num_choices = np.full(self._actions_shape, choice_sizes(spec), np.uint64)
        (own_seed,) = spawn_seeds(seed, "random actions", count=1)
        self._random = RandomActions(spec, num_envs, seed=own_seed)
        self._source = make_source(mode)  # last, as it may start processes

    @property
    def obs(self) -> NumpyArray:
        """The current observations, [N, ...].

        The first access starts the episodes, as does the first one after `step` has raised.
        """
        if self._is_halfway:
            logger.warning("the episodes of %s begin anew: a step has failed", self.spec.env_id)
        return self.reset() if self._obs is None or self._is_halfway else self._obs

    def is_at(self, obs: NumpyArray | None) -> bool:
        """Return whether this array is the current `obs`; it starts no episodes."""
        return obs is not None and obs is self._obs and not self._is_halfway

    def reset(self) -> NumpyArray:
        """Start new episodes in all environments and drop the unfinished ones.

        The first reset uses the seed. Later ones continue the random generators.

        Raises:
            NonFiniteError: If an observation contains NaN or infinity.
        """
        everywhere_N = np.ones(self.num_envs, dtype=np.bool_)
        self._forget_episodes(everywhere_N)
        frames = self._source.reset()
        self._check_finite("observation", frames)
        self._obs = self._first_obs(frames)
        self._is_halfway = False
        return self._obs

    def step(self, action: NumpyArray) -> Step:
        """Step each environment once, and start the next episode where one ended.

        Args:
            action: One action per environment, [N] integers from 0, or [N, ...] floats.

        Raises:
            ShapeError: If it is not one action per environment, or a choice is no whole number.
            ConfigError: If an action is not in the action space.
            NonFiniteError: If an observation or a reward contains NaN or infinity; or an action,
                in which case nothing is stepped.
            EnvError: If an environment raises or returns values that are not of its spaces, or if
                its process dies.
        """
        obs = self.obs
        try:  # float32 for a Box: the same numbers in each mode, and in a replay
            dtype = np.float32 if self._num_choices is None else None
            action = np.asarray(to_numpy(action), dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ShapeError(
                f"`action` for {self.spec.env_id} is no array of numbers: {error}. One of shape "
                f"{self._actions_shape} was expected."
            ) from error
        self._check_action(action)
        self._is_halfway = True
        next_frames, reward, terminated, truncated = self._source.step(action)
        self._check_finite("observation", next_frames)
        self._check_finite("reward", reward)

        next_obs = next_frames
        if self.spec.frame_stack > 1:
            newest = obs[:, self.spec.frame_shape[0] :]
            next_obs = np.concatenate((newest, next_frames), axis=1)
        self._obs = next_obs
        self.returns += reward
        self._num_steps += 1
        done_N = terminated | truncated
        if np.count_nonzero(done_N):
            lost_N = terminated & truncated if self._ends_at_life_loss else np.False_
            truncated = truncated & ~lost_N
            self._note_finished(done_N & ~lost_N)
            frames = self._source.reset_where(done_N)
            self._check_finite("observation", frames, of=np.flatnonzero(done_N))
            self._obs = next_obs.copy()
            self._obs[done_N] = self._first_obs(frames)

        if self._clips_rewards:
            reward = np.sign(reward)
        if self._reward_scale != 1.0:
            reward = reward * self._reward_scale
        if self.reward_norm is not None:
            self.reward_norm.update(reward, done_N)
        self._is_halfway = False
        return Step(obs, action, reward, next_obs, terminated, truncated)

    def measure_rewards(self, *, gamma: float) -> RewardNorm:
        """Measure the rewards of each env step from now on, to normalise them.

        `mw.train(..., normalize_rewards=envs)` calls it. `step` still returns unnormalised rewards.
        The statistics are part of the state. A second call returns the same object.

        Args:
            gamma: The discount of one env step.

        Raises:
            ConfigError: If rewards are measured with another discount already.
        """
        if self.reward_norm is None:
            self.reward_norm = RewardNorm(self.num_envs, gamma=gamma)
        elif self.reward_norm.gamma != gamma:
            raise ConfigError(
                f"`gamma` is {gamma:g}, and these environments measure rewards with "
                f"{self.reward_norm.gamma:g} already. Make environments for each policy."
            )
        return self.reward_norm

    def take_finished(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in the order they ended.

        If there are more than 262,144, these are the newest.
        """
        finished, self.finished = self.finished, []
        return finished

    def random_actions(self) -> NumpyArray:
        """Draw one action per environment, uniformly among the legal ones.

        The actions have their own random generator.
        """
        mask_NA = self.spec.action_mask(self.obs) if self.spec.has_action_mask else None
        return self._random.draw(mask_NA)

    def state_dict(self) -> dict[str, Any]:
        """Copy everything that an exact resume needs.

        The state of an environment is the state of its random generator when the episode began, and
        the actions since then.
        """
        started = self._obs is not None
        measured = {} if self.reward_norm is None else {_MEASURED: self.reward_norm.state_dict()}
        return {
            **measured,
            "mode": self.mode,
            "source": self._source.save() if started else None,
            "obs": None if self._obs is None else self._obs.copy(),
            "returns": self.returns.copy(),
            "lengths": self._num_steps - self._begun,
            "finished": [astuple(one) for one in self.finished],
            "rng": rng_state(self._random.rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned.

        The state is exact for environments that draw random numbers only from `np_random`, the
        generator that gymnasium gives them, and that keep nothing from one episode to the next. An
        environment that then shows another observation than the saved one, or other rewards, begins
        a new episode, and a warning is logged. With `mode="auto"` the environments take the mode of
        the saved ones.

        Raises:
            CheckpointError: If it is not a state of such environments, or has another number of
                environments, or a mode that these were not made with.
        """
        expected = (self.num_envs, *self.spec.obs_shape)
        if (
            set(state) - {_MEASURED} != _STATE_KEYS
            or len(state["returns"]) != self.num_envs
            or (state["obs"] is not None and state["obs"].shape != expected)
        ):
            raise CheckpointError(
                f"This is no state of {self.num_envs} environments of {self.spec.env_id}. Make "
                f"as many of the same kind as were saved before loading it."
            )
        if (_MEASURED in state) != (self.reward_norm is not None):
            then, now = ("with", "without") if _MEASURED in state else ("without", "with")
            raise CheckpointError(
                f"The environments of {self.spec.env_id} were saved {then} normalisation of "
                f"rewards, and these are {now} it. Give `mw.train` the same `normalize_rewards` as "
                f"then, before the state is loaded."
            )
        if (state["mode"] == "native") != (self.mode == "native"):
            self._change_mode(state["mode"])
        set_rng_state(self._random.rng, state["rng"])
        self.finished = [Episode(*one) for one in state["finished"]]
        self.returns[:] = state["returns"]
        self._begun[:] = self._num_steps - np.asarray(state["lengths"])
        if self.reward_norm is not None:
            self.reward_norm.load_state_dict(state[_MEASURED])
        self._obs, self._is_halfway = None, False
        if state["obs"] is not None:
            self._go_back(np.array(state["obs"]), state["source"])

    def close(self) -> None:
        """Close the environments. It may be called more than once."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_obs(self, frames: NumpyArray) -> NumpyArray:
        """Return the observations of first frames, which are repeated to fill the stacks."""
        return np.concatenate([frames] * self.spec.frame_stack, axis=1)

    def _go_back(self, obs: NumpyArray, source_state: dict[str, Any]) -> None:
        frames, returns_N, is_known_N = self._source.restore(source_state)
        expected = obs[:, -self.spec.frame_shape[0] :]
        is_same_N = (frames == expected).reshape(self.num_envs, -1).all(axis=1)
        if returns_N is not None and not self._ends_at_life_loss:  # a return is of many lives
            is_same_N &= returns_N == self.returns
        lost_N = ~(is_known_N & is_same_N)
        self._obs = obs
        if lost_N.any():
            self._forget_episodes(lost_N)
            obs[lost_N] = self._first_obs(self._source.reset_where(lost_N))
            why = (
                "they draw random numbers from elsewhere than np_random, or keep something from "
                "one episode to the next"
                if (lost_N & is_known_N).any()
                else "what is saved of them is their actions in an episode of up to "
                f"{MAX_HISTORY:,} env steps, and nothing of a vector of another package or of "
                "processes that were killed"
            )
            logger.warning(
                "environments %s of %s could not be brought back to where they were saved, and "
                "begin new episodes: %s",
                np.flatnonzero(lost_N).tolist(),
                self.spec.env_id,
                why,
            )

    def _change_mode(self, mode: str) -> None:
        if not self._may_change:
            raise CheckpointError(
                f'The environments of {self.spec.env_id} were saved in mode "{mode}", '
                f'and these have mode "{self.mode}". Make them with mode="{mode}".'
            )
        self._source.close()
        self._source, self.mode = self._make_source(mode), mode
        what = f"{self.num_envs} environments of {self.spec.env_id}"
        logger.info("%s go on in mode %s, in which they were saved", what, mode)

    def _check_action(self, action: NumpyArray) -> None:
        if action.shape != self._actions_shape:
            raise ShapeError(
                f"`action` has shape {action.shape}; {self.num_envs} environments of "
                f"{self.spec.env_id} take one of shape {self._actions_shape}."
            )
        sizes = self._num_choices
        if sizes is None:
            # Before the environment steps: it could never give a finite observation again.
            if np.count_nonzero(np.isfinite(action)) != action.size:  # faster than `all`
                raise NonFiniteError(
                    f"`action` for {self.spec.env_id} has NaN or infinity; finite numbers were "
                    f"expected. The weights of the policy have diverged; a lower learning rate or "
                    f"`max_grad_norm` helps."
                )
            return
        if action.dtype == np.int64:  # negative numbers are large as unsigned: one comparison
            is_legal = action.view(np.uint64) < sizes
        elif action.dtype.kind not in "iub":
            raise ShapeError(
                f"`action` has numbers of type {action.dtype}; whole numbers were expected, as the "
                f"action space of {self.spec.env_id} is {self.spec.action_space}."
            )
        else:
            is_legal = (action >= 0) & (action < sizes)
        if np.count_nonzero(is_legal) != action.size:
            last = (sizes[0] - np.uint64(1)).tolist()
            raise ConfigError(
                f"`action` is {action.tolist()}; {self.spec.env_id} has the actions 0 to {last}."
            )

    def _check_finite(self, what: str, values: NumpyArray, *, of: NumpyArray | None = None) -> None:
        if values.dtype.kind == "f" and np.count_nonzero(np.isfinite(values)) == values.size:
            return
        packing = self.spec.packing if what == "observation" else None
        leaves = [None] if packing is None else packing.leaves
        parts = [values] if packing is None else packing.parts(values)
        for leaf, part in zip(leaves, parts, strict=True):
            if part.dtype.kind != "f" or np.count_nonzero(np.isfinite(part)) == part.size:
                continue
            finite_N = np.isfinite(part).reshape(len(part), -1).all(axis=1)
            row = int(finite_N.argmin())
            what += f" part `{leaf.name}`" if leaf and leaf.keys else ""
            shown = str(part[row].tolist()) if part[row].size <= 32 else "with NaN or infinity"
            raise NonFiniteError(
                f"Environment {row if of is None else of[row]} of {self.spec.env_id} gave the "
                f"{what} {shown}; finite numbers were expected, up to 3.4e38 as float32. Look at "
                f"what this environment computes, or at the actions it was given."
            )

    def _note_finished(self, done_N: BoolArray) -> None:
        done = done_N.nonzero()[0]
        lengths = self._num_steps - self._begun[done]
        success = [_SUCCESS[told] for told in self._source.success_N[done].tolist()]
        returns = self.returns[done].tolist()
        self.finished += map(Episode, done.tolist(), returns, lengths.tolist(), success)
        del self.finished[:-MOST_FINISHED]
        self.returns[done] = 0.0
        self._begun[done] = self._num_steps

    def _forget_episodes(self, lost_N: BoolArray) -> None:
        self.returns[lost_N] = 0.0
        self._begun[lost_N] = self._num_steps
        if self.reward_norm is not None:
            self.reward_norm.restart(lost_N)


def make_envs(  # noqa: PLR0913 - all but two by name, and few are given at a time
    env: EnvLike,
    num_envs: int | None = None,
    *,
    seed: int = 0,
    mode: EnvsMode = "auto",
    frame_stack: int = 1,
    reward_scale: float = 1.0,
    clip_rewards: bool = False,
    end_at_life_loss: bool = False,
    env_args: Mapping[str, Any] | None = None,
    wrappers: Sequence[EnvWrapper] = (),
    imports: Sequence[str] = (),
) -> Envs:
    """Make environments that are stepped together.

    Every mode plays the same episodes for the same seed and actions, bit for bit, except for vector
    forms of other packages, which have other episodes.

    Args:
        env: An id of gymnasium's registry (`CartPole-v1`), an id with the module that registers it
            (`package.module:Env-v0`), or a class or function, given by its file or module
            (`path/to/file.py:MyEnv`) or as an object. Or a vector environment of gymnasium, which
            is used unchanged, or a function that makes one.
        num_envs: The number of environments. More make learning more stable and stepping faster; 8
            is usual. A vector environment has its own number; a function with an argument
            `num_envs` is called with it.
        seed: The seed of all environments. The same seed gives the same episodes for the same
            actions.
        mode: `native` steps all environments as one array program, if there is one (CartPole).
            `sync` steps them one after the other in this process, `async` in worker processes.
            `auto` measures which mode is fastest on this machine and logs it with the reason. A
            vector form of another package is used without a measurement, as its episodes differ.
        frame_stack: The number of newest observations that are stacked into one; 4 is usual if one
            image does not show motion.
        reward_scale: A factor of rewards, but not of the returns of episodes. Rewards of about 1
            are the easiest to learn from.
        clip_rewards: Rewards become -1, 0 or 1; the returns of episodes do not change.
        end_at_life_loss: In Atari games, transitions end with each life; the returns of episodes
            are still those of whole games.
        env_args: Keyword arguments of the environment, such as {"gravity": -5.0}.
            `max_episode_steps` is the time limit of episodes, -1 for none.
        wrappers: Applied to every environment, the first one innermost: gymnasium's wrappers, or
            functions that return a wrapped environment.
        imports: Modules and files to import first, for example because they register environments.

    Raises:
        ConfigError: If the environment does not exist, it has no native form, or one of its spaces
            is not supported.
        MissingExtraError: If the environment needs a package that is not installed.
        EnvError: If an environment raises, has no spaces, or cannot be made in another process.
    """
    check_all(
        one_of(get_args(EnvsMode), mode=mode),
        [] if num_envs is None else whole(1, num_envs=num_envs),
        whole(1, frame_stack=frame_stack),
        positive(reward_scale=reward_scale),
        finite(reward_scale=reward_scale),
    )
    if end_at_life_loss:
        wrappers = (*wrappers, EndAtLifeLoss)
    maker = EnvMaker.of(env, args=env_args, wrappers=wrappers, imports=imports)

    is_counted = num_envs is not None and maker.takes_num_envs
    first = maker(num_envs=num_envs) if is_counted else maker()
    is_vector = isinstance(first, VectorEnv)
    chosen = mode
    try:
        num_envs = _count(maker, first, num_envs, mode)
        spec = maker.spec_of(first, frame_stack=frame_stack)
        may_be_native = mode == "auto" and maker.native_kind() is not None
        is_native = is_vector or mode == "native" or may_be_native
        check_envs_fit(spec, num_envs, is_native=is_native)
        seeds = spawn_seeds(seed, "environments", count=num_envs)
        make_source: Callable[[str], Source]
        if is_vector:
            chosen, make_source = "native", lambda _: NativeVector(first, seed=seeds[0], spec=spec)
        else:
            make_source = partial(make_source_of, maker, spec=spec, seeds=seeds)
        if chosen == "auto":
            chosen = choose(maker, first, spec, num_envs, make_source)
    except BaseException:
        if is_vector:
            close_all([first])
        raise
    finally:
        if not is_vector:
            with raising_env_errors(f"Environment 0 of {maker.name}", "close"):
                first.close()
    return Envs(
        spec=spec,
        num_envs=num_envs,
        seed=seed,
        mode=chosen,
        make_source=make_source,
        may_change=mode == "auto" and maker.native_kind() == "ours",
        reward_scale=reward_scale,
        clip_rewards=clip_rewards,
        end_at_life_loss=end_at_life_loss,
    )


def _count(maker: EnvMaker, first: object, num_envs: int | None, mode: EnvsMode) -> int:
    if not isinstance(first, VectorEnv):
        if num_envs is None:
            raise ConfigError(
                f"`num_envs` was not given, and {maker.name} makes one environment at a time. "
                f"Give it: make_envs(..., 8)."
            )
        if mode == "native" and maker.native_kind() is None:
            raise ConfigError(
                f"{maker.name} has no native vector form here; these have: "
                f"{', '.join(ids_of_native())}, and functions that make a vector environment. "
                f'Use mode="sync" or mode="auto"; wrappers need one of them too.'
            )
        return num_envs
    if num_envs not in (None, first.num_envs):
        raise ConfigError(
            f"`num_envs` is {num_envs}, but {maker.name} is a vector of {first.num_envs} "
            f"environments. Leave `num_envs` out, or give a function that takes it: "
            f"lambda num_envs: gymnasium.make_vec(..., num_envs=num_envs)."
        )
    if mode not in ("auto", "native"):
        raise ConfigError(
            f'`mode` is "{mode}", but {maker.name} is a vector environment, which is stepped as it '
            f'is. Leave `mode` out, or take mode="native".'
        )
    return int(first.num_envs)
