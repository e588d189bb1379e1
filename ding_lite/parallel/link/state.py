"""The state of one session: a slot for each topic holds the newest value for the peer.

At most one state message is under way in each direction; changes wait in the slots meanwhile. The
receiver gives credit for the next one when it has read a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ding_lite.errors import CodecError
from ding_lite.parallel.memory.segments import Announcement, Published
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import (
    Dropped,
    Envelope,
    StateArrived,
    read_state,
    write_state,
)


class SentState:
    """The slots for a peer, and the message that it has not read yet."""

    def __init__(self) -> None:
        self.count = 0
        """The messages so far."""
        self._slots: dict[str, Any] = {}
        self._changed: dict[str, None] = {}
        self._under_way: tuple[int, dict[str, Published | None]] | None = None

    @property
    def is_due(self) -> bool:
        """Whether a message is to be sent."""
        return bool(self._changed) and self._under_way is None

    @property
    def is_flushed(self) -> bool:
        """Whether the peer has read all values."""
        return not (self._changed or self._under_way)

    def offer(self, values: Mapping[str, Any]) -> None:
        """Put values of topics into their slots: immutable ones as they are, the rest encoded."""
        self._slots.update(values)
        self._changed.update(dict.fromkeys(values))

    def renew(self) -> None:
        """Send all values again, to a new incarnation of the peer."""
        self._changed.update(dict.fromkeys(self._slots))

    def retransmit(self) -> None:
        """Send the values again that were under way when the link broke."""
        if self._under_way is not None:
            self._changed.update(dict.fromkeys(self._under_way[1]))
            self._under_way = None

    def take_credit(self, envelope: Envelope) -> list[Dropped]:
        """Note that the peer has read the message."""
        number = envelope.seq
        if self._under_way is not None and self._under_way[0] == number:
            self._under_way = None
            return []
        # The credit for a message over an earlier link may come after the message was sent again.
        is_late = 0 < number <= self.count
        reason = f"Node {envelope.src} gives credit {number}, not owed."
        return [Dropped(reason, is_fault=not is_late)]

    def next_message(self, *, shares_memory: bool) -> tuple[int, Encoded]:
        """Return a number and the body with the changed slots: with all, if within the limits."""
        keys, body = list(self._changed), None
        while body is None:
            slots = {key: self._slots[key] for key in keys}
            try:
                body = write_state(slots, shares_memory=shares_memory)
            except CodecError:  # too much for one message: each value by itself is not
                if len(keys) == 1:
                    del self._changed[keys[0]]  # or each tick would raise, and send nothing
                    raise
                keys = keys[: len(keys) // 2]
        for key in keys:
            del self._changed[key]

        self.count += 1
        # Published memory may not be written over before the peer has read it.
        published = {k: v if isinstance(v, Published) else None for k, v in slots.items()}
        self._under_way = self.count, published
        return self.count, body


class ReceivedState:
    """The state messages of a peer, and the credit that it is owed."""

    def __init__(self) -> None:
        self.count = 0
        """The messages so far."""
        self.at: float | None = None
        """When the last one came."""
        self.credit_due = 0
        """The number of the message for which credit is to be sent; 0 for none."""

    def take(self, envelope: Envelope, now: float, *, shares_memory: bool) -> StateArrived:
        """Read a message; credit for values that are only announced is due once they are read.

        Raises:
            CodecError: It is malformed, or announces values in memory that is not shared.
        """
        self.credit_due = envelope.seq
        values = read_state(envelope)
        self.count += 1
        self.at = now
        if not any(isinstance(value, Announcement) for value in values.values()):
            return StateArrived(values, number=envelope.seq)
        if not shares_memory:
            raise CodecError("A state message announces what lies in memory that is not shared.")
        self.credit_due = 0
        return StateArrived(values, envelope.seq, envelope.seq)
