"""Metrics and counts of the episodes that `collect` has played."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any

from ding_lite.distributed.server import incarnation_of
from ding_lite.distributed.topics import COLLECTED
from ding_lite.rl.envs.vector import Envs
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router

RECENT_EPISODES = 20
"""The number of episodes in the mean `ctx.metrics["return"]`."""


class RecentEpisodes:
    """Keeps the newest episodes and the number of all episodes."""

    def __init__(self) -> None:
        self._router = current_router()
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self._count = 0
        self._env_step = 0
        self._resumed: dict[str, Any] = {}

    def report(self, ctx: Context, envs: Envs) -> None:
        """Write the metrics of the episodes that have just ended, and publish the counts."""
        if ended := envs.take_finished():
            self._recent.extend((episode.ret, episode.length) for episode in ended)
            self._count += len(ended)
            ctx.collected = {**self._metrics(), "returns": [episode.ret for episode in ended]}
            ctx.metrics.update(self._metrics())
            ctx.metrics["episode_return"] = sum(episode.ret for episode in ended) / len(ended)
        self._env_step = ctx.env_step
        if self._router.has_audience:
            counts = {"incarnation": incarnation_of(os.getpid()), "env_step": ctx.env_step}
            self._router.publish(COLLECTED, {**counts, **self._metrics(), **self._resumed})

    def _metrics(self) -> dict[str, Any]:
        if not self._recent:
            return {"episodes": self._count}
        returns, lengths = zip(*self._recent, strict=True)
        return {
            "return": sum(returns) / len(returns),
            "episode_length": sum(lengths) / len(lengths),
            "episodes": self._count,
        }

    def state_dict(self) -> dict[str, Any]:
        recent = list(self._recent)
        return {"recent": recent, "episodes": self._count, "env_step": self._env_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent = deque(map(tuple, state["recent"]), maxlen=RECENT_EPISODES)
        self._count = state["episodes"]
        self._env_step = state.get("env_step", 0)  # earlier versions did not save it
        self._resumed = {"resumed": {"env_step": self._env_step, "episodes": self._count}}
