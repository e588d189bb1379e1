"""Messages that were none: counted, told of now and then, and held against who sends too many."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ding_lite.clock import Clock
from ding_lite.log import Throttle
from ding_lite.parallel.transport.base import Link

logger = logging.getLogger(__name__)

MAX_FAULTS = 1_000
"""How many messages of one node may be dropped before its link is: its program is broken, or it
has been taken over, and reading what it sends takes time that others need."""
_MOST_CULPRITS = 1_024


class Rejections:
    """What a node has dropped of what came to it.

    Args:
        clock: What the pauses between warnings are measured by.
        owner: Tells which node a link has proved to belong to, if any.
        drop: Ends a link.
    """

    def __init__(
        self, clock: Clock, *, owner: Callable[[Link], int | None], drop: Callable[[Link], None]
    ) -> None:
        self.count = 0
        """Messages that were dropped because they were none, or not for this node."""
        self.num_faults = 0
        """Those of them that were a fault of their sender, and did not merely come too late."""
        self._throttle = Throttle(logger, clock)
        self._owner = owner
        self._drop = drop
        self._faults: dict[Link | int, int] = {}

    def add(self, reason: str, link: Link | None = None) -> None:
        """Count a message that was dropped, and say so now and then.

        Args:
            reason: What was wrong with it.
            link: Where it came from; after too many from there the link is dropped as well.
        """
        self.count += 1
        if link is not None:
            self.num_faults += 1
            self._count_fault(link)
        self._throttle.every(
            10.0,
            logging.WARNING,
            "rejected",  # not the reason: who sends rubbish would fill the memory with reasons
            "dropped a message (%d in all): %s",
            self.count,
            reason,
        )

    def _count_fault(self, link: Link) -> None:
        owner = self._owner(link)
        culprit = link if owner is None else owner
        faults = self._faults.pop(culprit, 0) + 1
        if faults > MAX_FAULTS:
            logger.warning(
                "dropped the link to %s after %d messages that were none",
                "a node" if owner is None else f"node {owner}",
                faults,
            )
            self._drop(link)
            return
        self._faults[culprit] = faults  # as the newest
        if len(self._faults) > _MOST_CULPRITS:
            del self._faults[next(iter(self._faults))]
