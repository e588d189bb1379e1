"""Metrics of the episodes that `collect` has played."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ding_lite.rl.envs.vector import Envs
from ding_lite.runtime.context import Context

RECENT_EPISODES = 20
"""The number of episodes in the mean `ctx.metrics["return"]`."""


class RecentEpisodes:
    """Remembers the newest episodes, and how many there were."""

    def __init__(self) -> None:
        """Begin with none."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self._count = 0

    def report(self, ctx: Context, envs: Envs) -> None:
        """Write the metrics of what has ended since the last time, if anything has."""
        ended = envs.take_finished()
        if not ended:
            return

        recent = self._recent
        recent.extend((episode.ret, episode.length) for episode in ended)
        self._count += len(ended)
        returns, lengths = zip(*recent, strict=True)
        metrics = {
            "return": sum(returns) / len(recent),
            "episode_length": sum(lengths) / len(recent),
            "episodes": self._count,
        }
        ctx.collected = {**metrics, "returns": [episode.ret for episode in ended]}
        ctx.metrics.update(metrics)
        ctx.metrics["episode_return"] = sum(episode.ret for episode in ended) / len(ended)

    def state_dict(self) -> dict[str, Any]:
        """Copy what is remembered."""
        return {"recent": list(self._recent), "episodes": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._recent = deque(map(tuple, state["recent"]), maxlen=RECENT_EPISODES)
        self._count = state["episodes"]
