"""Sum the env steps and episodes of the collectors of a job, on a learner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ding_lite.distributed.topics import COLLECTED, ENV_STEP
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.labels import check_patterns, matches
from ding_lite.runtime.messaging.router import Router, current_router
from ding_lite.runtime.middleware import Middleware

_MEANS, _COUNTS = ("return", "episode_length"), ("env_step", "episodes")
_NOTHING = {"incarnation": 0, "env_step": 0, "episodes": 0}


def count_collected(collectors: str | Iterable[str] = "collector") -> Middleware:
    """Sum the env steps and episodes of all collectors on a learner's ctx.

    `ctx.env_step` becomes the sum of all collectors' env steps, this node's included. The metrics
    become `return` and `episode_length` (means over collectors) and `episodes` (the sum). So `log`,
    `progress`, `curve`, `tensorboard` and `stop_at` work on a node without envs. The counts of a
    restarted collector continue, also if it resumes from a checkpoint. In a job of one node the
    values of `collect` are not changed. For a collector that uses its own middleware instead of
    `collect`, `ctx.env_step` is counted.

    Context:
        reads: env_step
        writes: env_step, metrics (return, episode_length, episodes)
        keeps: env_step

    Args:
        collectors: Patterns of the labels of the nodes that collect.

    Raises:
        LabelError: A pattern is malformed.
    """
    return _CountCollected(current_router(), check_patterns(collectors))


class _CountCollected:
    __name__ = "count_collected"

    def __init__(self, router: Router, collectors: tuple[str, ...]) -> None:
        self._router = router
        self._collectors = collectors
        self._topics = router.subscribe(COLLECTED, ENV_STEP)
        self._current: dict[int, dict[str, int]] = {}
        """The counts of each collector's current incarnation, by node."""
        self._before = Counter[str]()
        """The counts of all former incarnations."""
        self._means: dict[int, dict[str, float]] = {}
        self._written = 0

    def __call__(self, ctx: Context) -> None:
        world, has_collectors = self._router.world, False
        for node, values in self._topics.of_nodes.items():
            if node in self._current or matches(world[node], self._collectors):
                self._note(node, {"env_step": values.get(ENV_STEP, 0), **values.get(COLLECTED, {})})
                has_collectors = True
        if not has_collectors:
            return
        self._note_own(ctx, world)

        ctx.env_step = self._written = self._total("env_step")
        ctx.keep("env_step")
        if played := [means for means in self._means.values() if means]:
            ctx.metrics["episodes"] = self._total("episodes")
            for name in _MEANS:
                ctx.metrics[name] = sum(means[name] for means in played) / len(played)

    def _note_own(self, ctx: Context, world: Sequence[frozenset[str]]) -> None:
        """Count what `collect` on this node has added to the sum of all env steps."""
        node = self._router.node_id
        made = ctx.get("env_step", 0) - self._written
        if made and matches(world[node], self._collectors):
            env_step = self._current.get(node, _NOTHING)["env_step"] + made
            published = self._router.published(COLLECTED) or {}
            self._note(node, {**published, "env_step": env_step, "incarnation": 0})

    def _note(self, node: int, collected: Mapping[str, Any]) -> None:
        last = self._current.get(node, _NOTHING)
        newest = {name: collected.get(name, 0) for name in _NOTHING}
        is_new = 0 != last["incarnation"] != newest["incarnation"]
        for name in _COUNTS:
            if is_new or newest[name] < last[name]:  # the collector was restarted
                self._before[name] += last[name] - collected.get("resumed", {}).get(name, 0)
        self._current[node] = newest
        self._means[node] = {name: collected[name] for name in _MEANS if name in collected}

    def _total(self, name: str) -> int:
        return self._before[name] + sum(counts[name] for counts in self._current.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, and the counts of collectors, which may outlive this node."""
        counts = {str(node): dict(counts) for node, counts in self._current.items()}
        return {**{name: self._total(name) for name in _COUNTS}, "collectors": counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        counts = state["collectors"]
        self._current = {int(node): {**_NOTHING, **own} for node, own in counts.items()}
        self._before = Counter({name: state[name] for name in _COUNTS})
        for own in counts.values():
            self._before.subtract({name: own[name] for name in _COUNTS})
        self._means, self._written = {}, state["env_step"]
