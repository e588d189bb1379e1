"""Reliable messages to one peer: handshake, events, state, calls, heartbeats and the good-bye.

A session is one node's side of a link. It consumes and produces envelopes, and `Links` moves them,
so a test can lose, delay and repeat messages at will. `events` and `state` (see `sent`) outlive a
link; calls do not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from ding_lite.errors import CodecError
from ding_lite.parallel.link.sent import SentEvents, SentState
from ding_lite.parallel.memory.segments import Announcement
from ding_lite.parallel.transport.base import Lane, Link
from ding_lite.parallel.wire.arrays import shorten
from ding_lite.parallel.wire.codec import Encoded, decode, decode_items, encode
from ding_lite.parallel.wire.messages import (
    Arrival,
    Dropped,
    Envelope,
    EventArrived,
    Greeting,
    Identity,
    Joined,
    Kind,
    Left,
    ReplyArrived,
    StateArrived,
    encode_reply,
    read_call,
    read_greeting,
    read_named,
    read_reply,
    unpack_batch,
)
from ding_lite.records import RecordError

HEARTBEAT_S = 1.0
"""Seconds without another message after which a heartbeat is sent."""
SILENCE_S = 3.0
"""Seconds without a message after which a peer is lost."""
ACK_S = 0.01
"""Seconds after which events are acknowledged, if no other message has done so."""
BULK_BYTES = 64 * 2**10
"""Calls and answers of at least this size use the lane for bulk."""
_LONGEST_REASON = 4096
_NONE_HELD = 2**64  # beyond every number of an event
_UNORDERED = (Kind.STATE, Kind.CALL, Kind.REPLY)
"""Kinds that may arrive late, from before a greeting; they carry no acknowledgement."""


class Session:
    """One node's side of a link to a peer."""

    def __init__(
        self, me: Identity, peer_id: int, *, expected_labels: frozenset[str] = frozenset()
    ) -> None:
        self.peer_id = peer_id
        self._expected_labels = expected_labels
        self.link: Link | None = None
        """The link that the peer is bound to; None before a greeting, and once it has broken."""
        self.peer: Identity | None = None
        self.is_open = False
        """Whether both nodes have greeted each other on the present link."""
        self.has_left = False
        self.awaits_ack = False
        """Whether the peer has said good-bye, and may not have received this node's yet."""
        self.received_at = 0.0
        self.former_incarnations: set[int] = set()
        """Incarnations of the peer that a later one has replaced."""
        self.events = SentEvents()
        self.state = SentState()
        self.num_events_in = 0
        """The number of the peer's events that could be read."""
        self.num_states_in = 0
        self.state_at: float | None = None
        """When the peer's last state message came; None before the first."""
        self._me = me
        self._sent_at = 0.0
        self._last_seen = 0  # the number of the peer's last event
        self._held_from = _NONE_HELD  # the first event that is not to be acknowledged yet
        self.ack_at = math.inf
        """The latest time to acknowledge events; inf if all are acknowledged."""
        self._is_urgent = False
        self._credit_due = 0  # the state message to give credit for; 0 for none

        self._calls: deque[Envelope] = deque()
        self._num_calls_out = 0
        self._num_calls_in = 0
        self._calls_at_bye: int | None = None
        self.peer_has_greeted = False
        """Whether the peer is known to have the greeting of this node."""

    # -- to be sent ------------------------------------------------------

    @property
    def labels(self) -> frozenset[str]:
        return frozenset() if self.peer is None else self.peer.labels

    @property
    def has_waiting(self) -> bool:
        return bool(self.events.waiting or self._calls)

    @property
    def is_flushed(self) -> bool:
        """Whether all was sent and acknowledged, or the peer has left."""
        if self.has_left:
            return True
        is_sent = not (self.events.num_unacknowledged or self._calls)
        return is_sent and self.state.is_flushed

    def hold_back(self, number: int) -> None:
        """Acknowledge no event from this number on until `release`."""
        self._held_from = min(self._held_from, number)

    def release(self, up_to: int | None) -> None:
        """Acknowledge events that were held back, up to this number, soon; None for all."""
        held_from = _NONE_HELD if up_to is None else up_to
        if held_from > self._held_from:
            self._held_from, self.ack_at = held_from, 0.0

    @property
    def _acknowledged(self) -> int:
        return min(self._last_seen, self._held_from - 1)

    def request_acknowledgement(self) -> None:
        """Ask the peer to acknowledge its events at once."""
        self._is_urgent = self.events.num_unacknowledged > 0

    def call(self, number: int, request: Encoded) -> None:
        """Queue a call, encoded by `encode_call`; it is sent at most once."""
        self._calls.append(self._envelope(Kind.CALL, seq=number, body=request))

    def reply(self, number: int, answer: Encoded) -> None:
        """Queue the answer to a call, encoded by `encode_reply`."""
        self._calls.append(self._envelope(Kind.REPLY, seq=number, body=answer))

    # -- greetings -----------------------------------------------------------------------

    def greeting(self, kind: Kind) -> Envelope:
        seen_incarnation = self.peer.incarnation if self.peer is not None else 0
        body = Greeting(
            num_nodes=self._me.num_nodes,
            labels=sorted(self._me.labels),
            first_kept=self.events.first_kept,
            seen_epoch=seen_incarnation,
            seen=self._acknowledged,
            memory=self._me.memory,
            job=self._me.job,
        )
        return self._envelope(kind, body=encode(msgspec.structs.asdict(body)))

    def greet(self, envelope: Envelope, now: float) -> list[Arrival]:
        """Take the peer's HELLO or WELCOME, and open the session, or raise CodecError."""
        body = self.check_job(envelope)
        peer = Identity(
            envelope.src,
            envelope.incarnation,
            body.num_nodes,
            frozenset(body.labels),
            body.memory,
            body.job,
        )
        if missing := self._expected_labels - peer.labels:
            raise CodecError(
                f"Node {peer.node_id} has the labels {', '.join(sorted(peer.labels))}; "
                f"{', '.join(sorted(missing))} were expected, too, by the roles and labels of node "
                f"{self._me.node_id}. Give all nodes the same: DING_LITE_ROLES, or `roles` and "
                f"`labels` of `Parallel.runner`."
            )
        is_new = self.peer is None or self.peer.incarnation != peer.incarnation
        self._check_counts(body, is_new=is_new)
        self._link_broke()
        if is_new and self.peer is not None:
            self.former_incarnations.add(self.peer.incarnation)
        if is_new:
            self._last_seen, self._held_from = body.first_kept - 1, _NONE_HELD
            self.state.renew()
        if body.seen_epoch == self._me.incarnation:
            self.events.acknowledge(body.seen)

        self.peer, self.is_open, self.has_left = peer, True, False
        self.received_at = now
        self.peer_has_greeted = envelope.kind is Kind.WELCOME
        if self.peer_has_greeted:
            self.ack_at = now  # the peer waits for a message before it sends bulk
        return [Joined(peer, is_new)]

    def check_job(self, envelope: Envelope) -> Greeting:
        """Return a greeting, or raise CodecError if its sender belongs to another job."""
        body = read_greeting(envelope)
        if body.job and self._me.job and body.job != self._me.job:
            raise CodecError(
                f"Node {envelope.src} belongs to another job ({body.job}) than this one "
                f"({self._me.job}). Do both use one port? DING_LITE_PORTS chooses another."
            )
        if body.num_nodes and self._me.num_nodes and body.num_nodes != self._me.num_nodes:
            raise CodecError(
                f"Node {envelope.src} belongs to a job of {body.num_nodes} nodes, this one has "
                f"{self._me.num_nodes}. Start all nodes of a job with the same number."
            )
        return body

    def _check_counts(self, body: Greeting, *, is_new: bool) -> None:
        first_kept, seen = body.first_kept, body.seen
        if not is_new and first_kept > self._last_seen + 1:
            raise CodecError(
                f"Node {self.peer_id} keeps its events from {first_kept} on, and this node has "
                f"not got the {self._last_seen + 1}th yet."
            )
        if body.seen_epoch == self._me.incarnation and seen > self.events.last_posted:
            raise CodecError(
                f"Node {self.peer_id} has seen event {seen} of this node, which has sent "
                f"{self.events.last_posted}."
            )

    def close_link(self) -> None:
        """Note that the link has broken; events and values under way are sent after a greeting."""
        self.is_open = False
        self._link_broke()

    def _link_broke(self) -> None:
        self.events.retransmit()
        self.state.retransmit()
        self.ack_at, self._credit_due = math.inf, 0
        self._calls.clear()
        self._num_calls_out = self._num_calls_in = 0
        self._calls_at_bye = None
        self.peer_has_greeted = self.awaits_ack = False

    # -- received -------------------------------------------------------------------

    def take(self, envelope: Envelope, now: float) -> list[Arrival]:
        if self.peer is None or envelope.incarnation != self.peer.incarnation or not self.is_open:
            return self._take_late(envelope)
        if envelope.ack > self.events.last_posted:
            raise CodecError(
                f"Node {self.peer_id} acknowledges event {envelope.ack} of "
                f"{self.events.last_posted}."
            )
        self.received_at = now
        if envelope.kind not in _UNORDERED:
            self.peer_has_greeted = True
            self.events.acknowledge(envelope.ack)

        if envelope.kind is Kind.EVENT:
            self.ack_at = min(self.ack_at, now + ACK_S)
            return self._take_events(envelope)
        if envelope.kind is Kind.STATE:
            return self._take_state(envelope, now)
        if envelope.kind in (Kind.CALL, Kind.REPLY):
            self._num_calls_in += 1
            return [self._take_call(envelope), *self._leave_if_complete()]
        if envelope.kind is Kind.CREDIT:
            return [*self.state.take_credit(envelope)]
        if envelope.kind is Kind.BYE:
            self._calls_at_bye = envelope.seq
            return self._leave_if_complete()
        if envelope.kind is Kind.PING and self.ack_at < math.inf:
            self.ack_at = now  # the peer may be waiting for the acknowledgement
        return []

    def _take_events(self, envelope: Envelope) -> list[Arrival]:
        arrivals: list[Arrival] = []
        metas = unpack_batch(envelope.meta, envelope.buffers)
        for seq, meta in enumerate(metas, start=envelope.seq):
            if seq != self._last_seen + 1:
                # A connection that broke and came back may lose events before either end has
                # noticed; the greeting that follows makes the peer send them again.
                reason = f"Event {seq} of node {self.peer_id} came after {self._last_seen}."
                arrivals.append(Dropped(reason, is_fault=False))
                continue
            self._last_seen = seq
            try:
                named = read_named(decode(meta, envelope.buffers), "An event")
                arrivals.append(EventArrived(*named, seq))
                self.num_events_in += 1
            except CodecError as error:  # the other events of the batch are still good
                arrivals.append(Dropped(f"Event {seq} of node {self.peer_id}: {error}"))
        return arrivals

    def _take_call(self, envelope: Envelope) -> Arrival:
        """Read a call or an answer; what this node cannot build is an error for the caller."""
        try:
            return read_call(envelope) if envelope.kind is Kind.CALL else read_reply(envelope)
        except RecordError as error:
            if envelope.kind is Kind.REPLY:
                reason = f"node {self._me.node_id} cannot read the answer: {error}"
                return ReplyArrived(envelope.seq, False, ["CodecError", reason])
            self.reply(envelope.seq, encode_reply(False, ["CodecError", _plain(error)]))
            return Dropped(f"Call {envelope.seq} of node {self.peer_id}: {error}", is_fault=False)

    def _take_state(self, envelope: Envelope, now: float) -> list[Arrival]:
        """Read values; credit for announced values is due once they are read from shared memory."""
        self._credit_due = envelope.seq
        values, refusals = decode_items(envelope.meta, envelope.buffers)
        dropped = [
            Dropped(f"`{shorten(topic)}` of node {self.peer_id}: {error}", is_fault=False)
            for topic, error in refusals.items()
        ]
        self.num_states_in, self.state_at = self.num_states_in + 1, now
        if not any(isinstance(value, Announcement) for value in values.values()):
            return [StateArrived(values, number=envelope.seq), *dropped]
        if not self._shares_memory:
            raise CodecError("A state message announces what lies in memory that is not shared.")
        self._credit_due = 0
        return [StateArrived(values, envelope.seq, envelope.seq), *dropped]

    def _leave_if_complete(self) -> list[Arrival]:
        """Close the session once all calls of the peer are here; some may follow its good-bye."""
        if self._calls_at_bye is None or self._num_calls_in < self._calls_at_bye:
            return []
        self.has_left, self.is_open = True, False
        self.awaits_ack = True
        if self.events.on_acknowledged is not None:
            self.events.on_acknowledged(self.events.last_posted)
        return [Left()]

    def _take_late(self, envelope: Envelope) -> list[Arrival]:
        """Process a message of another incarnation of the peer, or while the session is closed."""
        if self.has_left:
            # Until it has the answer to its good-bye the peer may still send, such as a roster.
            self.awaits_ack = self.awaits_ack and envelope.kind is not Kind.ACK
            return []
        reason = f"A message of node {self.peer_id} is of another incarnation or an earlier link."
        return [Dropped(reason, is_fault=False)]

    def credit(self, number: int) -> None:
        """Let the peer send the next state message: the announced values have been read."""
        if self.is_open:
            self._credit_due = number

    def is_silent(self, now: float) -> bool:
        return self.is_open and now - self.received_at >= SILENCE_S

    # -- sending --------------------------------------------------------------

    def outgoing(self, now: float) -> Iterator[tuple[Lane, Envelope]]:
        """Yield the messages to send now; each counts as sent when the next one is requested.

        The lane for bulk is used only once the peer is known to have this node's greeting, which
        goes by the other lane and could arrive later.
        """
        if not self.is_open:
            return
        while self.events.waiting:
            yield Lane.CONTROL, self._next_events(now)
        while self._calls:
            is_bulky = self._calls[0].payload_bytes >= BULK_BYTES
            if is_bulky and not self.peer_has_greeted:
                break
            self._num_calls_out += 1
            yield (Lane.BULK if is_bulky else Lane.CONTROL), self._calls.popleft()
        if self.state.is_due and self.peer_has_greeted:
            seq, body = self.state.next_message(shares_memory=self._shares_memory)
            yield Lane.BULK, self._envelope(Kind.STATE, seq=seq, body=body, now=now)
        if seq := self._credit_due:
            self._credit_due = 0
            yield Lane.CONTROL, self._envelope(Kind.CREDIT, seq=seq, now=now)
        if now >= self.ack_at and not self._is_urgent:
            yield Lane.CONTROL, self._envelope(Kind.ACK, now=now)
        elif self._is_urgent or now - self._sent_at >= HEARTBEAT_S:
            self._is_urgent = False
            yield Lane.CONTROL, self._envelope(Kind.PING, now=now)

    def single_message(self, now: float) -> Envelope | None:
        """Return the only waiting message, if it is small and may go at once; it counts as sent."""
        if not self.is_open or len(self.events.waiting) + len(self._calls) != 1:
            return None
        if self.events.waiting:
            return self._next_events(now) if self.events.may_go_alone else None
        if self._calls[0].payload_bytes >= BULK_BYTES:
            return None
        self._num_calls_out += 1
        return self._calls.popleft()

    def seconds_to_tick(self, now: float) -> float:
        """Return the seconds until this session has something to send, or its peer is silent."""
        if not self.is_open:
            return HEARTBEAT_S
        if self._has_more:
            return 0.0
        beat_s = HEARTBEAT_S - (now - self._sent_at)
        silent_s = SILENCE_S - (now - self.received_at)
        return max(0.0, min(self.ack_at - now, beat_s, silent_s))

    @property
    def _has_more(self) -> bool:
        if self.events.waiting or self._credit_due or self._is_urgent:
            return True
        if self._calls:
            return self.peer_has_greeted or self._calls[0].payload_bytes < BULK_BYTES
        return self.state.is_due and self.peer_has_greeted

    def ping(self) -> Envelope:
        return self._envelope(Kind.PING)

    def acknowledgement(self) -> Envelope:
        return self._envelope(Kind.ACK)

    def good_bye(self) -> Envelope:
        """Make the good-bye, with the number of calls and answers sent before it."""
        return self._envelope(Kind.BYE, seq=self._num_calls_out)

    def _next_events(self, now: float) -> Envelope:
        first, meta, buffers = self.events.next_batch()
        return self._envelope(Kind.EVENT, seq=first, meta=meta, buffers=buffers, now=now)

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
            self.ack_at = math.inf
        knows_peer = self.is_open and kind not in _UNORDERED
        return Envelope(
            kind=kind,
            src=self._me.node_id,
            dst=self.peer_id,
            incarnation=self._me.incarnation,
            seq=seq,
            # Otherwise `_last_seen` may be of an earlier incarnation. The same as `_acknowledged`.
            ack=min(self._last_seen, self._held_from - 1) if knows_peer else 0,
            meta=meta if body is None else body.meta,
            buffers=tuple(buffers if body is None else body.buffers),
        )


def _plain(error: RecordError) -> str:
    """Return the message of an error so that it can be sent; parts of it are the program's own."""
    return str(error)[:_LONGEST_REASON].encode(errors="backslashreplace").decode()
