"""Send experience from collectors to learners, each item to exactly one of them.

A sender waits for room at the receivers, and a receiver waits for items, so that no queue grows
without limit. Both stop waiting when the job ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK
from ding_lite.errors import ConfigError, kind_of
from ding_lite.runtime.context import Context
from ding_lite.runtime.messaging.labels import check_patterns
from ding_lite.runtime.messaging.router import Router, current_router, is_alone
from ding_lite.runtime.messaging.streams import Item
from ding_lite.runtime.middleware import Middleware
from ding_lite.settings.rules import at_least as at_least_fault, check_all, whole

WAIT_S = 60.0
"""Seconds that `send` and `receive` wait by default."""


def send(
    key: str,
    *,
    to: str | Iterable[str],
    in_flight: int = 2,
    timeout: float | None = WAIT_S,
) -> Middleware:
    """Move the value of a ctx key to other nodes: each element of a list to exactly one of them.

    It waits while every receiver has `in_flight` items that it has not received from the stream.
    This limits how far a collector is ahead of the learners, and the memory of both. Items that
    were pending at a node that died are sent to another node; those of a disconnected node are kept
    for it for two minutes. The key is deleted from the ctx. When the job ends, items without a
    receiver that has room are dropped.

    Context:
        reads: trajectories
        writes: trajectories, metrics (send_wait_s)

    Args:
        key: The ctx key, usually `trajectories`, which is also the name of the stream. A value
            that is not a list is one item.
        to: Patterns of the labels of the receivers. This node may be one of them.
        in_flight: Maximum number of pending items of each receiver. More hides more of the latency,
            and collects with older weights; 2 is usual.
        timeout: Seconds to wait for a receiver with room; None waits for ever.

    Raises:
        ConfigError: A setting is out of range.
        LabelError: In a step: no node of the job has such a label.
        DeadlineExceeded: In a step: no receiver has received an item for that long.
    """
    _check(key, timeout)
    check_all(whole(1, in_flight=in_flight))
    router, patterns = current_router(), check_patterns(to, of_receivers=True)

    def _send(ctx: Context) -> None:
        value = ctx[key]
        items = value if isinstance(value, list) else [value]
        del ctx[key]

        # Alone, the receiver is this node, later in the step: it makes no room during this call.
        room = max(in_flight, 2 * len(items)) if is_alone(router) else in_flight
        began = SYSTEM_CLOCK.now()
        for item in items:
            if not router.send(
                key, item, to=patterns, in_flight=room, timeout=timeout, until=lambda: ctx.finish
            ):
                break
        ctx.metrics["send_wait_s"] = SYSTEM_CLOCK.now() - began

    return _send


def receive(
    stream: str,
    *,
    at_least: int = 1,
    at_most: int | None = None,
    timeout: float | None = WAIT_S,
) -> Middleware:
    """Wait for items that other nodes send, and put a list of them on the ctx.

    It waits until there are `at_least` items, and also takes further items that have arrived. If
    the job ends meanwhile, the list contains the items so far. A node to which only it itself has
    sent so far, as in a job of one node, does not wait: the list is empty in steps in which there
    are too few, such as the first one if `send` follows.

    Context:
        reads: weights_version
        writes: trajectories, metrics (received, receive_wait_s, staleness)

    Args:
        stream: The name of the stream and the ctx key of the list, as in `send`; usually
            `trajectories`.
        at_least: Minimum number of items in a step. More makes less noisy updates from older data.
        at_most: Maximum number of items in a step; four times `at_least` by default.
        timeout: Seconds to wait for the next item; None waits for ever.

    Raises:
        ConfigError: A setting is out of range, or `at_most` is below `at_least`.
        DeadlineExceeded: In a step: no item has arrived for that long.
    """
    _check(stream, timeout)
    check_all(whole(1, at_least=at_least))
    most = 4 * at_least if at_most is None else at_most
    check_all(whole(1, at_most=most))
    if most < at_least:
        raise ConfigError(
            f"`at_most` is {most}, `at_least` is {at_least}: a step would wait for items that it "
            f"may not take. Give an `at_most` of {at_least} or more."
        )
    return _Receive(current_router(), stream, at_least, most, timeout)


@dataclass(eq=False)
class _Receive:
    __name__ = "receive"

    router: Router
    stream: str
    at_least: int
    at_most: int
    timeout: float | None
    taken: list[Any] = field(default_factory=list)
    senders: set[int] = field(default_factory=set)
    has_begun: bool = False

    def __call__(self, ctx: Context) -> None:
        began, taken = SYSTEM_CLOCK.now(), self.taken
        while len(taken) < self.at_least and (item := self._next(ctx)) is not None:
            self._keep(item)
        while len(taken) < self.at_most and (item := self._at_hand()) is not None:
            self._keep(item)

        is_enough = len(taken) >= self.at_least or ctx.finish
        self.has_begun = True
        ctx[self.stream] = taken if is_enough else []
        if is_enough:
            self.taken = []
            ctx.metrics["received"] = len(taken)
            self._report_staleness(ctx, taken)
        ctx.metrics["receive_wait_s"] = SYSTEM_CLOCK.now() - began

    def _next(self, ctx: Context) -> Item | None:
        item = self._at_hand()
        if item is not None:
            return item
        # Its own next item is sent in a later step; the first one, if `send` follows, in this one.
        is_first = not self.has_begun and is_alone(self.router)
        if is_first or self.senders == {self.router.node_id}:
            return None
        return self.router.receive(self.stream, timeout=self.timeout, until=lambda: ctx.finish)

    def _at_hand(self) -> Item | None:
        return self.router.receive(self.stream, timeout=None, until=lambda: True)

    def _keep(self, item: Item) -> None:
        self.senders.add(item.node_id)
        self.taken.append(item.value)

    @staticmethod
    def _report_staleness(ctx: Context, taken: list[Any]) -> None:
        """Report the mean age, in versions, of the weights that have collected the items."""
        newest = ctx.get("weights_version", -1)
        ages = [newest - item.version for item in taken if hasattr(item, "version")]
        if known := [age for age in ages if age >= 0]:  # others are of a former learner
            ctx.metrics["staleness"] = sum(known) / len(known)


def _check(key: object, timeout: float | None) -> None:
    if not isinstance(key, str) or not key:
        raise ConfigError(
            f"A stream is named after a ctx key, and {key!r}, {kind_of(key)}, is none. "
            f'Write `send("trajectories", to="learner")`.'
        )
    if timeout is not None:
        check_all(at_least_fault(0.0, timeout=timeout))
