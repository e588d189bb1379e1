"""Sum the env steps and episodes of the collectors of a job, on a learner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ding_lite.distributed.topics import COLLECTED, ENV_STEP
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.labels import check_patterns, matches
from ding_lite.runtime.messaging.router import Router, current_router
from ding_lite.runtime.middleware import Middleware

_MEANS = ("return", "episode_length")


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
        self._ledgers: dict[int, _Totals] = {}
        self._before = _Totals()
        self._written = 0

    def __call__(self, ctx: Context) -> None:
        world, has_collectors = self._router.world, False
        for node, values in self._topics.of_nodes.items():
            if node in self._ledgers or matches(world[node], self._collectors):
                self._ledgers.setdefault(node, _Totals()).note(values)
                has_collectors = True
        if not has_collectors:
            return
        self._note_own(ctx, world)

        ledgers = [*self._ledgers.values()]
        ctx.env_step = sum(ledger.env_step for ledger in [*ledgers, self._before])
        ctx.keep("env_step")
        self._written = ctx.env_step
        played = [ledger for ledger in ledgers if ledger.means]
        if played:
            ctx.metrics["episodes"] = sum(each.episodes for each in [*ledgers, self._before])
            for name in _MEANS:
                ctx.metrics[name] = sum(ledger.means[name] for ledger in played) / len(played)

    def _note_own(self, ctx: Context, world: Sequence[frozenset[str]]) -> None:
        """Count what `collect` on this node has added to the sum of all env steps."""
        node = self._router.node_id
        made = ctx.get("env_step", 0) - self._written
        if made and matches(world[node], self._collectors):
            ledger = self._ledgers.setdefault(node, _Totals())
            own = {"env_step": ledger.num_done + made, "incarnation": 0}
            ledger.note({COLLECTED: (self._router.published(COLLECTED) or {}) | own})

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far, and the counts of collectors, which may outlive this node."""
        ledgers = [*self._ledgers.values(), self._before]
        return {
            "env_step": sum(ledger.env_step for ledger in ledgers),
            "episodes": sum(ledger.episodes for ledger in ledgers),
            "collectors": {str(node): each.counted() for node, each in self._ledgers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        counted = {int(node): own for node, own in state.get("collectors", {}).items()}
        self._written = state["env_step"]
        self._ledgers = {node: _Totals(counted=own) for node, own in counted.items()}
        self._before = _Totals(
            {
                name: state[name] - sum(own[name] for own in counted.values())
                for name in ("env_step", "episodes")
            }
        )


class _Totals:
    """The env steps and episodes of one collector, in all its incarnations."""

    def __init__(
        self, before: Mapping[str, int] | None = None, *, counted: Mapping[str, int] | None = None
    ) -> None:
        nothing = {"env_step": 0, "episodes": 0}
        self.means: dict[str, float] = {}
        self._before = nothing | dict(before or {})
        self._done = nothing | dict(counted or {})
        self._incarnation = self._done.pop("incarnation", 0)

    @property
    def num_done(self) -> int:
        """The env steps of the current incarnation."""
        return self._done["env_step"]

    @property
    def env_step(self) -> int:
        return self._before["env_step"] + self._done["env_step"]

    @property
    def episodes(self) -> int:
        return self._before["episodes"] + self._done["episodes"]

    def counted(self) -> dict[str, int]:
        """Return the counts of the current incarnation."""
        return {"incarnation": self._incarnation, **self._done}

    def note(self, values: Mapping[str, Any]) -> None:
        collected = {"env_step": values.get(ENV_STEP, 0), "episodes": 0} | values.get(COLLECTED, {})
        self.means = {name: collected[name] for name in _MEANS if name in collected}
        incarnation, resumed = collected.get("incarnation", 0), collected.get("resumed", {})
        is_new = 0 != self._incarnation != incarnation
        for name in self._done:
            number = collected[name]
            if is_new or number < self._done[name]:  # the collector was restarted
                self._before[name] += self._done[name] - resumed.get(name, 0)
            self._done[name] = number
        self._incarnation = incarnation
