"""Keep the events and values of a session until the peer has acknowledged them.

Events are numbered per sender and kept until the peer has acknowledged them. A transport loses
messages only when a connection breaks, so unacknowledged events are sent again after the next
handshake, and duplicates are dropped: each arrives exactly once and in order.

A slot for each topic holds its newest value. At most one state message is under way in each
direction, and changes wait in the slots meanwhile. The receiver gives credit for the next message
when it has read one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ding_lite.errors import CodecError
from ding_lite.parallel.memory.segments import Published
from ding_lite.parallel.wire.codec import MAX_META_BYTES, Encoded, encode
from ding_lite.parallel.wire.messages import Dropped, Envelope, pack_batch

MAX_EVENTS = 100_000
"""Limit of the unacknowledged events of a peer."""
MAX_EVENT_BYTES = 64 * 2**20
"""Limit of the bytes of the unacknowledged events of a peer."""
_BATCH = 512
_BATCH_HEAD_BYTES = 5
"""The most bytes that msgpack puts before a batch, and before each event in it."""


class _NumberedEvent(msgspec.Struct):
    number: int
    encoded: Encoded
    nbytes: int


class SentEvents:
    """The events that a peer has not acknowledged, sent or waiting to be sent."""

    def __init__(self) -> None:
        self.last_posted = 0
        self.waiting: deque[_NumberedEvent] = deque()
        self.on_acknowledged: Callable[[int], object] | None = None
        """Called with the number of the last acknowledged event; of the last if the peer left."""
        self._unacked: deque[_NumberedEvent] = deque()
        """Events that were sent; they are older than those that wait."""
        self._nbytes = 0

    @property
    def has_room(self) -> bool:
        return self.num_unacknowledged < MAX_EVENTS and self._nbytes < MAX_EVENT_BYTES

    @property
    def num_sent(self) -> int:
        """The number of events that were sent, and need not be sent again so far."""
        return self.last_posted - len(self.waiting)

    @property
    def num_unacknowledged(self) -> int:
        return len(self.waiting) + len(self._unacked)

    @property
    def first_kept(self) -> int:
        """The number of the first event that can still be sent."""
        kept = self._unacked or self.waiting
        return kept[0].number if kept else self.last_posted + 1

    def post(self, event: Encoded) -> int:
        """Queue an encoded event; return its number."""
        self.last_posted += 1
        nbytes = event.nbytes if event.buffers else len(event.meta)
        self.waiting.append(_NumberedEvent(self.last_posted, event, nbytes))
        self._nbytes += nbytes
        return self.last_posted

    def acknowledge(self, seen: int) -> None:
        before = self._nbytes
        for kept in (self._unacked, self.waiting):  # some wait again that were seen on an old link
            while kept and kept[0].number <= seen:
                self._nbytes -= kept.popleft().nbytes
        if self.on_acknowledged and self._nbytes < before:
            self.on_acknowledged(seen)

    def retransmit(self) -> None:
        """Queue unacknowledged events again; the peer drops duplicates."""
        self.waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()

    @property
    def may_go_alone(self) -> bool:
        """Whether the first waiting event need not join a batch of others."""
        return not (self._unacked or self.waiting[0].encoded.buffers)

    def next_batch(self) -> tuple[int, bytes, Sequence[memoryview]]:
        """Take a batch of small events, or one with buffers, and its first number."""
        first = self.waiting[0]
        if first.encoded.buffers:
            self._unacked.append(self.waiting.popleft())
            return first.number, pack_batch([first.encoded.meta]), first.encoded.buffers
        batch: list[bytes] = []
        room = MAX_META_BYTES - _BATCH_HEAD_BYTES
        while self.waiting and len(batch) < _BATCH:
            event = self.waiting[0].encoded
            room -= len(event.meta) + _BATCH_HEAD_BYTES
            if event.buffers or (batch and room < 0):
                break
            batch.append(event.meta)
            self._unacked.append(self.waiting.popleft())
        return first.number, pack_batch(batch), ()


class SentState:
    """The values for a peer, by topic, and the message that it has not read yet."""

    def __init__(self) -> None:
        self.count = 0
        self._slots: dict[str, Any] = {}
        self._changed: dict[str, None] = {}
        self._under_way: tuple[int, dict[str, Published | None]] | None = None

    @property
    def is_due(self) -> bool:
        return bool(self._changed) and self._under_way is None

    @property
    def is_flushed(self) -> bool:
        return not (self._changed or self._under_way)

    def offer(self, values: Mapping[str, Any]) -> None:
        """Put values of topics into their slots: immutable ones unchanged, others encoded."""
        self._slots.update(values)
        self._changed.update(dict.fromkeys(values))

    def renew(self) -> None:
        """Send all values again, for a new incarnation of the peer."""
        self._changed.update(dict.fromkeys(self._slots))

    def retransmit(self) -> None:
        """Send the values again that were under way when the link broke."""
        if self._under_way is not None:
            self._changed.update(dict.fromkeys(self._under_way[1]))
            self._under_way = None

    def take_credit(self, envelope: Envelope) -> list[Dropped]:
        number = envelope.seq
        if self._under_way is not None and self._under_way[0] == number:
            self._under_way = None
            return []
        # The credit for a message over an earlier link may come after the message was sent again.
        is_late = 0 < number <= self.count
        reason = f"Node {envelope.src} gives credit {number}, not owed."
        return [Dropped(reason, is_fault=not is_late)]

    def next_message(self, *, shares_memory: bool) -> tuple[int, Encoded]:
        """Return a number and a body of the changed slots: all, if within the limits."""
        keys, body = list(self._changed), None
        while body is None:
            slots = {key: self._slots[key] for key in keys}
            try:
                body = encode(
                    {k: _form(slot, shares_memory) for k, slot in slots.items()}, name="state"
                )
            except CodecError:  # too large together; each value alone is not
                if len(keys) == 1:
                    del self._changed[keys[0]]  # otherwise each tick would raise, and send nothing
                    raise
                keys = keys[: len(keys) // 2]
        for key in keys:
            del self._changed[key]

        self.count += 1
        # Published memory must not be overwritten before the peer has read it.
        published = {k: v if isinstance(v, Published) else None for k, v in slots.items()}
        self._under_way = self.count, published
        return self.count, body


def _form(slot: Any, shares_memory: bool) -> Any:
    """Return the form in which a slot is sent: an announcement if the peer shares memory."""
    if isinstance(slot, Published):
        return slot.announcement if shares_memory else slot.encoded
    return slot
