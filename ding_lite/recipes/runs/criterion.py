"""The criterion by which a run of several nodes is solved: greedy or collected episodes."""

from __future__ import annotations

from ding_lite.recipes.options import Options
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router

EPISODES_PER_COLLECTOR = "episodes_per_collector"
"""The metric that a run has which is solved by what its collectors play."""
NEWEST_SHARE = 0.1
TIMES_IN_A_ROW = 5
_MET = "ding_lite.criterion_met"


class Criterion:
    """Ends a run when it is solved, as `--criterion` says.

    With `greedy` that is `evaluate` on the learner, and nothing here does anything. With `seed`
    it is what Machin's tutorial looks at: each collector smooths the returns of the episodes that
    it plays itself, exploring, in the order in which they end (0.9 of the value before and 0.1 of
    the newest, from 0 on), and once that is above the target after five episodes in a row, the
    run is solved. The metrics of the learner then say `episodes_per_collector`: how many that
    collector has played.

    Every node makes one. Where returns are below 0, the smoothed one begins at the first.

    Args:
        options: The options of the run.
        margin: By how much evaluations must be above the target to end a run: its episodes may be
            luckier than those that judge it afterwards.
    """

    def __init__(self, options: Options, *, margin: float = 0.0) -> None:
        self.eval_target = options.target + margin if options.criterion == "greedy" else None
        """The return of an evaluation that ends the run; None where evaluations do not end it."""
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
        """Look at the episodes that have ended in this step: a middleware for collectors."""
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
                # Said again at each episode, for a learner that was being started anew.
                self._router.emit(_MET, self._num_episodes)
        ctx.metrics["smoothed_return"] = self._smoothed

    def decide(self, ctx: Context) -> None:
        """End the run once a collector has met the criterion: a middleware for the learner."""
        if self._met_after is not None:
            ctx.metrics[EPISODES_PER_COLLECTOR] = self._met_after
            ctx.finish = True

    def _note(self, num_episodes: int) -> None:
        if self._met_after is None:
            self._met_after = num_episodes
