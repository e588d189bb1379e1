"""The events of one session, in both directions: each arrives exactly once and in order.

Events are numbered per sender and kept until the peer has acknowledged them. A transport loses
messages only when a connection breaks, so unacknowledged events are sent again after the next
handshake, and duplicates are dropped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from ding_lite.errors import CodecError
from ding_lite.parallel.wire.codec import MAX_META_BYTES, Encoded, decode
from ding_lite.parallel.wire.messages import (
    Arrival,
    Dropped,
    Envelope,
    pack_batch,
    read_event,
    read_events,
)

MAX_EVENTS = 100_000
"""Limit of the unacknowledged events of a peer."""
MAX_EVENT_BYTES = 64 * 2**20
"""Limit of their bytes."""
_BATCH = 512
_BATCH_HEAD_BYTES = 5
"""Bytes that msgpack puts before a batch, and before each event in it, at most."""


class SentEvents:
    """The events for a peer that it has not acknowledged, and those that wait to be sent."""

    def __init__(self) -> None:
        self.last_posted = 0
        """The number of the last event."""
        self.waiting: deque[tuple[int, Encoded]] = deque()
        """Events to be sent, with their numbers."""
        self.on_acknowledged: Callable[[int], object] = lambda number: None
        """Called with the number of the last acknowledged event; of the last, if the peer left."""
        self._unacked: deque[tuple[int, Encoded]] = deque()
        self._lasting: list[Encoded] = []
        self._nbytes = 0

    @property
    def has_room(self) -> bool:
        """Whether another event may be posted."""
        return self.num_unacknowledged < MAX_EVENTS and self._nbytes < MAX_EVENT_BYTES

    @property
    def num_unacknowledged(self) -> int:
        """How many events the peer has not acknowledged."""
        return len(self.waiting) + len(self._unacked)

    @property
    def first_kept(self) -> int:
        """The number of the first event that can still be sent."""
        kept = self._unacked or self.waiting
        return kept[0][0] if kept else self.last_posted + 1

    def post(self, event: Encoded, *, lasting: bool = False) -> int:
        """Queue an event, encoded by `encode_event`; return its number.

        A lasting one is sent to every further incarnation of the peer too.
        """
        if lasting:
            self._lasting.append(event)
        self.last_posted += 1
        self.waiting.append((self.last_posted, event))
        self._nbytes += event.nbytes
        return self.last_posted

    def post_lasting(self) -> None:
        """Queue the lasting events once more, for a new incarnation of the peer."""
        for event in self._lasting:
            self.post(event)

    def acknowledge(self, seen: int) -> None:
        """Drop the events up to this number."""
        before = self._nbytes
        while self._unacked and self._unacked[0][0] <= seen:
            self._nbytes -= self._unacked.popleft()[1].nbytes
        while self.waiting and self.waiting[0][0] <= seen:  # seen before the link broke
            self._nbytes -= self.waiting.popleft()[1].nbytes
        if self._nbytes < before:
            self.on_acknowledged(seen)

    def retransmit(self) -> None:
        """Queue unacknowledged events again; the peer drops duplicates."""
        self.waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()

    @property
    def is_single(self) -> bool:
        """Whether one small event waits alone: with others under way it would go in their batch."""
        return len(self.waiting) == 1 and not self._unacked and not self.waiting[0][1].buffers

    def next_batch(self) -> tuple[int, bytes, Sequence[memoryview]]:
        """Take a batch of small events from the queue, or one that has buffers of its own.

        Returns:
            The number of the first, the batch, and the buffers.
        """
        first, encoded = self.waiting[0]
        if encoded.buffers:
            self._unacked.append(self.waiting.popleft())
            return first, pack_batch([encoded.meta]), encoded.buffers
        batch: list[bytes] = []
        room = MAX_META_BYTES - _BATCH_HEAD_BYTES
        while self.waiting and len(batch) < _BATCH and not self.waiting[0][1].buffers:
            room -= len(self.waiting[0][1].meta) + _BATCH_HEAD_BYTES
            if batch and room < 0:
                break
            batch.append(self.waiting[0][1].meta)
            self._unacked.append(self.waiting.popleft())
        return first, pack_batch(batch), ()


class ReceivedEvents:
    """The numbers of the events that a peer has sent."""

    def __init__(self) -> None:
        self.last_seen = 0
        """The number of the last event."""
        self.count = 0
        """How many could be read."""
        self._held_from = math.inf  # the first event that is not to be acknowledged yet

    @property
    def acknowledged(self) -> int:
        """The number up to which events are acknowledged."""
        return int(min(self.last_seen, self._held_from - 1))

    def hold_back(self, number: int) -> None:
        """Acknowledge no event from this number on until `release`."""
        self._held_from = min(self._held_from, number)

    def release(self, up_to: int | None) -> bool:
        """Acknowledge events that were held back, up to this number; None for all.

        Returns:
            Whether there are such.
        """
        held_from = math.inf if up_to is None else up_to
        is_later = held_from > self._held_from
        if is_later:
            self._held_from = held_from
        return is_later

    def begin(self, first_kept: int) -> None:
        """Expect the events of a new incarnation, from this number on."""
        self.last_seen, self._held_from = first_kept - 1, math.inf

    def take(self, envelope: Envelope) -> list[Arrival]:
        """Read a batch of events; those that have come before are dropped.

        Raises:
            CodecError: It is no batch.
        """
        peer, arrivals = envelope.src, list[Arrival]()
        for seq, (meta, buffers) in enumerate(read_events(envelope), start=envelope.seq):
            if seq != self.last_seen + 1:
                # A connection that broke and came back may lose events before either end has
                # noticed; the greeting that follows makes the peer send them again.
                reason = f"Event {seq} of node {peer} came after {self.last_seen}."
                arrivals.append(Dropped(reason, is_fault=False))
                continue
            self.last_seen = seq
            try:
                arrivals.append(read_event(decode(meta, buffers), seq))
                self.count += 1
            except CodecError as error:  # the others of its batch are still good
                arrivals.append(Dropped(f"Event {seq} of node {peer}: {error}"))
        return arrivals
