"""Replay some trajectories of earlier steps to a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ding_lite.rl.batch import Rollout
from ding_lite.runtime.context import Context
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import check_all, whole


def replay_trajectories(num: int) -> Middleware:
    """Append the newest trajectories of earlier steps to those of this step.

    The learner gets data of older weights once more, beside the new data: fewer env steps are
    needed, and each update takes longer. It is for policies that correct for older weights, as
    IMPALA does. Place it behind `collect` or `receive`, before `train`.

    A step without trajectories is left alone.

    Context:
        reads: trajectories
        writes: trajectories

    Args:
        num: How many are replayed. As many as are new in a step makes half of each update old, as
            Espeholt et al. 2018 did; more are older, and teach less.

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
