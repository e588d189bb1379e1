"""The criterion by which a run of several nodes is solved: greedy or collected episodes."""

from __future__ import annotations

from ding_lite.recipes.options import Options
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router

EPISODES_PER_COLLECTOR = "episodes_per_collector"
"""The metric of runs that are solved by the episodes of their collectors."""
NEWEST_SHARE = 0.1
TIMES_IN_A_ROW = 5
_MET = "ding_lite.criterion_met"


class Criterion:
    """Ends a run when it is solved according to `--criterion`.

    With `greedy`, `evaluate` on the learner ends the run, and this object does nothing. With `seed`
    the criterion is that of Machin's tutorial. Each collector smooths the returns of its own
    exploring episodes in the order in which they end: 0.9 of the previous value plus 0.1 of the
    newest return, starting at 0. The run is solved once the smoothed return is above the target
    after five episodes in a row. The learner's metric `episodes_per_collector` is then the number
    of episodes of that collector.

    Every node makes a criterion. If the target is 0 or less, smoothing starts at the first return.

    Args:
        options: The options of the run.
        margin: The margin above the target that an evaluation must reach to end a run, as its
            return may be higher by chance than that of the final verdict.
    """

    def __init__(self, options: Options, *, margin: float = 0.0) -> None:
        self.eval_target = options.target + margin if options.criterion == "greedy" else None
        """The return at which an evaluation ends the run; None if evaluations do not end it."""
        self._router = current_router()
        self._target = options.target
        self._is_idle = options.criterion == "greedy"
        self._smoothed = 0.0
        self._num_episodes = 0
        self._num_above = 0
        self._met_after: int | None = None
        if not self._is_idle:
            self._router.on(_MET, self._note)

    def observe(self, ctx: Context) -> None:
        """Smooth the returns of the episodes that ended in this step; a collectors' middleware."""
        if self._is_idle or "collected" not in ctx:
            return
        for value in ctx.collected["returns"]:
            is_first = self._num_episodes == 0
            self._num_episodes += 1
            before = value if is_first and self._target <= 0.0 else self._smoothed
            self._smoothed = before + NEWEST_SHARE * (value - before)
            self._num_above = self._num_above + 1 if self._smoothed > self._target else 0
            if self._num_above >= TIMES_IN_A_ROW:
                self._note(self._num_episodes)
                # Sent again after each episode, for a learner that was just restarted.
                self._router.emit(_MET, self._num_episodes)
        ctx.metrics["smoothed_return"] = self._smoothed

    def decide(self, ctx: Context) -> None:
        """End the run once a collector has met the criterion; the learner's middleware."""
        if self._met_after is not None:
            ctx.metrics[EPISODES_PER_COLLECTOR] = self._met_after
            ctx.finish = True

    def _note(self, num_episodes: int) -> None:
        if self._met_after is None:
            self._met_after = num_episodes
