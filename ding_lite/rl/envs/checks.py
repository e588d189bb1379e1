"""A gymnasium wrapper that checks what an environment returns, and names it when it raises.

Every fault is an `EnvError` with the environment, the method, what was found and what was
expected; so it reads the same in one process and in several. Values of the usual types pass by one
comparison each; all others are examined more closely.
"""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import VectorEnv

from ding_lite.errors import DingLiteError, EnvError
from ding_lite.interruption import is_interrupted, is_of_a_signal
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.packing import Leaf
from ding_lite.rl.spec import EnvSpec

Env: TypeAlias = gymnasium.Env[Any, Any]

RAISED: tuple[type[BaseException], ...] = (Exception, SystemExit, GeneratorExit)
"""Exceptions of a user's code; Ctrl-C is not among them."""

_LARGEST = float(np.finfo(np.float32).max)
_FLOATS, _FLAGS = {float, np.float32, np.float64, int}, {bool, np.bool_}
_STEP_RETURNS = "obs, reward, terminated, truncated, info"


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks all that an environment returns against its spaces.

    Args:
        env: The environment.
        index: Its number among those that are stepped together, for messages.
        spec: The spec of the environment.
    """

    def __init__(self, env: Env, *, index: int, spec: EnvSpec) -> None:
        """Wrap the environment."""
        super().__init__(env)
        self.name = f"Environment {index} of {spec.env_id}"
        """The name with which messages of its faults begin."""
        self._space = spec.obs_space
        packing = spec.packing
        self._whole = (
            None if packing is not None and not packing.is_one_leaf else _Part(self._space)
        )
        leaves = packing.leaves if packing is not None and self._whole is None else ()
        self._parts = [(leaf, _Part(leaf.space)) for leaf in leaves]
        self._mask_sizes = choice_sizes(spec) if spec.has_action_mask else []
        self.action_mask = np.ones(sum(self._mask_sizes), dtype=np.bool_)
        """Which actions are legal now, [A], where the environment tells."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment.

        Raises:
            EnvError: If the environment raises, or returns something else than an observation of
                its space and a dict.
        """
        with raising_env_errors(self.name, "reset"):
            answer = (
                self.env.reset(seed=seed)
                if options is None
                else self.env.reset(seed=seed, options=options)
            )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EnvError(
                f"{self.name} returned {_shown(answer)} from `reset`; two values were expected: "
                f"obs, info. Environments written for gym before 0.26 return the first one only."
            )
        obs, info = answer
        self._check_info(info, "reset")
        if self._mask_sizes:
            self._note_mask(info, "reset", has_ended=False)
        return self._checked_obs(obs, "reset"), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step the environment.

        Raises:
            EnvError: If the environment raises, or returns something else than an observation of
                its space, a number, two flags and a dict.
        """
        try:
            answer = self.env.step(action)
        except DingLiteError:
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            if (fault := exit_fault(self.name, "step", error)) is None:
                raise
            raise fault from error
        except RAISED as error:
            raise self._step_fault(error) from error
        if answer.__class__ is not tuple or len(answer) != 5:
            raise EnvError(_wrong_count(self.name, _count(answer)))
        obs, reward, terminated, truncated, info = answer
        # A chained comparison with NaN is false, so that it is looked at more closely.
        if reward.__class__ not in _FLOATS or not -_LARGEST <= reward <= _LARGEST:  # type: ignore[operator]
            reward = self._checked_reward(reward)
        if terminated.__class__ not in _FLAGS:
            terminated = self._checked_flag("terminated", terminated)
        if truncated.__class__ not in _FLAGS:
            truncated = self._checked_flag("truncated", truncated)
        if info.__class__ is not dict:
            self._check_info(info, "step")
        if self._mask_sizes:
            self._note_mask(info, "step", has_ended=bool(terminated))
        return self._checked_obs(obs, "step"), reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment.

        Raises:
            EnvError: If it raises.
        """
        with raising_env_errors(self.name, "close"):
            self.env.close()

    def _checked_obs(self, obs: Any, where: str) -> Any:  # noqa: ANN401
        if self._whole is not None:
            try:
                return self._whole(obs)
            except _UnfitError as found:
                raise self._obs_fault(str(found), where) from found.__cause__
        for leaf, part in self._parts:
            try:
                part(_of_tree(obs, leaf))
            except _UnfitError as found:
                raise self._obs_fault(str(found), where, leaf) from found.__cause__
        return obs

    def _note_mask(self, info: dict[str, Any], where: str, *, has_ended: bool) -> None:
        """Keep which actions are legal; an ended episode may have none."""
        mask = info.get("action_mask")
        flags = _flags(mask, len(self.action_mask))
        if flags is not None and has_legal(flags, self._mask_sizes):
            self.action_mask = flags
        elif has_ended:
            self.action_mask = np.ones_like(self.action_mask)
        elif flags is not None:
            raise EnvError(
                f"{self.name} gave an action mask without a legal action from `{where}`: "
                f"{_shown(mask)}. One must be legal until the episode has ended: return "
                f"`terminated` where nothing can be done."
            )
        else:
            raise EnvError(
                f'{self.name} gave {_shown(mask)} as `info["action_mask"]` from `{where}`; '
                f"{len(self.action_mask)} flags were expected, one for each action, as its first "
                f"`reset` had an action mask."
            )

    def _checked_reward(self, reward: Any) -> float:  # noqa: ANN401
        is_scalar = isinstance(reward, np.ndarray) and reward.shape == ()
        number = reward.item() if is_scalar or isinstance(reward, np.generic) else reward
        if isinstance(number, numbers.Real):
            try:
                value = float(number)
            except OverflowError:
                value = float("inf")
            # Rewards are stored as float32, in which larger numbers are infinite.
            return math.copysign(math.inf, value) if abs(value) > _LARGEST else value
        raise EnvError(
            f"{self.name} gave the reward {_shown(reward)} from `step`; one number was expected. "
            f"Return `float(reward)`."
        )

    def _checked_flag(self, name: str, flag: Any) -> bool:  # noqa: ANN401
        value = flag.item() if isinstance(flag, np.ndarray) and flag.shape == () else flag
        if value.__class__ in _FLAGS or (isinstance(value, numbers.Integral) and value in (0, 1)):
            return bool(value)
        raise EnvError(
            f"{self.name} gave `{name}` {_shown(flag)} from `step`; True or False was expected. "
            f"Return `bool({name})`."
        )

    def _check_info(self, info: Any, where: str) -> None:  # noqa: ANN401
        if not isinstance(info, dict):
            raise EnvError(
                f"{self.name} gave the info {_shown(info)} from `{where}`; a dict was expected. "
                f"Return {{}} where there is nothing to tell."
            )

    def _obs_fault(self, found: str, where: str, leaf: Leaf | None = None) -> EnvError:
        part = f"; its part `{leaf.name}` is" if leaf else ":"
        space = leaf.space if leaf else self._space
        return EnvError(
            f"{self.name} gave an observation from `{where}` that is not of its space{part} "
            f"{found}; expected was one of {space}. Return what the space says, or mend the space."
        )

    def _step_fault(self, error: BaseException) -> EnvError:
        """Return the fault of an old-style `step`, also if a wrapper of gymnasium's unpacked it."""
        text = _text_of(error)
        if isinstance(error, ValueError) and "values to unpack" in text and "got 4" in text:
            return EnvError(_wrong_count(self.name, "4 values"))
        return env_error(self.name, "step", error)


class _UnfitError(Exception):
    """A part of an observation is not of its space; the text says what was found."""


class _Part:
    """Checks an observation, or a part of one, against its space."""

    def __init__(self, space: Any) -> None:  # noqa: ANN401 - of any type
        self._shape = space.shape or ()
        self._dtype = np.dtype(space.dtype)
        self._choices = (
            range(int(space.start), int(space.start + space.n))
            if isinstance(space, Discrete)
            else None
        )
        self._space = space if isinstance(space, MultiDiscrete | MultiBinary) else None

    def __call__(self, obs: Any) -> Any:  # noqa: ANN401
        """Return the observation; values that numpy can convert are converted."""
        if obs.__class__ is np.ndarray and obs.dtype == self._dtype and obs.shape == self._shape:
            if self._choices is None and self._space is None:
                return obs
        elif self._choices is not None and obs.__class__ is int and obs in self._choices:
            return obs
        try:
            array = np.asarray(obs)
        except RAISED as error:
            raise _UnfitError(_shown(obs)) from error
        fits = array.shape == self._shape and array.dtype.kind in "biuf"
        if fits and self._choices is not None:
            fits = array.dtype.kind != "f" and int(array) in self._choices
        elif fits and self._space is not None:
            fits = array.dtype.kind != "f" and self._space.contains(array.astype(self._dtype))
        elif fits and self._dtype == np.uint8 and array.dtype != np.uint8:
            fits = array.dtype.kind != "f" and bool(((array >= 0) & (array <= 255)).all())
        if not fits:
            values = f"{_shown(obs)}, " if array.shape in ((), self._shape) else ""
            raise _UnfitError(f"{values}shape {array.shape} and dtype {array.dtype}")
        return array if self._choices is None else int(array)


def _of_tree(obs: Any, leaf: Leaf) -> Any:  # noqa: ANN401
    """Return a part of an observation."""
    try:
        return leaf.find(obs)
    except RAISED as error:
        raise _UnfitError(f"missing in {_shown(obs)}") from error


def choice_sizes(spec: EnvSpec) -> list[int]:
    """Return how many choices each number of an action has."""
    space = spec.action_space
    return space.nvec.tolist() if isinstance(space, MultiDiscrete) else [spec.num_choices]


def has_legal(masks: NumpyArray, sizes: list[int]) -> NumpyArray:
    """Return whether masks, [..., A], leave a choice for each number of an action, [...]."""
    firsts = np.cumsum([0, *sizes[:-1]])
    return np.asarray(np.logical_or.reduceat(masks, firsts, axis=-1).all(axis=-1))


def _flags(mask: Any, size: int) -> NumpyArray | None:  # noqa: ANN401
    """Return an action mask as flags, [A]; None if it is none."""
    try:
        parts = mask if isinstance(mask, tuple | list) else (mask,)
        array = np.concatenate([np.atleast_1d(part) for part in parts])
    except RAISED:
        return None
    return array.astype(np.bool_) if array.shape == (size,) and array.dtype.kind in "biuf" else None


class raising_env_errors:
    """Converts exceptions of a user's code into an `EnvError` that names the environment.

    This is a class because `contextlib.contextmanager` lets a StopIteration through.

    Args:
        name: The environment's name in messages.
        where: The method that is called.
    """

    def __init__(self, name: str, where: str) -> None:
        """Keep the names for the message."""
        self._name, self._where = name, where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            if (fault := exit_fault(self._name, self._where, error)) is not None:
                raise fault from error
        elif isinstance(error, RAISED) and not isinstance(error, DingLiteError):
            raise env_error(self._name, self._where, error) from error


def env_error(name: str, where: str, error: BaseException) -> EnvError:
    """Return the error for an exception that an environment raised in a method."""
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
        return EnvError(
            f"{name} {what} in `{where}`, which would end the whole program. Let it raise an "
            f"error, or end the episode (`terminated` or `truncated`)."
        )
    text = _text_of(error)
    said = f": {text.rstrip('.')}" if text else " without a message"
    return EnvError(
        f"{name} raised {type(error).__name__} in `{where}`{said}. The traceback shows where; "
        f"mend the environment, or wrap it (make_envs(..., wrappers=[...]))."
    )


def exit_fault(name: str, where: str, error: SystemExit | KeyboardInterrupt) -> EnvError | None:
    """Return the error for an environment that has exited, or was interrupted by a second signal.

    Returns:
        None if a signal has raised it outside a run: then it is no fault.
    """
    if not is_of_a_signal(error):
        return env_error(name, where, error)
    if is_interrupted():
        return EnvError(f"{name}: a second signal came in the middle of `{where}`.")
    return None


def close_all(envs: Iterable[Env | VectorEnv[Any, Any, Any]]) -> None:
    """Close all environments, then raise the first error if one has raised."""
    errors = []
    for env in envs:
        try:
            env.close()
        except RAISED as error:
            errors.append(error)
    if errors:
        raise errors[0]


def check_batch(
    name: str,
    what: str,
    value: Any,  # noqa: ANN401
    *,
    shape: tuple[int, ...],
    kinds: str,
) -> NumpyArray:
    """Check an array that a vector environment returned, and return it.

    Args:
        name: The environment's name in messages.
        what: The array's name in messages.
        value: The array.
        shape: The expected shape.
        kinds: The expected kinds of dtype, as numpy abbreviates them.

    Raises:
        EnvError: If it has another shape or dtype.
    """
    with raising_env_errors(name, "step"):
        array = np.asarray(value)
    if array.shape != shape or array.dtype.kind not in kinds:
        raise EnvError(
            f"{name} gave `{what}` of shape {array.shape} and dtype {array.dtype}; shape {shape} "
            f"and {'True or False' if kinds == 'b' else 'numbers'} were expected."
        )
    return array


def check_masks(
    name: str, info: dict[str, Any], *, spec: EnvSpec, matters_N: NumpyArray
) -> NumpyArray:
    """Check the action masks of a vector environment, and return them, [N, A] bool.

    Args:
        name: The environment's name in messages.
        info: What it told.
        spec: The spec of its environments.
        matters_N: Where an action follows; elsewhere a mask without a legal action becomes one
            with all actions.

    Raises:
        EnvError: If there are none, or one that matters has no legal action.
    """
    shape = (len(matters_N), spec.num_choices)
    found = check_batch(name, "action_mask", info.get("action_mask"), shape=shape, kinds="biu")
    masks: NumpyArray = found.astype(np.bool_)
    is_empty_N = ~has_legal(masks, choice_sizes(spec))
    if (is_empty_N & matters_N).any():
        index = int(np.flatnonzero(is_empty_N & matters_N)[0])
        raise EnvError(
            f"{name} gave environment {index} an action mask without a legal action: "
            f"{masks[index].tolist()}. One must be legal until the episode has ended."
        )
    masks[is_empty_N] = True
    return masks


def _wrong_count(name: str, found: str) -> str:
    return (
        f"{name} returned {found} from `step`; five were expected: {_STEP_RETURNS}. Environments "
        f"written for gym before 0.26 return four: tell `terminated` from `truncated`."
    )


def _count(answer: Any) -> str:  # noqa: ANN401
    return f"{len(answer)} values" if isinstance(answer, tuple) else _shown(answer)


def _shown(value: Any) -> str:  # noqa: ANN401
    """Return a short repr, also if the value's own one raises."""
    try:
        return " ".join(reprlib.repr(value).split())
    except RAISED:
        return f"a {type(value).__name__} that cannot be shown"


def _text_of(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())
    except RAISED:
        return "a message that cannot be shown"
