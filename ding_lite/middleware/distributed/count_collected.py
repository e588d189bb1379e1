"""Sum the env steps and episodes of the collectors of a job, on a learner."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from ding_lite.distributed.topics import COLLECTED, ENV_STEP, TOTAL_STEP
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.labels import check_patterns, matches
from ding_lite.runtime.messaging.router import Router, current_router
from ding_lite.runtime.messaging.subscription import Subscription
from ding_lite.runtime.middleware import Middleware

_MEANS = "return", "episode_length"


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
        self._nodes: set[int] = set()
        """The nodes that collect, or did so until they left."""
        self._made: dict[str, list[int]] = {}
        """The env steps and episodes of each incarnation of a collector."""
        self._arrived: dict[int, dict[str, list[int]]] = {}
        """The same by node, also of nodes that do not collect."""
        self._seen: dict[int, int] = {}
        """The newest env step of each node that does not use `collect`."""
        self._written = 0
        self._lock = threading.Lock()
        """Guards `_arrived` and `_seen`, which `_note` changes on the router's threads."""
        self._topics = self._subscribe()

    def _subscribe(self) -> Subscription:
        topics = COLLECTED, ENV_STEP, TOTAL_STEP
        return self._router.subscribe(*topics, on_values=self._note)

    def __call__(self, ctx: Context) -> None:
        world, of_nodes = self._router.world, self._topics.of_nodes
        for node in of_nodes:
            if matches(world[node], self._collectors):
                self._nodes.add(node)
            elif world[node]:  # a node without labels has left
                self._nodes.discard(node)
                self._arrived.pop(node, None)
        if not (others := self._nodes & of_nodes.keys()):
            return
        means = [of_nodes[node].get(COLLECTED, {}) for node in others]
        if matches(world[self._router.node_id], self._collectors):
            means.append(self._note_own(ctx))
        self._take()
        if not self._made:
            return

        env_steps, episodes = map(sum, zip(*self._made.values(), strict=True))
        ctx.env_step = self._written = env_steps
        ctx.keep("env_step")
        if played := [mean for mean in means if "return" in mean]:
            ctx.metrics["episodes"] = episodes
            for name in _MEANS:
                ctx.metrics[name] = sum(mean[name] for mean in played) / len(played)

    def _note(self, node: int, values: Mapping[str, Any]) -> None:
        """Add up what a node has made, on arrival: it may be restarted before the next step."""
        collected, env_step = values.get(COLLECTED), values.get(ENV_STEP)
        with self._lock:
            if collected is not None:  # it takes the place of an env step that came before
                self._made.pop(_name(node), None)
                made = self._arrived.setdefault(node, {})
                made.pop(_name(node), None)
                _join(made, collected["made"])
            elif isinstance(env_step, Integral):
                newest = int(env_step)
                more = newest - self._seen.get(node, 0)
                if more < 0:  # it was restarted, and has begun again or resumed from a checkpoint
                    more = newest if values.get(TOTAL_STEP, 2) <= 1 else 0
                self._seen[node] = newest
                self._add(node, more)

    def _note_own(self, ctx: Context) -> Mapping[str, Any]:
        """Add up what this node has made; return what its `collect` has published."""
        node = self._router.node_id
        self._nodes.add(node)
        published: Mapping[str, Any] | None = self._router.published(COLLECTED)
        if published is not None:
            self._note(node, {COLLECTED: published})
            return published
        with self._lock:
            self._add(node, ctx.get("env_step", 0) - self._written)
        return {}

    def _add(self, node: int, env_steps: int) -> None:
        made, name = self._arrived.setdefault(node, {}), _name(node)
        before, _ = made.get(name) or self._made.get(name, [0, 0])
        made[name] = [before + env_steps, 0]

    def _take(self) -> dict[str, int]:
        """Join what the collectors have made; return their newest env steps, by node."""
        with self._lock:
            for node in self._nodes:
                _join(self._made, self._arrived.get(node, {}))
            return {str(node): env_step for node, env_step in self._seen.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all collectors, which may outlive this node."""
        seen = self._take()
        return {"made": dict(self._made), "seen": seen, "env_step": self._written}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self._lock:
            self._made, self._written = dict(state["made"]), state["env_step"]
            self._seen = {int(node): env_step for node, env_step in state["seen"].items()}
            self._arrived = {}
        self._topics = self._subscribe()  # values that have arrived before are noted again


def _name(node: int) -> str:
    """Return what stands for the incarnations of a node that does not use `collect`."""
    return f"node {node}"


def _join(made: dict[str, list[int]], newest: Mapping[str, list[int]]) -> None:
    """Take over the counts of each incarnation; those of an earlier checkpoint are lower."""
    for name, counts in newest.items():
        made[name] = max(counts, made.get(name, counts))
