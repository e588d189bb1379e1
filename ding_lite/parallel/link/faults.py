"""Dropped messages that break the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ding_lite.clock import Clock
from ding_lite.errors import printable
from ding_lite.log import Throttle
from ding_lite.parallel.transport.base import Link

logger = logging.getLogger(__name__)

MAX_FAULTS = 1_000
"""Faulty messages of one node that are dropped before its link is dropped. Its program is broken,
or it has been taken over, and reading its messages takes time that other nodes need."""
_MAX_SENDERS = 1_024


class DroppedMessages:
    """Counts dropped messages, warns of them, and drops the link of a node that sends too many."""

    def __init__(
        self, clock: Clock, *, owner: Callable[[Link], int | None], drop: Callable[[Link], None]
    ) -> None:
        self.count = 0
        self._throttle = Throttle(logger, clock)
        self._owner = owner
        self._drop = drop
        self._faults: dict[Link | int, int] = {}
        """Dropped messages that were a fault of their sender, and not merely late, by sender."""

    def add(self, reason: str, link: Link | None = None) -> None:
        """Count a dropped message, and log some; a given `link` is that of a sender at fault."""
        self.count += 1
        if link is not None:
            self._count_fault(link)
        self._throttle.every(
            10.0,
            logging.WARNING,
            "rejected",  # not the reason: an attacker could fill the memory with reasons
            "dropped a message (%d in all): %s",
            self.count,
            printable(reason),
        )

    def _count_fault(self, link: Link) -> None:
        owner = self._owner(link)
        sender = link if owner is None else owner
        faults = self._faults.pop(sender, 0) + 1
        if faults > MAX_FAULTS:
            logger.warning(
                "dropped the link to %s after %d malformed messages",
                "a node" if owner is None else f"node {owner}",
                faults,
            )
            self._drop(link)
            return
        self._faults[sender] = faults  # as the newest
        if len(self._faults) > _MAX_SENDERS:
            del self._faults[next(iter(self._faults))]
