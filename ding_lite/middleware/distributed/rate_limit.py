"""Limit the env steps of collectors by the updates of their learner."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ding_lite.clock import Deadline
from ding_lite.distributed.topics import TRAIN_ITER
from ding_lite.errors import DeadlineExceeded
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import current_router, is_alone
from ding_lite.runtime.messaging.subscription import Subscription
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all, positive

WAIT_S = 60.0
"""Seconds that `rate_limit` waits by default for a learner."""


def rate_limit(
    *,
    env_steps_per_update: float,
    ahead: float = 1_000.0,
    at_first: float | None = None,
    timeout: float | None = WAIT_S,
) -> Middleware:
    """Make a collector wait while it has made too many env steps for the learner's updates.

    With a replay, collectors and learner do not wait for each other, so collectors on the learner's
    machine use CPU time that the learner needs. Counting starts with the learner's first update.
    Before it, only `at_first` limits the env steps, so that the transitions for which the learner
    waits can be collected. It does nothing in a job of one node, or on a node that also learns.
    Place it before `collect`.

    Context:
        reads: env_step, train_iter
        writes: metrics (pace_wait_s)

    Args:
        env_steps_per_update: Env steps of this collector for each update of the learner. More
            collects more data and learns less from each env step; 4 to 32 for all collectors
            together are usual.
        ahead: Env steps by which the collector may exceed that ratio.
        at_first: Maximum env steps of this collector before the learner's first update, also that
            of a restarted learner. It keeps transitions of the untrained policy from filling the
            replay if the learner begins late.
            The sum over all collectors must reach the transitions for which the learner waits.
        timeout: Seconds to wait for the learner's next update; None waits for ever.

    Raises:
        ConfigError: A setting is out of range.
        DeadlineExceeded: In a step: the learner has made no update for that long.
    """
    check_all(
        positive(env_steps_per_update=env_steps_per_update),
        at_least(0.0, ahead=ahead),
        [] if at_first is None else positive(at_first=at_first),
        [] if timeout is None else at_least(0.0, timeout=timeout),
    )
    router = current_router()
    if at_first is None or is_alone(router):
        at_first = math.inf
    learner = router.subscribe(TRAIN_ITER)
    return _RateLimit(learner, env_steps_per_update, ahead, at_first, timeout)


@dataclass(eq=False)
class _RateLimit:
    __name__ = "rate_limit"

    _learner: Subscription
    _per_update: float
    _ahead: float
    _at_first: float
    _timeout: float | None
    _begun: tuple[int, int] | None = None
    """The learner's updates and this node's env steps when counting began."""
    _waits_since: int | None = None
    """This node's env steps when the wait for the learner's first update began."""
    _seen: dict[int, int] = field(default_factory=dict)
    """The updates of each learner, as last seen."""

    def __call__(self, ctx: Context) -> None:
        env_step = ctx.get("env_step", 0)
        if self._waits_since is None:  # above 0 in a resumed run, where the replay may be empty
            self._waits_since = env_step if ctx.total_step else 0
        # A node that learns makes its updates later in the step, so it would wait for itself.
        if "train_iter" in ctx or self._may_go_on(env_step):
            return
        deadline = Deadline.after(self._timeout)
        began = deadline.clock.now()
        in_time = self._learner.wait_before(
            deadline, lambda: ctx.finish or self._may_go_on(env_step)
        )
        ctx.metrics["pace_wait_s"] = deadline.clock.now() - began
        if not in_time and self._begun is None:
            raise DeadlineExceeded(
                f"This collector is at env step {env_step:,} and waits for the learner's first "
                f"update, which has not come within {self._timeout:g} s. `rate_limit` allows "
                f"{self._at_first:,g} env steps before it: does the learner wait for more than "
                f"all collectors may make (`wait_for`), or for anything else?"
            )
        if not in_time:
            raise DeadlineExceeded(
                f"This collector is at env step {env_step:,} and waits for the learner, which has "
                f"made {self._learner.newest[TRAIN_ITER]:,} updates, and too few more within "
                f"{self._timeout:g} s. Is the learner busy with something else, or gone? "
                f"`rate_limit` allows {self._per_update:g} env steps for each update, and "
                f"{self._ahead:g} ahead."
            )

    def _may_go_on(self, env_step: int) -> bool:
        train_iter = self._learner.newest.get(TRAIN_ITER, 0)
        # Several learners are not at the same update, so only the learner itself can fall behind.
        seen, self._seen = self._seen, {n: v[TRAIN_ITER] for n, v in self._learner.of_nodes.items()}
        is_restarted = any(number < seen.get(node, 0) for node, number in self._seen.items())
        if self._begun is not None and (is_restarted or train_iter < self._begun[0]):
            self._begun, self._waits_since = None, env_step
        if self._begun is None and train_iter > 0:
            self._begun = (train_iter, env_step)
        if self._begun is None:
            return env_step - (self._waits_since or 0) < self._at_first
        learned, collected = train_iter - self._begun[0], env_step - self._begun[1]
        return bool(collected <= self._ahead + self._per_update * learned)
