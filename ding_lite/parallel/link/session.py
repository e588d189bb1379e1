"""Reliable messages to one peer: handshake, order, acknowledgements, and the newest state.

A session is one node's side of a link. Events arrive exactly once and in order; for each topic a
slot holds the newest value. It takes envelopes and makes envelopes, and `Links` moves them: so a
test can lose, delay and repeat messages at will.

Events are numbered per sender and kept until the peer has acknowledged them. A transport loses
messages only when a connection breaks, so unacknowledged events are sent again after the next
handshake, and duplicates are dropped. At most one state message is under way; changes wait in the
slots meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ding_lite.errors import CodecError
from ding_lite.parallel.memory.segments import Announcement, Published
from ding_lite.parallel.transport.base import Lane
from ding_lite.parallel.wire.codec import MAX_META_BYTES, Encoded, decode, encode
from ding_lite.parallel.wire.envelope import Envelope, Kind, pack_batch
from ding_lite.parallel.wire.messages import (
    Arrival,
    Dropped,
    Identity,
    Joined,
    Left,
    StateArrived,
    read_call,
    read_event,
    read_events,
    read_greeting,
    read_reply,
    read_state,
    write_state,
)

HEARTBEAT_S = 1.0
"""Seconds without another message after which a heartbeat is sent."""
SILENCE_S = 3.0
"""Seconds without a message after which a peer is lost."""
ACK_S = 0.01
"""Seconds after which events are acknowledged, if no other message has done so."""
MAX_EVENTS = 100_000
"""Limit of the unacknowledged events of a peer."""
MAX_EVENT_BYTES = 64 * 2**20
"""Limit of their bytes."""
BULK_BYTES = 64 * 2**10
"""Calls and answers from this size on go by the lane for bulk."""
_BATCH = 512
_BATCH_HEAD_BYTES = 5
"""Bytes that msgpack puts before a batch, and before each event in it, at most."""
_UNORDERED = (Kind.STATE, Kind.CALL, Kind.REPLY)
"""Kinds that may arrive late, from before a greeting: they acknowledge nothing."""


@dataclass(frozen=True)
class Traffic:
    """Counts of the messages between two nodes."""

    events_out: int
    events_in: int
    ctx_out: int
    ctx_in: int
    unacknowledged: int
    heard_s: float | None
    """Seconds since the last message of the peer; None if there was none."""
    ctx_s: float | None
    """Seconds since its newest values of topics."""


class Session:
    """One node's side of a link to a peer.

    Args:
        me: The identity of this node.
        peer_id: The peer.
    """

    def __init__(self, me: Identity, peer_id: int) -> None:
        self.peer_id = peer_id
        self.peer: Identity | None = None
        """The identity of the peer, once it has greeted."""
        self.is_open = False
        """Whether both have greeted each other on the present link."""
        self.has_left = False
        """Whether the peer has said good-bye."""
        self.awaits_ack = False
        """Whether it has, and may not have received the good-bye of this node yet."""
        self.on_acknowledged: Callable[[int], object] = lambda number: None
        """Called with the number of the last acknowledged event; of the last, if the peer left."""
        self._me = me
        self._former_incarnations: set[int] = set()
        self._received_at = 0.0
        self._sent_at = 0.0

        self._last_posted = 0
        self._waiting: deque[tuple[int, Encoded]] = deque()
        self._unacked: deque[tuple[int, Encoded]] = deque()
        self._lasting: list[Encoded] = []
        self._event_bytes = 0
        self._last_seen = 0
        self._held_from = math.inf  # the first event that is not to be acknowledged yet
        self._ack_at = math.inf  # at the latest; inf owes none
        self._is_urgent = False

        self._calls: deque[Envelope] = deque()
        self._num_calls_out = 0
        self._num_calls_in = 0
        self._calls_at_bye: int | None = None
        self._peer_has_greeted = False
        self._slots: dict[str, Any] = {}
        self._changed: dict[str, None] = {}
        self._under_way: tuple[int, dict[str, Published | None]] | None = None
        self._num_states = 0
        self._credit_due = 0
        self._num_events_taken = 0
        self._num_states_taken = 0
        self._ctx_at: float | None = None

    # -- to be sent ------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another event may be posted."""
        return self.num_unacknowledged < MAX_EVENTS and self._event_bytes < MAX_EVENT_BYTES

    @property
    def has_waiting(self) -> bool:
        """Whether events, calls or answers wait to be sent."""
        return bool(self._waiting or self._calls)

    def was_replaced(self, incarnation: int) -> bool:
        """Return whether this incarnation of the peer was replaced by a later one."""
        return incarnation in self._former_incarnations

    @property
    def num_unacknowledged(self) -> int:
        """How many events the peer has not acknowledged."""
        return len(self._waiting) + len(self._unacked)

    @property
    def num_acknowledged(self) -> int:
        """How many events it has acknowledged."""
        return self._last_posted - self.num_unacknowledged

    @property
    def received_at(self) -> float:
        """When the last message of the peer was received."""
        return self._received_at

    @property
    def is_flushed(self) -> bool:
        """Whether all was sent and acknowledged, or the peer has left."""
        if self.has_left:
            return True
        is_sent = not (self._waiting or self._unacked or self._calls)
        return is_sent and not (self._changed or self._under_way)

    def traffic(self, now: float) -> Traffic:
        """Return counts of the messages so far."""
        return Traffic(
            events_out=self._last_posted - len(self._waiting),
            events_in=self._num_events_taken,
            ctx_out=self._num_states,
            ctx_in=self._num_states_taken,
            unacknowledged=self.num_unacknowledged,
            heard_s=None if self.peer is None else now - self._received_at,
            ctx_s=None if self._ctx_at is None else now - self._ctx_at,
        )

    def post(self, event: Encoded, *, lasting: bool = False) -> int:
        """Queue an event, encoded by `encode_event`; return its number.

        A lasting one is sent to every further incarnation of the peer too.
        """
        if lasting:
            self._lasting.append(event)
        self._last_posted += 1
        self._waiting.append((self._last_posted, event))
        self._event_bytes += event.nbytes
        return self._last_posted

    def hold_back(self, number: int) -> None:
        """Acknowledge no event of the peer from this number on until `release`."""
        self._held_from = min(self._held_from, number)

    def release(self, up_to: int | None) -> None:
        """Acknowledge events that were held back, up to this number; None for all."""
        held_from = math.inf if up_to is None else up_to
        if held_from > self._held_from:
            self._held_from, self._ack_at = held_from, 0.0

    @property
    def _acknowledged(self) -> int:
        """The number up to which this node acknowledges the events of the peer."""
        return int(min(self._last_seen, self._held_from - 1))

    def offer(self, values: Mapping[str, Any]) -> None:
        """Put values of topics into their slots: immutable ones as they are, the rest encoded."""
        self._slots.update(values)
        self._changed.update(dict.fromkeys(values))

    def urge(self) -> None:
        """Ask the peer to acknowledge its events at once."""
        self._is_urgent = bool(self._waiting or self._unacked)

    def call(self, number: int, request: Encoded) -> None:
        """Queue a call, encoded by `encode_call`; it is sent at most once."""
        self._calls.append(self._envelope(Kind.CALL, seq=number, body=request))

    def reply(self, number: int, answer: Encoded) -> None:
        """Queue the answer to a call, encoded by `encode_reply`."""
        self._calls.append(self._envelope(Kind.REPLY, seq=number, body=answer))

    # -- greetings -----------------------------------------------------------------------

    def greeting(self, kind: Kind) -> Envelope:
        """Make the greeting of this node: HELLO, or WELCOME in reply."""
        first_kept = self._unacked[0][0] if self._unacked else self._next_waiting()
        seen_incarnation = self.peer.incarnation if self.peer is not None else 0
        body = {
            "num_nodes": self._me.num_nodes,
            "labels": sorted(self._me.labels),
            "first_kept": first_kept,
            "seen_epoch": seen_incarnation,
            "seen": self._acknowledged,
            "memory": self._me.memory,
            "job": self._me.job,
        }
        return self._envelope(kind, body=encode(body))

    def _next_waiting(self) -> int:
        return self._waiting[0][0] if self._waiting else self._last_posted + 1

    def greet(self, envelope: Envelope, now: float) -> list[Arrival]:
        """Take the peer's HELLO or WELCOME, and open the session.

        Raises:
            CodecError: It is no greeting of a node of this job.
        """
        body = read_greeting(decode(envelope.meta, envelope.buffers), envelope.src)
        peer = Identity(
            envelope.src,
            envelope.incarnation,
            body["num_nodes"],
            frozenset(body["labels"]),
            body.get("memory", ""),
            body.get("job", ""),
        )
        if peer.num_nodes and self._me.num_nodes and peer.num_nodes != self._me.num_nodes:
            raise CodecError(
                f"Node {peer.node_id} belongs to a job of {peer.num_nodes} nodes, this one has "
                f"{self._me.num_nodes}. Start all nodes of a job with the same number."
            )
        if peer.job and self._me.job and peer.job != self._me.job:
            raise CodecError(
                f"Node {peer.node_id} belongs to another job ({peer.job}) than this one "
                f"({self._me.job}). Do both use one port? DING_LITE_PORTS chooses another."
            )
        is_new = self.peer is None or self.peer.incarnation != peer.incarnation
        self._check_counts(body, is_new=is_new)
        self._link_broke()
        if is_new and self.peer is not None:
            self._former_incarnations.add(self.peer.incarnation)
            for event in self._lasting:
                self.post(event)
        if is_new:
            self._last_seen, self._held_from = body["first_kept"] - 1, math.inf
            self._changed.update(dict.fromkeys(self._slots))
        if body["seen_epoch"] == self._me.incarnation:
            self._acknowledge(body["seen"])

        self.peer, self.is_open, self.has_left = peer, True, False
        self._received_at = now
        self._peer_has_greeted = envelope.kind is Kind.WELCOME
        if self._peer_has_greeted:
            self._ack_at = now  # it waits for a message before it sends bulk
        return [Joined(peer, is_new)]

    def _check_counts(self, body: Mapping[str, Any], *, is_new: bool) -> None:
        """Refuse a greeting after which events would be skipped or lost.

        Raises:
            CodecError: Its counts contradict those of this node.
        """
        first_kept, seen = body["first_kept"], body["seen"]
        if not is_new and first_kept > self._last_seen + 1:
            raise CodecError(
                f"Node {self.peer_id} keeps its events from {first_kept} on, and this node has "
                f"not got the {self._last_seen + 1}th yet."
            )
        if body["seen_epoch"] == self._me.incarnation and seen > self._last_posted:
            raise CodecError(
                f"Node {self.peer_id} has seen event {seen} of this node, which has sent "
                f"{self._last_posted}."
            )

    def close_link(self) -> None:
        """Note that the link has broken: what was under way is sent again after a greeting."""
        self.is_open = False
        self._link_broke()

    def _link_broke(self) -> None:
        self.retransmit()
        if self._under_way is not None:
            self._changed.update(dict.fromkeys(self._under_way[1]))
            self._under_way = None
        self._ack_at, self._credit_due = math.inf, 0
        self._calls.clear()
        self._num_calls_out = self._num_calls_in = 0
        self._calls_at_bye = None
        self._peer_has_greeted = self.awaits_ack = False

    # -- received -------------------------------------------------------------------

    def take(self, envelope: Envelope, now: float) -> list[Arrival]:
        """Take any message but a greeting.

        Raises:
            CodecError: Its body is no message.
        """
        if self.peer is None or envelope.incarnation != self.peer.incarnation or not self.is_open:
            return self._take_late(envelope)
        if envelope.ack > self._last_posted:
            raise CodecError(
                f"Node {self.peer_id} acknowledges event {envelope.ack} of {self._last_posted}."
            )
        self._received_at = now
        if envelope.kind not in _UNORDERED:
            self._peer_has_greeted = True
            self._acknowledge(envelope.ack)

        if envelope.kind is Kind.EVENT:
            return self._take_events(envelope, now)
        if envelope.kind is Kind.STATE:
            return [self._take_state(envelope, now)]
        if envelope.kind in (Kind.CALL, Kind.REPLY):
            self._num_calls_in += 1
            arrived = read_call(envelope) if envelope.kind is Kind.CALL else read_reply(envelope)
            return [arrived, *self._leave_if_complete()]
        if envelope.kind is Kind.CREDIT:
            return self._take_credit(envelope.seq)
        elif envelope.kind is Kind.PING:
            if self._ack_at < math.inf:
                self._ack_at = now  # the peer may be waiting for that
        elif envelope.kind is Kind.BYE:
            self._calls_at_bye = envelope.seq
            return self._leave_if_complete()
        return []

    def _take_credit(self, number: int) -> list[Arrival]:
        if self._under_way is not None and self._under_way[0] == number:
            self._under_way = None
            return []
        # The credit for a message over an earlier link may come after the message was sent again.
        is_late = 0 < number <= self._num_states
        reason = f"Node {self.peer_id} gives credit {number}, not owed."
        return [Dropped(reason, is_fault=not is_late)]

    def _leave_if_complete(self) -> list[Arrival]:
        """Close the session once all calls of the peer are here: some may follow its good-bye."""
        if self._calls_at_bye is None or self._num_calls_in < self._calls_at_bye:
            return []
        self.has_left, self.is_open = True, False
        self.awaits_ack = True
        self.on_acknowledged(self._last_posted)
        return [Left()]

    def _take_late(self, envelope: Envelope) -> list[Arrival]:
        """Take a message while the session is closed, or of another incarnation of the peer."""
        if self.has_left and envelope.kind is Kind.ACK:
            self.awaits_ack = False
            return []
        reason = f"A message of node {self.peer_id} is of another incarnation or an earlier link."
        return [Dropped(reason, is_fault=False)]

    def _take_events(self, envelope: Envelope, now: float) -> list[Arrival]:
        arrivals: list[Arrival] = []
        self._ack_at = min(self._ack_at, now + ACK_S)
        for seq, (meta, buffers) in enumerate(read_events(envelope), start=envelope.seq):
            if seq != self._last_seen + 1:
                # A connection that broke and came back may lose events before either end has
                # noticed; the greeting that follows makes the peer send them again.
                reason = f"Event {seq} of node {self.peer_id} came after {self._last_seen}."
                arrivals.append(Dropped(reason, is_fault=False))
                continue
            self._last_seen = seq
            try:
                arrivals.append(read_event(decode(meta, buffers), seq))
                self._num_events_taken += 1
            except CodecError as error:  # the others of its batch are still good
                arrivals.append(Dropped(f"Event {seq} of node {self.peer_id}: {error}"))
        return arrivals

    def _take_state(self, envelope: Envelope, now: float) -> StateArrived:
        self._credit_due = envelope.seq
        values = read_state(envelope)
        self._num_states_taken += 1
        self._ctx_at = now
        if not any(isinstance(value, Announcement) for value in values.values()):
            return StateArrived(values, number=envelope.seq)
        if not self._shares_memory:
            raise CodecError("A state message announces what lies in memory that is not shared.")
        self._credit_due = 0
        return StateArrived(values, envelope.seq, envelope.seq)

    def _acknowledge(self, seen: int) -> None:
        before = self._event_bytes
        while self._unacked and self._unacked[0][0] <= seen:
            self._event_bytes -= self._unacked.popleft()[1].nbytes
        while self._waiting and self._waiting[0][0] <= seen:  # seen before the link broke
            self._event_bytes -= self._waiting.popleft()[1].nbytes
        if self._event_bytes < before:
            self.on_acknowledged(seen)

    def credit(self, number: int) -> None:
        """Let the peer send the next state message: the announced values have been read."""
        if self.is_open:
            self._credit_due = number

    def note_received(self, at: float) -> None:
        """Note that a part of a message was received."""
        self._received_at = max(self._received_at, at)

    def is_silent(self, now: float) -> bool:
        """Return whether nothing was received for too long."""
        return self.is_open and now - self._received_at >= SILENCE_S

    # -- sending --------------------------------------------------------------

    def outgoing(self, now: float) -> Iterator[tuple[Lane, Envelope]]:
        """Yield the messages to send now; each counts as sent when the next one is asked for.

        The lane for bulk is not used before the peer is known to have this node's greeting, which
        goes by the other lane and could arrive later.
        """
        if not self.is_open:
            return
        while self._waiting:
            yield Lane.CONTROL, self._next_events(now)
        while self._calls:
            is_bulky = self._calls[0].payload_bytes >= BULK_BYTES
            if is_bulky and not self._peer_has_greeted:
                break
            self._num_calls_out += 1
            yield (Lane.BULK if is_bulky else Lane.CONTROL), self._calls.popleft()
        if self._changed and self._under_way is None and self._peer_has_greeted:
            yield Lane.BULK, self._next_state(now)
        if self._credit_due:
            seq, self._credit_due = self._credit_due, 0
            yield Lane.CONTROL, self._envelope(Kind.CREDIT, seq=seq, now=now)
        if now >= self._ack_at and not self._is_urgent:
            yield Lane.CONTROL, self._envelope(Kind.ACK, now=now)
        elif self._is_urgent or now - self._sent_at >= HEARTBEAT_S:
            self._is_urgent = False
            yield Lane.CONTROL, self._envelope(Kind.PING, now=now)

    def single_message(self, now: float) -> Envelope | None:
        """Return the only waiting message, if it is small and may go at once; it counts as sent.

        An event waits while earlier ones are under way: those that follow go in one batch with it.
        """
        if not self.is_open or len(self._waiting) + len(self._calls) != 1:
            return None
        if self._waiting:
            may_go = not self._unacked and not self._waiting[0][1].buffers
            return self._next_events(now) if may_go else None
        if self._calls[0].payload_bytes >= BULK_BYTES:
            return None
        self._num_calls_out += 1
        return self._calls.popleft()

    def retransmit(self) -> None:
        """Queue unacknowledged events again; the peer drops duplicates."""
        self._waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()

    def seconds_to_tick(self, now: float) -> float:
        """Return the seconds until this session has something to send, or its peer is silent."""
        if not self.is_open:
            return HEARTBEAT_S
        if self._has_more:
            return 0.0
        beat_s = HEARTBEAT_S - (now - self._sent_at)
        silent_s = SILENCE_S - (now - self._received_at)
        return max(0.0, min(self._ack_at - now, beat_s, silent_s))

    @property
    def _has_more(self) -> bool:
        """Whether something is to be sent at once."""
        if self._waiting or self._credit_due or self._is_urgent:
            return True
        if self._calls:
            return self._peer_has_greeted or self._calls[0].payload_bytes < BULK_BYTES
        return bool(self._changed) and self._under_way is None and self._peer_has_greeted

    def ping(self) -> Envelope:
        """Make a heartbeat."""
        return self._envelope(Kind.PING)

    def acknowledgement(self) -> Envelope:
        """Make an acknowledgement of all that was received, the good-bye included."""
        return self._envelope(Kind.ACK)

    def good_bye(self) -> Envelope:
        """Make the good-bye, with the number of calls and answers sent before it."""
        return self._envelope(Kind.BYE, seq=self._num_calls_out)

    def _next_events(self, now: float) -> Envelope:
        """Take a batch of small events from the queue, or one that has buffers of its own."""
        batch: list[bytes] = []
        first, encoded = self._waiting[0]
        if encoded.buffers:
            self._unacked.append(self._waiting.popleft())
            meta, buffers = pack_batch([encoded.meta]), list(encoded.buffers)
        else:
            room = MAX_META_BYTES - _BATCH_HEAD_BYTES
            while self._waiting and len(batch) < _BATCH and not self._waiting[0][1].buffers:
                room -= len(self._waiting[0][1].meta) + _BATCH_HEAD_BYTES
                if batch and room < 0:
                    break
                batch.append(self._waiting[0][1].meta)
                self._unacked.append(self._waiting.popleft())
            meta, buffers = pack_batch(batch), []
        return self._envelope(Kind.EVENT, seq=first, meta=meta, buffers=buffers, now=now)

    def _next_state(self, now: float) -> Envelope:
        """Make a message of the changed slots: of all, if that is within the limits."""
        keys, body = list(self._changed), None
        while body is None:
            slots = {key: self._slots[key] for key in keys}
            try:
                body = write_state(slots, shares_memory=self._shares_memory)
            except CodecError:  # too much for one message: each value by itself is not
                if len(keys) == 1:
                    del self._changed[keys[0]]  # or each tick would raise, and send nothing
                    raise
                keys = keys[: len(keys) // 2]
        for key in keys:
            del self._changed[key]

        self._num_states += 1
        # Published memory may not be written over before the peer has read it.
        published = {k: v if isinstance(v, Published) else None for k, v in slots.items()}
        self._under_way = self._num_states, published
        return self._envelope(Kind.STATE, seq=self._num_states, body=body, now=now)

    @property
    def _shares_memory(self) -> bool:
        return self.peer is not None and self.peer.memory == self._me.memory != ""

    def _envelope(
        self,
        kind: Kind,
        *,
        seq: int = 0,
        body: Encoded | None = None,
        meta: bytes = b"",
        buffers: Sequence[memoryview] = (),
        now: float | None = None,
    ) -> Envelope:
        if now is not None:
            self._sent_at = now
        if kind not in _UNORDERED and kind is not Kind.CREDIT:
            self._ack_at = math.inf
        knows_peer = self.is_open and kind not in _UNORDERED
        return Envelope(
            kind=kind,
            src=self._me.node_id,
            dst=self.peer_id,
            incarnation=self._me.incarnation,
            seq=seq,
            ack=self._acknowledged if knows_peer else 0,  # else it may be of an earlier incarnation
            meta=meta if body is None else body.meta,
            buffers=tuple(buffers if body is None else body.buffers),
        )
