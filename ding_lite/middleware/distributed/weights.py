"""Publish the weights of a learner, and fetch them on other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ding_lite.distributed.model_server import ModelServer, Number, topics_of
from ding_lite.errors import DeadlineExceeded
from ding_lite.middleware.checks import Period, check_has
from ding_lite.rl.protocols import Policy
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.router import Router, current_router, is_alone
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least, check_all, whole

SERVER = "ding_lite.policy"
"""The name of the model server of the weights."""
WAIT_S = 60.0
"""Seconds that `fetch_weights` waits for weights that are new enough."""


def publish_weights(policy: Policy, *, every: int = 1, half: bool = False) -> Middleware:
    """Publish a policy's weights to the connected nodes, where `fetch_weights` loads them.

    Only the newest version is kept: a slow node skips versions, and does not block this node or
    increase its memory. The first version is published when the run begins, so that all nodes start
    with the same weights. Versions count up from 0.

    A new version is published only if `train_iter` has changed; without that key it always is.

    Context:
        reads: total_step, train_iter
        writes: weights_version
        keeps: weights_version

    Args:
        policy: The policy that learns.
        every: Steps of the pipeline from one version to the next. 1 keeps collectors up to date;
            more saves copies of a large policy.
        half: Send weights as 16-bit numbers: half the bytes, and about three digits of precision.

    Raises:
        ConfigError: `policy` is no policy, or a setting is out of range; or, in a step, this node
            publishes another policy too.
    """
    check_has(policy, "weights", "policy")
    return _Publish(current_router(), policy, Period(every), half)


@dataclass(eq=False)
class _Publish:
    __name__ = "publish_weights"

    _router: Router
    _policy: Policy
    _period: Period
    _half: bool
    _server: ModelServer = field(default_factory=lambda: ModelServer(name=SERVER))
    _version: int = 0
    _train_iter: int | None = None

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
        """Do nothing: the published weights remain available."""

    def state_dict(self) -> dict[str, Any]:
        return {"version": self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._version = int(state["version"])

    def _publish(self) -> None:
        if not self._router.has_audience:
            return
        self._server.publish(self._policy.weights(), half=self._half, version=self._version)


def fetch_weights(
    policy: Policy,
    *,
    every: int = 1,
    max_staleness: int | None = None,
    wait_for_new: bool = False,
    timeout: float | None = WAIT_S,
) -> Middleware:
    """Load the newest weights that another node has published.

    Each version is loaded once. The policy keeps its own weights until the first version arrives,
    and always in a job of one node, or on the node that publishes.

    Context:
        reads: total_step, weights_version
        writes: weights_version, metrics (weights_behind)
        keeps: weights_version

    Args:
        policy: The policy that acts.
        every: Steps of the pipeline from one check for a new version to the next.
        max_staleness: Maximum number of versions by which the weights may be behind the newest
            announced version. Beyond it newer weights are loaded between checks, and waited for if
            they have not arrived yet. 0 always acts with the newest version; None never waits.
        wait_for_new: Wait, at each check, for a version that is not loaded yet. For a node that
            evaluates, which needs each version only once.
        timeout: Maximum seconds of a wait; None waits for ever.

    Raises:
        ConfigError: `policy` is no policy, or a setting is out of range.
        DeadlineExceeded: In a step: the expected weights have not arrived in time.
        ShapeError: In a step: the weights are of a network of another size.
    """
    check_has(policy, "load_weights", "policy")
    check_all(
        whole(1, every=every),
        [] if max_staleness is None else whole(0, max_staleness=max_staleness),
        [] if timeout is None else at_least(0.0, timeout=timeout),
    )
    return _Fetch(current_router(), policy, every, max_staleness, wait_for_new, timeout)


@dataclass(eq=False)
class _Fetch:
    __name__ = "fetch_weights"

    router: Router
    policy: Policy
    every: int
    max_staleness: int | None
    wait_for_new: bool
    timeout: float | None
    server: ModelServer = field(default_factory=lambda: ModelServer(name=SERVER))

    def __call__(self, ctx: Context) -> None:
        server = self.server
        is_due = ctx.total_step % self.every == 0
        if is_due and self.wait_for_new and not (is_alone(self.router) or self._publishes()):
            self._wait_until_new(ctx)
        if server.announced is not None and (is_due or self._is_too_old(server.fetched)):
            if self._is_too_old(server.arrived):
                self._wait_until_young(ctx)
            if server.arrived != server.fetched and (model := server.fetch()) is not None:
                self.policy.load_weights(model.weights)
        if server.fetched is None:
            ctx.setdefault("weights_version", 0)
        else:
            ctx.weights_version = server.fetched.version
            ctx.metrics["weights_behind"] = server.num_behind(server.fetched) or 0
        ctx.keep("weights_version")

    def _publishes(self) -> bool:
        """Return whether the expected weights are those of this node."""
        return self.router.published(topics_of(SERVER)[0]) is not None

    def _wait_until_new(self, ctx: Context) -> None:
        server = self.server
        if not self._wait(lambda: server.arrived != server.fetched, ctx):
            raise DeadlineExceeded(
                f"No version of the weights newer than {_name_of(server.fetched)} has arrived "
                f"within {self.timeout:g} s. Use `publish_weights` on the node that trains, or "
                f"raise `timeout`."
            )

    def _wait_until_young(self, ctx: Context) -> None:
        server = self.server
        if not self._wait(lambda: not self._is_too_old(server.arrived), ctx):
            raise DeadlineExceeded(
                f"Version {_name_of(server.announced)} of the weights was announced, and only "
                f"{_name_of(server.arrived)} has come within {self.timeout:g} s; "
                f"`max_staleness` is {self.max_staleness}. Publish less often "
                f"(`publish_weights(every=...)`), or allow them to be older."
            )

    def _wait(self, is_met: Callable[[], bool], ctx: Context) -> bool:
        return self.server.wait_for(is_met, timeout=self.timeout, until=lambda: ctx.finish)

    def _is_too_old(self, number: Number | None) -> bool:
        if self.max_staleness is None:
            return False
        behind = self.server.num_behind(number)
        return behind is None or behind > self.max_staleness


def _name_of(number: Number | None) -> str:
    return "none" if number is None else str(number.version)
