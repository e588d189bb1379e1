"""What two nodes owe each other, without a socket in sight.

A session is one node's side of its talk with one peer: the handshake, events that arrive
exactly once and in order, and for each ctx key a slot that holds the newest value. It eats
envelopes and makes envelopes; who moves them, and when, is the router's business. So a test
can lose, delay and repeat messages at will.

Events are numbered per sender and kept until the peer has acknowledged them. A transport
loses messages only when a connection breaks, so what is unacknowledged is sent again when the
two greet each other anew, and what came twice is dropped. Of the ctx one message at most is
under way; what changes meanwhile waits in the slots.
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
    CtxArrived,
    Dropped,
    Identity,
    Joined,
    Left,
    read_call,
    read_ctx,
    read_event,
    read_events,
    read_greeting,
    read_reply,
    write_ctx,
)

HEARTBEAT_S = 1.0
"""A node that has nothing to say says so after this many seconds."""
SILENCE_S = 3.0
"""A peer that has not been heard of for this many seconds is lost."""
ACK_S = 0.01
"""Events are acknowledged by whatever their sender is told next, or else after this."""
MAX_EVENTS = 100_000
"""Events that may wait for a peer's acknowledgement."""
MAX_EVENT_BYTES = 64 * 2**20
"""Bytes of events that may wait for a peer's acknowledgement."""
BULK_BYTES = 64 * 2**10
"""A call or an answer with arrays from this size on goes beside the events, not among them."""
_BATCH = 512
_BATCH_HEAD_BYTES = 5
"""What msgpack puts before a batch, and before each event in it, at most."""
_BESIDE = (Kind.STATE, Kind.CALL, Kind.REPLY)
"""What may travel beside the greetings and come late, from before one: it tells nothing of what
its sender has seen since."""


@dataclass(frozen=True)
class Traffic:
    """What has passed between two nodes, and what waits."""

    events_out: int
    events_in: int
    ctx_out: int
    ctx_in: int
    unacknowledged: int
    heard_s: float | None
    """Seconds since the peer was last heard of; None if it never was."""
    ctx_s: float | None
    """Seconds since its newest ctx came."""


class Session:
    """One node's side of its talk with one peer.

    Args:
        me: Who this node is.
        peer_id: Whom it talks to.
    """

    def __init__(self, me: Identity, peer_id: int) -> None:
        self.peer_id = peer_id
        self.peer: Identity | None = None
        """Who the peer is, once it has introduced itself."""
        self.is_open = False
        """Whether both have greeted each other on the present link."""
        self.has_left = False
        """Whether the peer has said good-bye."""
        self.awaits_ack = False
        """Whether it has done so, and may not have heard yet that this node has as well."""
        self.on_acknowledged: Callable[[int], object] = lambda number: None
        """Hears up to which number the peer has acknowledged events; a peer that left, all."""
        self._me = me
        self._former: set[int] = set()
        self._heard_at = 0.0
        self._said_at = 0.0

        self._last_posted = 0
        self._waiting: deque[tuple[int, Encoded]] = deque()
        self._unacked: deque[tuple[int, Encoded]] = deque()
        self._lasting: list[Encoded] = []
        self._event_bytes = 0
        self._last_seen = 0
        self._held_from = math.inf  # the first event that is not to be acknowledged yet
        self._ack_at = math.inf  # at the latest; inf owes none
        self._is_urgent = False

        self._letters: deque[Envelope] = deque()
        self._num_letters = 0
        self._num_letters_taken = 0
        self._letters_at_bye: int | None = None
        self._peer_has_greeted = False
        self._slots: dict[str, Any] = {}
        self._changed: dict[str, None] = {}
        self._under_way: tuple[int, dict[str, Published | None]] | None = None
        self._num_ctx = 0
        self._owes_credit = 0
        self._num_events_taken = 0
        self._num_ctx_taken = 0
        self._ctx_at: float | None = None

    # -- what this node wants to say ------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another event may be posted."""
        return self.num_owed < MAX_EVENTS and self._event_bytes < MAX_EVENT_BYTES

    @property
    def has_words(self) -> bool:
        """Whether events, calls or answers wait to be sent."""
        return bool(self._waiting or self._letters)

    def was_replaced(self, incarnation: int) -> bool:
        """Tell whether an incarnation of the peer was here before the present one."""
        return incarnation in self._former

    @property
    def num_owed(self) -> int:
        """How many events the peer has not acknowledged."""
        return len(self._waiting) + len(self._unacked)

    @property
    def num_acknowledged(self) -> int:
        """How many events it has."""
        return self._last_posted - self.num_owed

    @property
    def heard_at(self) -> float:
        """When the peer was last heard of."""
        return self._heard_at

    @property
    def is_flushed(self) -> bool:
        """Whether all was sent and acknowledged, or the peer is not there to do so."""
        if self.has_left:
            return True
        said = not (self._waiting or self._unacked or self._letters)
        return said and not (self._changed or self._under_way)

    def traffic(self, now: float) -> Traffic:
        """Tell what has passed so far, for who watches the node."""
        return Traffic(
            events_out=self._last_posted - len(self._waiting),
            events_in=self._num_events_taken,
            ctx_out=self._num_ctx,
            ctx_in=self._num_ctx_taken,
            unacknowledged=self.num_owed,
            heard_s=None if self.peer is None else now - self._heard_at,
            ctx_s=None if self._ctx_at is None else now - self._ctx_at,
        )

    def post(self, event: Encoded, *, lasting: bool = False) -> int:
        """Queue an event, encoded by `encode_event`; return its number.

        A lasting one is true from now on: every further incarnation of the peer is told of it too.
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
        """Acknowledge at once what was held back before this number; all of it if it is None."""
        held_from = math.inf if up_to is None else up_to
        if held_from > self._held_from:
            self._held_from, self._ack_at = held_from, 0.0

    @property
    def _acknowledged(self) -> int:
        """The number up to which this node acknowledges the events of the peer."""
        return int(min(self._last_seen, self._held_from - 1))

    def offer(self, values: Mapping[str, Any]) -> None:
        """Put ctx values into their slots: what never changes as it is, the rest encoded."""
        self._slots.update(values)
        self._changed.update(dict.fromkeys(values))

    def urge(self) -> None:
        """Ask the peer to acknowledge at once what it has seen."""
        self._is_urgent = bool(self._waiting or self._unacked)

    def call(self, number: int, request: Encoded) -> None:
        """Ask the peer something, encoded by `encode_call`; sent once or never."""
        self._letters.append(self._envelope(Kind.CALL, seq=number, body=request))

    def reply(self, number: int, answer: Encoded) -> None:
        """Answer a call of the peer, encoded by `encode_reply`."""
        self._letters.append(self._envelope(Kind.REPLY, seq=number, body=answer))

    # -- greetings -----------------------------------------------------------------------

    def greeting(self, kind: Kind) -> Envelope:
        """Make the message by which this node introduces itself: HELLO, or WELCOME in reply."""
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
        """Take the peer's HELLO or WELCOME; from now on this session is open.

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
            self._former.add(self.peer.incarnation)
            for event in self._lasting:
                self.post(event)
        if is_new:
            self._last_seen, self._held_from = body["first_kept"] - 1, math.inf
            self._changed.update(dict.fromkeys(self._slots))
        if body["seen_epoch"] == self._me.incarnation:
            self._acknowledge(body["seen"])

        self.peer, self.is_open, self.has_left = peer, True, False
        self._heard_at = now
        self._peer_has_greeted = envelope.kind is Kind.WELCOME
        if self._peer_has_greeted:
            self._ack_at = now  # it waits for a word before it sends bulk
        return [Joined(peer, is_new)]

    def _check_counts(self, body: Mapping[str, Any], *, is_new: bool) -> None:
        """Refuse a greeting that would make events be skipped that have not come, or be forgotten.

        Raises:
            CodecError: It says what cannot be.
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
        """Note that the link has broken: what was under way goes again after a greeting."""
        self.is_open = False
        self._link_broke()

    def _link_broke(self) -> None:
        self.say_again()
        if self._under_way is not None:
            self._changed.update(dict.fromkeys(self._under_way[1]))
            self._under_way = None
        self._ack_at, self._owes_credit = math.inf, 0
        self._letters.clear()
        self._num_letters = self._num_letters_taken = 0
        self._letters_at_bye = None
        self._peer_has_greeted = self.awaits_ack = False

    # -- what has come -------------------------------------------------------------------

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
        self._heard_at = now
        if envelope.kind not in _BESIDE:
            self._peer_has_greeted = True
            self._acknowledge(envelope.ack)

        if envelope.kind is Kind.EVENT:
            return self._take_events(envelope, now)
        if envelope.kind is Kind.STATE:
            return [self._take_ctx(envelope, now)]
        if envelope.kind in (Kind.CALL, Kind.REPLY):
            self._num_letters_taken += 1
            letter = read_call(envelope) if envelope.kind is Kind.CALL else read_reply(envelope)
            return [letter, *self._leave_if_complete()]
        if envelope.kind is Kind.CREDIT:
            return self._take_credit(envelope.seq)
        elif envelope.kind is Kind.PING:
            if self._ack_at < math.inf:
                self._ack_at = now  # it may be waiting for that
        elif envelope.kind is Kind.BYE:
            self._letters_at_bye = envelope.seq
            return self._leave_if_complete()
        return []

    def _take_credit(self, number: int) -> list[Arrival]:
        if self._under_way is not None and self._under_way[0] == number:
            self._under_way = None
            return []
        # That of a message that went over an earlier link may come after it went again.
        is_late = 0 < number <= self._num_ctx
        reason = f"Node {self.peer_id} gives credit {number}, not owed."
        return [Dropped(reason, is_fault=not is_late)]

    def _leave_if_complete(self) -> list[Arrival]:
        """Let the peer go once all its letters are here: large ones travel beside its good-bye."""
        if self._letters_at_bye is None or self._num_letters_taken < self._letters_at_bye:
            return []
        self.has_left, self.is_open = True, False
        self.awaits_ack = True
        self.on_acknowledged(self._last_posted)
        return [Left()]

    def _take_late(self, envelope: Envelope) -> list[Arrival]:
        """Take what comes when the link is closed, or of another incarnation of the peer."""
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
                reason = f"Event {seq} of node {self.peer_id} came after {self._last_seen}."
                arrivals.append(Dropped(reason, is_fault=seq > self._last_seen))
                continue
            self._last_seen = seq
            try:
                arrivals.append(read_event(decode(meta, buffers), seq))
                self._num_events_taken += 1
            except CodecError as error:  # the others of its batch are none the worse for it
                arrivals.append(Dropped(f"Event {seq} of node {self.peer_id}: {error}"))
        return arrivals

    def _take_ctx(self, envelope: Envelope, now: float) -> CtxArrived:
        self._owes_credit = envelope.seq
        values = read_ctx(envelope)
        self._num_ctx_taken += 1
        self._ctx_at = now
        if not any(isinstance(value, Announcement) for value in values.values()):
            return CtxArrived(values, number=envelope.seq)
        if not self._shares_memory:
            raise CodecError("A ctx message announces what lies in memory that is not shared.")
        self._owes_credit = 0
        return CtxArrived(values, envelope.seq, envelope.seq)

    def _acknowledge(self, seen: int) -> None:
        before = self._event_bytes
        while self._unacked and self._unacked[0][0] <= seen:
            self._event_bytes -= self._unacked.popleft()[1].nbytes
        while self._waiting and self._waiting[0][0] <= seen:  # seen before the link broke
            self._event_bytes -= self._waiting.popleft()[1].nbytes
        if self._event_bytes < before:
            self.on_acknowledged(seen)

    def credit(self, number: int) -> None:
        """Let the peer send the next ctx message: what this one announced has been read."""
        if self.is_open:
            self._owes_credit = number

    def note_heard(self, at: float) -> None:
        """Note that bytes of a message have come from the peer, though not all of it."""
        self._heard_at = max(self._heard_at, at)

    def is_silent(self, now: float) -> bool:
        """Whether the peer should have been heard of long ago."""
        return self.is_open and now - self._heard_at >= SILENCE_S

    # -- what is to be sent --------------------------------------------------------------

    def outgoing(self, now: float) -> Iterator[tuple[Lane, Envelope]]:
        """Yield what is to be sent now; each counts as sent when the next one is asked for.

        Nothing goes by the lane for bulk before the peer is known to have taken this node's
        greeting, which goes by the other one and could come later.
        """
        if not self.is_open:
            return
        while self._waiting:
            yield Lane.CONTROL, self._next_events(now)
        while self._letters:
            is_bulky = self._letters[0].payload_bytes >= BULK_BYTES
            if is_bulky and not self._peer_has_greeted:
                break
            self._num_letters += 1
            yield (Lane.BULK if is_bulky else Lane.CONTROL), self._letters.popleft()
        if self._changed and self._under_way is None and self._peer_has_greeted:
            yield Lane.BULK, self._next_ctx(now)
        if self._owes_credit:
            seq, self._owes_credit = self._owes_credit, 0
            yield Lane.CONTROL, self._envelope(Kind.CREDIT, seq=seq, now=now)
        if now >= self._ack_at and not self._is_urgent:
            yield Lane.CONTROL, self._envelope(Kind.ACK, now=now)
        elif self._is_urgent or now - self._said_at >= HEARTBEAT_S:
            self._is_urgent = False
            yield Lane.CONTROL, self._envelope(Kind.PING, now=now)

    def word(self, now: float) -> Envelope | None:
        """Return all that waits, if it is one small thing which may go at once; it counts as sent.

        An event waits while earlier ones are under way: more may come, and then they go together.
        """
        if not self.is_open or len(self._waiting) + len(self._letters) != 1:
            return None
        if self._waiting:
            may_go = not self._unacked and not self._waiting[0][1].buffers
            return self._next_events(now) if may_go else None
        if self._letters[0].payload_bytes >= BULK_BYTES:
            return None
        self._num_letters += 1
        return self._letters.popleft()

    def say_again(self) -> None:
        """Send again what was not acknowledged: what has come is dropped when it comes twice."""
        self._waiting.extendleft(reversed(self._unacked))
        self._unacked.clear()

    def next_turn(self, now: float) -> float:
        """Return the seconds until this session has something to say or to notice."""
        if not self.is_open:
            return HEARTBEAT_S
        if self._has_more:
            return 0.0
        beat_s = HEARTBEAT_S - (now - self._said_at)
        silent_s = SILENCE_S - (now - self._heard_at)
        return max(0.0, min(self._ack_at - now, beat_s, silent_s))

    @property
    def _has_more(self) -> bool:
        """Whether there is something to be sent, whatever the time."""
        if self._waiting or self._owes_credit or self._is_urgent:
            return True
        if self._letters:
            return self._peer_has_greeted or self._letters[0].payload_bytes < BULK_BYTES
        return bool(self._changed) and self._under_way is None and self._peer_has_greeted

    def ping(self) -> Envelope:
        """Make the message that says no more than that this node is there."""
        return self._envelope(Kind.PING)

    def acknowledgement(self) -> Envelope:
        """Make the message that says no more than what has been heard, the good-bye included."""
        return self._envelope(Kind.ACK)

    def good_bye(self) -> Envelope:
        """Make the message by which this node leaves; it says how many letters went before."""
        return self._envelope(Kind.BYE, seq=self._num_letters)

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

    def _next_ctx(self, now: float) -> Envelope:
        """Put what has changed into one message: all of it, if that is within the limits."""
        keys, body = list(self._changed), None
        while body is None:
            slots = {key: self._slots[key] for key in keys}
            try:
                body = write_ctx(slots, shares_memory=self._shares_memory)
            except CodecError:  # too much for one message: each value by itself is not
                if len(keys) == 1:
                    del self._changed[keys[0]]  # or each turn would raise, and send nothing
                    raise
                keys = keys[: len(keys) // 2]
        for key in keys:
            del self._changed[key]

        self._num_ctx += 1
        # What is published may not be written over before the peer has read it.
        published = {k: v if isinstance(v, Published) else None for k, v in slots.items()}
        self._under_way = self._num_ctx, published
        return self._envelope(Kind.STATE, seq=self._num_ctx, body=body, now=now)

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
            self._said_at = now
        if kind not in _BESIDE and kind is not Kind.CREDIT:
            self._ack_at = math.inf
        knows_peer = self.is_open and kind not in _BESIDE
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
