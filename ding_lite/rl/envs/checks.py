"""A gymnasium wrapper that checks what an environment returns, and names it when it raises.

Every fault is an `EnvError` with the environment, the method, what was found and what was
expected; so it reads the same in one process and in several. Values of the usual types pass by one
comparison each; all others are examined more closely.
"""

from __future__ import annotations

import functools
import logging
import math
import numbers
import reprlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, SupportsFloat, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import VectorEnv

from ding_lite.errors import DingLiteError, EnvError
from ding_lite.interruption import is_interrupted, is_of_a_signal
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.packing import Keys, Leaf, LeafSpace
from ding_lite.rl.spec import EnvSpec

logger = logging.getLogger(__name__)

Env: TypeAlias = gymnasium.Env[Any, Any]

RAISED: tuple[type[BaseException], ...] = (Exception, SystemExit, GeneratorExit)
"""Exceptions of a user's code; Ctrl-C is not among them."""

_LARGEST = float(np.finfo(np.float32).max)
_TOLERANCE = 1e-5
"""Of floats at their bounds, relative to these."""
_LEAST_OF_SYSTEM = 2**64
"""Seeds from this on are of the system's randomness."""
_FLOATS, _FLAGS = {float, np.float32, np.float64, int}, {bool, np.bool_}
_INTS = {int, np.int64, np.int32}


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks all that an environment returns against its spaces.

    Args:
        env: The environment.
        index: Its number among those that are stepped together, for messages.
        spec: The spec of the environment.
    """

    def __init__(self, env: Env, *, index: int, spec: EnvSpec) -> None:
        super().__init__(env)
        self.name = f"Environment {index} of {spec.env_id}"
        """The name with which messages of its faults begin."""
        self._env_id = spec.env_id
        self._checked_obs = ObsCheck(self.name, spec)
        self._usual: tuple[Any, Any] | None = None
        """Type and shape of observations that need no closer look; None before the first step."""
        self._may_draw: bool | None = None
        """Whether the first episode is about to show a lack of a seed; None before it."""
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
            how = {} if options is None else {"options": options}
            answer = self.env.reset(seed=seed, **how)
        obs, info = obs_and_info(self.name, answer)
        self._may_draw = self._may_draw is None and seed is not None
        if self._may_draw:
            self._check_is_seeded("reset")
            if getattr(self.env.unwrapped, "_np_random", True) is None:
                _warn_of_no_seed(self._env_id)
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
        except BaseException as error:
            if (fault := self._step_fault(error)) is None:
                raise
            raise fault from error
        obs, reward, terminated, truncated, info = five_values(self.name, answer)
        # A chained comparison with NaN is false, so that it is looked at more closely.
        if reward.__class__ not in _FLOATS or not -_LARGEST <= reward <= _LARGEST:  # type: ignore[operator]
            reward = self._checked_reward(reward)
        if terminated.__class__ not in _FLAGS:
            terminated = self._checked_flag("terminated", terminated)
        if truncated.__class__ not in _FLAGS:
            truncated = self._checked_flag("truncated", truncated)
        if self._mask_sizes:
            self._note_mask(info, "step", has_ended=bool(terminated))
        if obs.__class__ is not np.ndarray or (obs.dtype, obs.shape) != self._usual:
            if self._may_draw:
                self._may_draw = False
                self._check_is_seeded("step")
            obs = self._checked_obs(obs, "step")
            self._usual = self._checked_obs.usual
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment.

        Raises:
            EnvError: If it raises.
        """
        with raising_env_errors(self.name, "close"):
            self.env.close()

    def _check_is_seeded(self, where: str) -> None:
        # Where gymnasium has no seed, it takes 128 bits of the system's randomness.
        found = getattr(self.env.unwrapped, "_np_random_seed", None)
        if isinstance(found, int) and found >= _LEAST_OF_SYSTEM:
            raise EnvError(
                f"{self.name} drew random numbers in `{where}` from an `np_random` without the "
                f"seed that `reset` was given, so no run of it could be repeated. Begin `reset` "
                f"with `super().reset(seed=seed)`."
            )

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

    def _step_fault(self, error: BaseException) -> EnvError | None:
        """Return the fault of an old-style `step`, also if a wrapper of gymnasium's unpacked it."""
        text = _text_of(error)
        if isinstance(error, ValueError) and "values to unpack" in text and "got 4" in text:
            return EnvError(_wrong_count(self.name, "4 values"))
        return fault_of(self.name, "step", error)


@functools.cache
def _warn_of_no_seed(env_id: str) -> None:
    logger.warning(
        "%s did not begin its `reset` with `super().reset(seed=seed)`, which gymnasium's checker "
        "refuses; unless the seed decides all that is random in it, no run can be repeated",
        env_id,
    )


class _UnfitError(Exception):
    """A part of an observation is not of its space; the text says what was found."""


class ObsCheck:
    """Compares observations of an environment, or of a vector of them, with their space.

    Values of the type of the space pass by one comparison; the first ones of `reset` and of `step`
    are compared with the bounds too.

    Args:
        name: The environment's name in messages.
        spec: The spec of the environment.
    """

    def __init__(self, name: str, spec: EnvSpec) -> None:
        self._name, self._space, packing = name, spec.obs_space, spec.packing
        self._is_tree = packing is not None and not packing.is_one_leaf
        alone = Leaf((), cast(LeafSpace, spec.obs_space))
        self._whole = None if self._is_tree else _Part(alone)
        self._parts = [_Part(leaf) for leaf in packing.leaves] if packing and self._is_tree else []
        self._new = {"reset", "step"}
        is_box = self._whole is not None and isinstance(spec.obs_space, Box)
        self.usual = (spec.obs_space.dtype, spec.obs_space.shape) if is_box else None
        """Type and shape of later observations that need no closer look; None if all do."""

    def __call__(self, obs: Any, where: str, *, num: int | None = None) -> Any:  # noqa: ANN401
        """Return an observation, converted if it is a single array or number.

        Args:
            obs: The observation, or the tree of its parts.
            where: The method that has returned it.
            num: Of how many environments it is; None for one that is not of a vector.

        Raises:
            EnvError: If it is not of the space.
        """
        lead = () if num is None else (num,)
        if is_first := where in self._new:
            self._new.discard(where)
        part = self._whole
        try:
            if part is not None:
                return part(obs, lead, is_first)
            for part in self._parts:
                part(_of_tree(obs, part.leaf), lead, is_first)
            if is_first and (name := _name_of_extra(self._space, obs)) is not None:
                part = None
                raise _UnfitError(f"a tree that has `{name}` too")
        except _UnfitError as found:
            raise self._fault(str(found), where, part, num) from found.__cause__
        return obs

    def _fault(self, found: str, where: str, part: _Part | None, num: int | None) -> EnvError:
        leaf = None if part is None or not part.leaf.keys else part.leaf
        space = leaf.space if leaf else self._space
        advice = "Return what the space says, or mend the space."
        if num is not None:
            named = f"that are not of their space; their part `{leaf.name}` is" if leaf else "of"
            return EnvError(
                f"{self._name} gave `observations` {named} {found} from `{where}`; {num} of "
                f"{space} were expected. {advice}"
            )
        named = f"; its part `{leaf.name}` is" if leaf else ":"
        return EnvError(
            f"{self._name} gave an observation from `{where}` that is not of its space{named} "
            f"{found}; expected was one of {space}. {advice}"
        )


_Limits: TypeAlias = "tuple[Any, Any] | None"


class _Part:
    def __init__(self, leaf: Leaf) -> None:
        self.leaf, space = leaf, leaf.space
        self._shape, self._dtype = space.shape or (), np.dtype(space.dtype)
        self._is_box = isinstance(space, Box)
        self._bounds = _bounds_of(space)
        self._range: _Limits = None if self._dtype.kind == "f" else (0, 1)
        if self._dtype.kind in "iu":
            info = np.iinfo(cast(Any, self._dtype))
            self._range = info.min, info.max
        self._kinds = "biuf" if self._dtype.kind == "f" else "biu"
        self._is_choice = isinstance(space, Discrete)

    def __call__(self, obs: Any, lead: tuple[int, ...], is_first: bool) -> Any:  # noqa: ANN401
        """Return the observation; values that numpy can convert are converted."""
        if (
            obs.__class__ is np.ndarray
            and obs.dtype == self._dtype
            and obs.shape == lead + self._shape
        ):
            if self._is_box and not is_first:
                return obs
        elif (
            self._is_choice
            and not lead
            and obs.__class__ in _INTS
            and self._bounds[0] <= obs <= self._bounds[1]
        ):
            return obs
        try:
            array = np.asarray(obs)
        except RAISED as error:
            raise _UnfitError(_shown(obs)) from error
        if array.shape != lead + self._shape or array.dtype.kind not in self._kinds:
            raise self._unfit(obs, array, lead)
        limits = self._bounds if is_first or not self._is_box else self._range
        if limits is not None:
            is_out = ((array < limits[0]) | (array > limits[1])) & np.isfinite(array)
            if is_out.any():
                raise self._unfit(obs, array, lead, f" with {array[is_out].flat[0]} in it")
        return array if lead or not self._is_choice else int(array)

    def _unfit(
        self,
        obs: Any,  # noqa: ANN401
        array: NumpyArray,
        lead: tuple[int, ...],
        more: str = "",
    ) -> _UnfitError:
        is_shown = not lead and array.shape in ((), self._shape)
        values = f"{_shown(obs)}, " if is_shown else ""
        return _UnfitError(f"{values}shape {array.shape} and dtype {array.dtype}{more}")


def _bounds_of(space: Any) -> tuple[Any, Any]:  # noqa: ANN401 - of any type
    """Return the least and the greatest value of a space, with a tolerance for rounded floats."""
    if isinstance(space, Discrete):
        return int(space.start), int(space.start + space.n) - 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if not isinstance(space, Box):
        return 0, 1
    if np.dtype(space.dtype).kind != "f":
        return space.low, space.high
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return low - _TOLERANCE * (1.0 + abs(low)), high + _TOLERANCE * (1.0 + abs(high))


def _name_of_extra(space: Space[Any], obs: Any, keys: Keys = ()) -> str | None:  # noqa: ANN401
    parts: dict[Any, Space[Any]] = {}
    if isinstance(space, Dict):
        parts, names = dict(space.spaces), list(getattr(obs, "keys", tuple)())
    elif isinstance(space, Tuple):
        parts, names = dict(enumerate(space.spaces)), list(range(len(obs)))
    else:
        return None
    for key in names:
        if key not in parts:
            return Leaf((*keys, key), cast(LeafSpace, space)).name
        if (found := _name_of_extra(parts[key], obs[key], (*keys, key))) is not None:
            return found
    return None


def _of_tree(obs: Any, leaf: Leaf) -> Any:  # noqa: ANN401
    try:
        return leaf.find(obs)
    except RAISED as error:
        raise _UnfitError(f"missing in {_shown(obs)}") from error


def choice_sizes(spec: EnvSpec) -> list[int]:
    """Return how many choices each number of an action has."""
    space = spec.action_space
    if isinstance(space, MultiBinary):
        return [2]
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
        self._name, self._where = name, where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        fault = None if error is None else fault_of(self._name, self._where, error)
        if fault is not None:
            raise fault from error


def fault_of(name: str, where: str, error: BaseException) -> EnvError | None:
    """Return the error for an exception that an environment raised in a method.

    Returns:
        None if it is no fault of the environment: it has been told already, or a signal has raised
        it outside a run.
    """
    if isinstance(error, DingLiteError) or not isinstance(error, (*RAISED, KeyboardInterrupt)):
        return None
    if isinstance(error, SystemExit | KeyboardInterrupt) and is_of_a_signal(error):
        if is_interrupted():
            return EnvError(f"{name}: a second signal came in the middle of `{where}`.")
        return None
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


def obs_and_info(name: str, answer: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """Take apart what a `reset` has returned.

    Raises:
        EnvError: If it is not two values, of which the second one is a dict.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise EnvError(
            f"{name} returned {_shown(answer)} from `reset`; two values were expected: obs, info. "
            f"Environments written for gym before 0.26 return the first one only."
        )
    if not isinstance(answer[1], dict):
        raise _info_fault(name, answer[1], "reset")
    return answer


def five_values(name: str, answer: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401
    """Return what a `step` has returned.

    Raises:
        EnvError: If it is not five values, of which the last one is a dict.
    """
    if answer.__class__ is not tuple or len(answer) != 5:
        found = f"{len(answer)} values" if isinstance(answer, tuple) else _shown(answer)
        raise EnvError(_wrong_count(name, found))
    if answer[4].__class__ is not dict and not isinstance(answer[4], dict):
        raise _info_fault(name, answer[4], "step")
    five: tuple[Any, Any, Any, Any, dict[str, Any]] = answer
    return five


def _info_fault(name: str, info: Any, where: str) -> EnvError:  # noqa: ANN401
    return EnvError(
        f"{name} gave the info {_shown(info)} from `{where}`; a dict was expected. "
        f"Return {{}} where there is nothing to tell."
    )


def _wrong_count(name: str, found: str) -> str:
    return (
        f"{name} returned {found} from `step`; five were expected: obs, reward, terminated, "
        f"truncated, info. Environments written for gym before 0.26 return four: tell `terminated` "
        f"from `truncated`."
    )


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
