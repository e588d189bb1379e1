"""Checks and periods that several middleware share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat

from ding_lite.errors import ConfigError, kind_of
from ding_lite.rl.envs.vector import Envs
from ding_lite.rl.protocols import Policy
from ding_lite.rl.spec import EnvSpec
from ding_lite.runtime.context import Context
from ding_lite.settings.rules import check_all, whole


def check_fits(policy: Policy, envs: Envs) -> None:
    """Refuse a policy that was made for other observation or action spaces."""
    check_has(policy, "act", "policy")
    check_has(envs, "random_actions", "envs")
    have, want = policy.spec, envs.spec

    if _form(have) != _form(want) or have.action_space != want.action_space:
        raise ConfigError(
            f"The policy was made for {have.env_id} (observations {_shown(have)}, actions "
            f"{have.action_space}), the envs are {want.env_id} (observations {_shown(want)}, "
            f"actions {want.action_space}). Make the policy from the spec of these envs."
        )


def _form(spec: EnvSpec) -> object:
    """Return the part of a spec that must be equal: the shape, or the spaces of observations."""
    parts = spec.packing and (spec.obs_space, spec.has_action_mask)
    return spec.obs_shape, parts


def _shown(spec: EnvSpec) -> str:
    if spec.packing is None:
        return str(spec.obs_shape)
    return f"{spec.obs_space}{' with an action mask' if spec.has_action_mask else ''}"


def check_has(thing: object, method: str, role: str) -> None:
    if isinstance(thing, type):
        raise ConfigError(
            f"`{role}` is the class {thing.__name__}; one made of it was expected, such as "
            f"`{thing.__name__}(envs.spec, ...)`."
        )
    if not callable(getattr(thing, method, None)):
        raise ConfigError(
            f"`{role}` is {kind_of(thing)}, which has no `{method}` method. "
            f"Check the order of the arguments."
        )


def for_all_envs(episodes: int, envs: Envs) -> int:
    """Round a number of episodes up to the same number for each env."""
    return math.ceil(episodes / envs.num_envs) * envs.num_envs


def check_schedule(schedule: object, name: str) -> None:
    if schedule is not None and not callable(schedule):
        raise ConfigError(
            f"`{name}` is {schedule!r}; a schedule was expected, a function of the env step. "
            f"Write `constant({schedule!r})`, or `linear(1.0, 0.05, steps=10_000)`."
        )


class Period:
    """Determines the steps in which a periodic middleware is due.

    Args:
        every: The period in steps of the pipeline; the last step of a period is due.
        every_env_steps: The period in env steps; the step that reaches or passes a multiple is due.
        usual: The default of `every` if neither is given.

    Raises:
        ConfigError: Not exactly one period is given, or it is no whole number from 1 on.
    """

    def __init__(
        self, every: int | None, every_env_steps: int | None = None, *, usual: int | None = None
    ) -> None:
        if every is None and every_env_steps is None:
            every = usual
        both = {"every": every, "every_env_steps": every_env_steps}
        given = {name: value for name, value in both.items() if value is not None}
        listed = " and ".join(f"`{name}` {value}" for name, value in given.items())
        check_all(
            []
            if len(given) == 1
            else [
                f"{listed or 'No period'} was given; exactly one of `every`, in steps of the "
                f"pipeline, and `every_env_steps` was expected"
            ],
            whole(1, **given),
        )
        [self._every] = given.values()
        self._is_of_env_steps = every is None
        self._seen = 0

    def is_due(self, ctx: Context) -> bool:
        """Return whether the middleware is due in this step; call it once per step."""
        if not self._is_of_env_steps:
            return bool((ctx.total_step + 1) % self._every == 0)
        before, self._seen = self._seen, int(ctx.get("env_step", 0))
        return self._seen // self._every > before // self._every

    def state_dict(self) -> dict[str, Any]:
        return {"seen_env_step": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = int(state["seen_env_step"])


def number(name: str, value: SupportsFloat) -> float:
    """Convert a metric to a float, or raise ConfigError; waits for a tensor on a device."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'`ctx.metrics["{name}"]` is {kind_of(value)}: {str(value)[:60]}. Metrics are '
            f"single numbers. Write its mean, or put it on the ctx under a key of your own."
        ) from error


def check_batch(batch_size: int, *, capacity: int) -> None:
    if batch_size > capacity:
        raise ConfigError(
            f"`batch_size` is {batch_size:,}, the capacity of the replay {capacity:,}: a batch "
            f"would never be full. Make the batch smaller or the replay larger."
        )
