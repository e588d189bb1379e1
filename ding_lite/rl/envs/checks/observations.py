"""Checks of observations against their space."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple

from ding_lite.errors import EnvError
from ding_lite.rl.batch import NumpyArray
from ding_lite.rl.envs.checks.faults import RAISED, shown
from ding_lite.rl.packing import Keys, Leaf, LeafSpace
from ding_lite.rl.spec import EnvSpec

_TOLERANCE = 1e-5
"""The tolerance of floats at their bounds, relative to the bounds."""
_INTS = {int, np.int64, np.int32}
_Limits: TypeAlias = "tuple[Any, Any] | None"


class ObsCheck:
    """Checks observations of an environment, or of a vector of them, against their space.

    Only the first observations of `reset` and of `step` are compared with the bounds of a Box.
    Later ones of the space's type and shape pass after one comparison.
    """

    def __init__(self, name: str, spec: EnvSpec) -> None:
        self._name, self._space, packing = name, spec.obs_space, spec.packing
        alone = Leaf((), cast(LeafSpace, spec.obs_space))
        leaves = (alone,) if packing is None else packing.leaves
        self._is_tree = leaves[0].keys != ()
        self._parts = [_Part(leaf) for leaf in leaves]
        self._new = {"reset", "step"}
        is_box = isinstance(spec.obs_space, Box)
        self.usual = (spec.obs_space.dtype, spec.obs_space.shape) if is_box else None
        """The type and shape of later observations that need no check; None if all need one."""

    def __call__(self, obs: Any, where: str, *, num: int | None = None) -> Any:  # noqa: ANN401
        """Return an observation, converted if it is a single array or number.

        `num` is the number of environments of a vector; None for a single environment.
        """
        lead = () if num is None else (num,)
        if is_first := where in self._new:
            self._new.discard(where)
        part: _Part | None = None
        converted = obs
        try:
            for part in self._parts:
                converted = part(_of_tree(obs, part.leaf), lead, is_first)
            if is_first and (name := _name_of_extra(self._space, obs)) is not None:
                part = None
                raise _UnfitError(f"a tree that has `{name}` too")
        except _UnfitError as found:
            raise self._fault(str(found), where, part, num) from found.__cause__
        return obs if self._is_tree else converted

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


class _UnfitError(Exception):
    """An error for a part of an observation that is not of its space, with the found value."""


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
        """Return the observation, converted by numpy if it is not of the space's type."""
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
            raise _UnfitError(shown(obs)) from error
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
        values = f"{shown(obs)}, " if is_shown else ""
        return _UnfitError(f"{values}shape {array.shape} and dtype {array.dtype}{more}")


def _bounds_of(space: Any) -> tuple[Any, Any]:  # noqa: ANN401 - of any type
    """Return a space's lowest and highest values, with a tolerance for rounded floats."""
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
        raise _UnfitError(f"missing in {shown(obs)}") from error
