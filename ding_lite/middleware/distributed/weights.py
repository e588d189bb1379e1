"""Publish the weights of a learner, and fetch them on other nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from ding_lite.clock import Deadline
from ding_lite.distributed.half_precision import HalfPrecision
from ding_lite.errors import DeadlineExceeded
from ding_lite.middleware.checks import Period, check_has
from ding_lite.rl.policies.base import limit_torch_threads
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import Router, current_router, is_alone
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings import at_least, check_all, whole

ANNOUNCED, PUBLISHED = "weights_announced", "weights_published"
"""The ctx keys: the newest version, and the newest weights with their version."""
WAIT_S = 60.0
"""Seconds that `fetch_weights` waits for weights that are new enough."""


def publish_weights(policy: Policy, *, every: int = 1, half: bool = False) -> Middleware:
    """Offer a policy's weights to the connected nodes, which `fetch_weights` loads them on.

    The newest wins: a node that is slow to fetch skips versions, and neither makes this one
    wait nor takes more memory. The first version is published when the run begins, so that
    all nodes start with the same weights; then the versions count up.

    A version is new where `train_iter` is; without that key each is.

    Context:
        reads: total_step, train_iter
        writes: weights_version
        keeps: weights_version

    Args:
        policy: The one that learns.
        every: Steps of the pipeline from one version to the next. 1 keeps collectors up to date;
            more saves the copies of a large policy.
        half: Send 16 bits a number: half the bytes, and about three digits of each.

    Raises:
        ConfigError: `policy` is no policy, or a setting is out of range.
    """
    check_has(policy, "weights", "policy")
    period = Period(every)
    limit_torch_threads()  # also for a policy that does not do so itself
    return _Publish(current_router(), policy, period, half=half)


class _Publish:
    __name__ = "publish_weights"

    def __init__(self, router: Router, policy: Policy, period: Period, *, half: bool) -> None:
        self._router = router
        self._policy = policy
        self._period = period
        self._half_precision = HalfPrecision() if half else None
        self._version = 0
        self._train_iter: int | None = None
        # Tells the versions of this process from those of one that died and was restarted.
        self._life = int.from_bytes(os.urandom(6), "little")

    def __enter__(self) -> Self:
        self._publish()
        return self

    def __call__(self, ctx: Context) -> None:
        train_iter = ctx.get("train_iter")
        if self._period.is_due(ctx) and (train_iter is None or train_iter != self._train_iter):
            self._train_iter = train_iter
            self._version += 1
            self._publish()
        ctx.weights_version = self._version
        ctx.keep("weights_version")

    def __exit__(self, *error: object) -> None:
        """Leave what was published where it is."""

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the newest version."""
        return {"version": self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self._version = int(state["version"])

    def _publish(self) -> None:
        if not self._router.has_audience:
            return
        weights = self._policy.weights()
        if self._half_precision is not None:
            # What normalises observations has sums too large for 16 bits.
            weights = self._half_precision(weights, but=("norm.",))
        version = [self._life, self._version]
        self._router.publish_ctx(
            {ANNOUNCED: version, PUBLISHED: {"version": version, "weights": weights}}
        )


def fetch_weights(
    policy: Policy,
    *,
    every: int = 1,
    max_staleness: int | None = None,
    wait_for_new: bool = False,
    timeout: float | None = WAIT_S,
) -> Middleware:
    """Load the newest weights that another node has published.

    A version is loaded once. Before the first version arrives the policy keeps its own weights;
    in a job of one node it always does.

    Context:
        reads: total_step, weights_version
        writes: weights_version, metrics (weights_behind)
        keeps: weights_version

    Args:
        policy: The one that acts.
        every: Steps of the pipeline from one look to the next.
        max_staleness: How many versions these weights may be behind what has been announced:
            beyond that it loads newer ones before their time, and waits for them where they are
            still on their way. 0 always acts by the newest; None never waits.
        wait_for_new: Wait, in each such step, for a version that is not loaded yet. For a node
            that evaluates: it has nothing to do with the same weights twice.
        timeout: Seconds that such a wait may take; None waits for ever.

    Raises:
        ConfigError: `policy` is no policy, or a setting is out of range.
        DeadlineExceeded: In a step: the weights waited for have not arrived in time.
        ShapeError: In a step: they are of a network of another size.
    """
    check_has(policy, "load_weights", "policy")
    check_all(
        whole(1, every=every),
        [] if max_staleness is None else whole(0, max_staleness=max_staleness),
        [] if timeout is None else at_least(0.0, timeout=timeout),
    )
    limit_torch_threads()  # also for a policy that does not do so itself
    return _Fetch(current_router(), policy, every, max_staleness, wait_for_new, timeout)


class _Fetch:
    __name__ = "fetch_weights"

    def __init__(
        self,
        router: Router,
        policy: Policy,
        every: int,
        max_staleness: int | None,
        wait_for_new: bool,
        timeout: float | None,
    ) -> None:
        self._router = router
        self._watch = router.watch(ANNOUNCED, PUBLISHED)
        self._policy = policy
        self._every = every
        self._max_staleness = max_staleness
        self._wait_for_new = wait_for_new
        self._timeout = timeout
        self._loaded: list[int] = []

    def __call__(self, ctx: Context) -> None:
        looks = ctx.total_step % self._every == 0
        if looks and self._wait_for_new and not is_alone(self._router):
            self._wait_until_new(ctx)
        newest, limit = self._watch.newest, self._max_staleness
        if ANNOUNCED not in newest:
            ctx.setdefault("weights_version", 0)
            ctx.keep("weights_version")
            return
        if looks or self._is_too_old(newest, self._loaded):
            if limit is not None and self._is_too_old(newest, _version_in(newest)):
                newest = self._wait(ctx)
            self._load(newest)
        if self._loaded:
            ctx.weights_version = self._loaded[1]
            ctx.keep("weights_version")
        ctx.metrics["weights_behind"] = _behind(newest, self._loaded) or 0

    def _wait_until_new(self, ctx: Context) -> None:
        in_time = self._watch.wait(
            lambda newest: _version_in(newest) not in ([], self._loaded),
            Deadline.after(self._timeout),
            until=lambda: ctx.finish,
        )
        if not in_time:
            raise DeadlineExceeded(
                f"No version of the weights newer than {self._loaded[1:] or 'none'} has arrived "
                f"within {self._timeout:g} s. Use `publish_weights` on the node that trains, or "
                f"raise `timeout`."
            )

    def _is_too_old(self, newest: Mapping[str, Any], version: list[int]) -> bool:
        if self._max_staleness is None:
            return False
        behind = _behind(newest, version)
        return behind is None or behind > self._max_staleness

    def _wait(self, ctx: Context) -> Mapping[str, Any]:
        in_time = self._watch.wait(
            lambda newest: not self._is_too_old(newest, _version_in(newest)),
            Deadline.after(self._timeout),
            until=lambda: ctx.finish,
        )
        newest = self._watch.newest
        if not in_time:
            raise DeadlineExceeded(
                f"Version {newest[ANNOUNCED][1]} of the weights was announced, and only "
                f"{_version_in(newest)[1:] or 'none'} has come within {self._timeout:g} s; "
                f"`max_staleness` is {self._max_staleness}. Publish less often "
                f"(`publish_weights(every=...)`), or allow them to be older."
            )
        return newest

    def _load(self, newest: Mapping[str, Any]) -> None:
        version = _version_in(newest)
        if version and version != self._loaded:
            self._policy.load_weights(newest[PUBLISHED]["weights"])
            self._loaded = version


def _version_in(newest: Mapping[str, Any]) -> list[int]:
    """Return the incarnation and the number of the weights that have come, if any."""
    if PUBLISHED not in newest:
        return []
    version: list[int] = newest[PUBLISHED]["version"]
    return version


def _behind(newest: Mapping[str, Any], version: list[int]) -> int | None:
    """Count the versions from one to what was announced; None where they cannot be compared."""
    incarnation, announced = newest[ANNOUNCED]
    if not version or version[0] != incarnation:
        return None
    return max(0, int(announced) - version[1])
