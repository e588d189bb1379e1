"""A gymnasium wrapper that checks an environment's return values and names it in errors.

Every fault is an `EnvError` with the environment, the method, the found value and the expected one,
so that messages are the same in one process and in several. Values of the usual types pass after
one comparison each; only others are examined further.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from ding_lite.errors import DingLiteError, EnvError
from ding_lite.rl.envs.checks.faults import (
    Env,
    fault_of,
    five_values,
    obs_and_info,
    raising_env_errors,
    shown,
    text_of,
    wrong_count,
)
from ding_lite.rl.envs.checks.masks import (
    choice_sizes,
    flags_of,
    has_legal,
    refuse_late_mask,
)
from ding_lite.rl.envs.checks.observations import ObsCheck
from ding_lite.rl.spec import EnvSpec

_LARGEST = float(np.finfo(np.float32).max)
_LEAST_OF_SYSTEM = 2**64
"""The lowest seed that can only come from the system's randomness."""
_FLOATS, _FLAGS = {float, np.float32, np.float64, int}, {bool, np.bool_}


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks all values that an environment returns against its spaces."""

    def __init__(self, env: Env, *, index: int, spec: EnvSpec) -> None:
        super().__init__(env)
        self.name = f"Environment {index} of {spec.env_id}"
        """The beginning of messages about its faults."""
        self._spec = spec
        self._checked_obs = ObsCheck(self.name, spec)
        self._usual: tuple[Any, Any] | None = None
        """The type and shape of observations that need no check; None before the first step."""
        self._may_draw: bool | None = None
        """Whether the first step must check that random numbers are seeded; None before `reset`."""
        self._mask_sizes = choice_sizes(spec) if spec.has_action_mask else []
        self.action_mask = np.ones(sum(self._mask_sizes), dtype=np.bool_)
        """Which actions are legal now, [A]; all are if the environment has no mask."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        with raising_env_errors(self.name, "reset"):
            how = {} if options is None else {"options": options}
            answer = self.env.reset(seed=seed, **how)
        obs, info = obs_and_info(self.name, answer)
        self._may_draw = self._may_draw is None and seed is not None
        if self._may_draw:
            self._check_is_seeded("reset")
        if self._mask_sizes:
            self._note_mask(info, "reset", has_ended=False)
        return self._checked_obs(obs, "reset"), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:  # noqa: ANN401
        try:
            answer = self.env.step(action)
        except BaseException as error:
            if (fault := self._step_fault(error)) is None:
                raise
            raise fault from error
        obs, reward, terminated, truncated, info = five_values(self.name, answer)
        # A comparison with NaN is false, so that NaN is examined further.
        if reward.__class__ not in _FLOATS or not -_LARGEST <= reward <= _LARGEST:  # type: ignore[operator]
            reward = self._checked_reward(reward)
        if terminated.__class__ not in _FLAGS:
            terminated = self._checked_flag("terminated", terminated)
        if truncated.__class__ not in _FLAGS:
            truncated = self._checked_flag("truncated", truncated)
        if self._mask_sizes:
            self._note_mask(info, "step", has_ended=bool(terminated))
        if obs.__class__ is not np.ndarray or (obs.dtype, obs.shape) != self._usual:
            refuse_late_mask(self.name, info, self._spec)
            if self._may_draw:
                self._may_draw = False
                self._check_is_seeded("step")
            obs = self._checked_obs(obs, "step")
            self._usual = self._checked_obs.usual
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        with raising_env_errors(self.name, "close"):
            self.env.close()

    def _check_is_seeded(self, where: str) -> None:
        # Without a seed gymnasium uses 128 bits of the system's randomness.
        found = getattr(self.env.unwrapped, "_np_random_seed", None)
        if isinstance(found, int) and found >= _LEAST_OF_SYSTEM:
            raise EnvError(
                f"{self.name} drew random numbers in `{where}` from an `np_random` without the "
                f"seed that `reset` was given, so no run of it could be repeated. Begin `reset` "
                f"with `super().reset(seed=seed)`."
            )

    def _note_mask(self, info: dict[str, Any], where: str, *, has_ended: bool) -> None:
        """Store which actions are legal; after the end of an episode none need be."""
        mask = info.get("action_mask")
        flags = flags_of(mask, len(self.action_mask))
        if flags is not None and has_legal(flags, self._mask_sizes):
            self.action_mask = flags
        elif has_ended:
            self.action_mask = np.ones_like(self.action_mask)
        elif flags is not None:
            raise EnvError(
                f"{self.name} gave an action mask without a legal action from `{where}`: "
                f"{shown(mask)}. One must be legal until the episode has ended: return "
                f"`terminated` where nothing can be done."
            )
        else:
            raise EnvError(
                f'{self.name} gave {shown(mask)} as `info["action_mask"]` from `{where}`; '
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
            # Rewards are stored as float32, in which larger numbers become infinite.
            return math.copysign(math.inf, value) if abs(value) > _LARGEST else value
        raise EnvError(
            f"{self.name} gave the reward {shown(reward)} from `step`; one number was expected. "
            f"Return `float(reward)`."
        )

    def _checked_flag(self, name: str, flag: Any) -> bool:  # noqa: ANN401
        value = flag.item() if isinstance(flag, np.ndarray) and flag.shape == () else flag
        if value.__class__ in _FLAGS or (isinstance(value, numbers.Integral) and value in (0, 1)):
            return bool(value)
        raise EnvError(
            f"{self.name} gave `{name}` {shown(flag)} from `step`; True or False was expected. "
            f"Return `bool({name})`."
        )

    def _step_fault(self, error: BaseException) -> DingLiteError | None:
        """Return the fault of an old-style `step`, even if a gymnasium wrapper unpacked it."""
        text = text_of(error)
        if isinstance(error, ValueError) and "values to unpack" in text and "got 4" in text:
            return EnvError(wrong_count(self.name, "4 values"))
        return fault_of(self.name, "step", error)
