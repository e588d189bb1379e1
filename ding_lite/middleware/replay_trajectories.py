"""Replay some trajectories of earlier steps to a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ding_lite.rl.batch import Rollout
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import check_all, whole


def replay_trajectories(num: int) -> Middleware:
    """Append the newest trajectories of earlier steps to those of this step.

    The learner learns from data of older weights again, in addition to the new data: it needs fewer
    env steps, and each update takes longer. It is for policies that correct for older weights, such
    as IMPALA. Place it after `collect` or `receive`, before `train`.

    It does nothing in a step without trajectories.

    Context:
        reads: trajectories
        writes: trajectories

    Args:
        num: Number of replayed trajectories. With as many as there are new ones in a step, half of
            each update is replayed data, as in Espeholt et al. 2018. More are older and less
            useful.

    Raises:
        ConfigError: `num` is below 1.
    """
    check_all(whole(1, num=num))
    return _ReplayTrajectories(num)


class _ReplayTrajectories:
    __name__ = "replay_trajectories"

    def __init__(self, num: int) -> None:
        self._num = num
        self._before: list[Rollout] = []

    def __call__(self, ctx: Context) -> None:
        if ctx.trajectories:
            ctx.trajectories = [*ctx.trajectories, *self._before]
            self._before = ctx.trajectories[: self._num]

    def state_dict(self) -> dict[str, Any]:
        names = [field.name for field in fields(Rollout)]
        return {"before": [{name: getattr(one, name) for name in names} for one in self._before]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = [Rollout(**one) for one in state["before"]]
