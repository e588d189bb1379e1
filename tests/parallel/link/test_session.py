"""Two sessions that talk over a link which a test breaks whenever it likes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from ding_lite.errors import CodecError
from ding_lite.parallel.link.session import ACK_S, BULK_BYTES, HEARTBEAT_S, SILENCE_S, Session
from ding_lite.parallel.transport.base import Lane
from ding_lite.parallel.wire import messages
from ding_lite.parallel.wire.codec import encode
from ding_lite.parallel.wire.messages import Envelope, EventArrived, Identity, Kind, encode_event
from ding_lite.records import register


@register(name="test_session.Unbuildable")
@dataclass
class Unbuildable:
    """A record that can be sent, and that no receiver can build."""

    def __post_init__(self) -> None:
        raise ValueError("not on this node \udfff")


class Side:
    """A session, what it has received, and its end of the link: one queue a lane."""

    def __init__(self, node_id: int) -> None:
        self.me = Identity(node_id, 1, 2, frozenset({f"node.{node_id}"}))
        self.session = Session(self.me, 1 - node_id)
        self.arrived: list[messages.Arrival] = []
        self.sent: dict[Lane, deque[Envelope]] = {lane: deque() for lane in Lane}

    def say(self, now: float = 0.0) -> None:
        for lane, envelope in self.session.outgoing(now):
            self.sent[lane].append(envelope)

    def hear(self, envelope: Envelope, now: float = 0.0) -> None:
        envelope = Envelope.from_frames(list(envelope.frames()))
        if envelope.kind in (Kind.HELLO, Kind.WELCOME):
            self.arrived += self.session.greet(envelope, now)
            if envelope.kind is Kind.HELLO:
                self.sent[Lane.CONTROL].append(self.session.greeting(Kind.WELCOME))
        else:
            self.arrived += self.session.take(envelope, now)

    @property
    def events(self) -> list[object]:
        return [a.args[0] for a in self.arrived if isinstance(a, EventArrived)]

    @property
    def ctx(self) -> dict[str, object]:
        merged: dict[str, object] = {}
        for arrival in self.arrived:
            if isinstance(arrival, messages.StateArrived):
                merged.update(arrival.values)
        return merged


class Pair:
    """Both sides; node 1 has dialled node 0."""

    def __init__(self) -> None:
        self.sides = [Side(0), Side(1)]
        self.connect()

    def connect(self) -> None:
        self.sides[1].sent[Lane.CONTROL].append(self.sides[1].session.greeting(Kind.HELLO))

    def cut(self) -> None:
        """Lose everything under way; each side notices."""
        for side in self.sides:
            for queue in side.sent.values():
                queue.clear()
            side.session.close_link()
        self.connect()

    def carry(self, sender: int, lane: Lane) -> bool:
        if not self.sides[sender].sent[lane]:
            return False
        self.sides[1 - sender].hear(self.sides[sender].sent[lane].popleft())
        return True

    def settle(self) -> None:
        """Carry messages until neither side has more to send."""
        carried = True
        while carried:
            for side in self.sides:
                side.say(ACK_S)
            turns = [self.carry(k, lane) for k in (0, 1) for lane in Lane]
            carried = any(turns)


def emit(side: Side, number: int) -> None:
    side.session.events.post(encode_event("n", (number,), {}))


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.settle()
    return pair


def test_an_event_that_is_held_back_is_acknowledged_when_it_is_released_and_not_before(
    pair: Pair,
) -> None:
    first, second = pair.sides
    acknowledged: list[int] = []
    first.session.events.on_acknowledged = acknowledged.append
    second.session.hold_back(2)
    for number in (1, 2, 3):
        emit(first, number)
    pair.settle()
    assert second.events == [1, 2, 3]
    assert acknowledged == [1]
    pair.cut()  # nor does a greeting, and what comes again is known
    pair.settle()
    assert (first.session.is_flushed, second.events, acknowledged) == (False, [1, 2, 3], [1])
    second.session.release(3)
    pair.settle()
    assert acknowledged == [1, 2]
    second.session.release(None)
    pair.settle()
    assert (first.session.is_flushed, second.events, acknowledged) == (True, [1, 2, 3], [1, 2, 3])


def test_events_are_acknowledged_by_the_next_message_or_after_a_moment(pair: Pair) -> None:
    first, second = pair.sides
    for number in (1, 2):
        emit(first, number)
        first.say()
        pair.carry(0, Lane.CONTROL)
    second.say()
    assert not second.sent[Lane.CONTROL]
    assert second.session.seconds_to_tick(0.0) == ACK_S
    emit(second, 3)
    second.say()
    assert [envelope.ack for envelope in second.sent[Lane.CONTROL]] == [2]
    pair.carry(1, Lane.CONTROL)
    assert first.session.is_flushed
    first.say(ACK_S)
    assert [(e.kind, e.ack) for e in first.sent[Lane.CONTROL]] == [(Kind.ACK, 1)]
    pair.settle()
    assert second.session.is_flushed


def test_an_urgent_request_is_acknowledged_at_once(pair: Pair) -> None:
    first, second = pair.sides
    emit(first, 1)
    first.session.request_acknowledgement()
    first.say()
    assert [e.kind for e in first.sent[Lane.CONTROL]] == [Kind.EVENT, Kind.PING]
    for _ in range(2):
        pair.carry(0, Lane.CONTROL)
    second.say()
    assert [(e.kind, e.ack) for e in second.sent[Lane.CONTROL]] == [(Kind.ACK, 1)]
    pair.carry(1, Lane.CONTROL)
    assert first.session.is_flushed
    first.session.request_acknowledgement()
    first.say()
    assert not first.sent[Lane.CONTROL]


def test_a_single_message_is_sent_at_once_if_nothing_waits() -> None:
    pair = Pair()
    first = pair.sides[0].session
    small = encode_event("small", (), {})
    large = encode_event("large", (np.zeros(BULK_BYTES, np.uint8),), {})

    def word_after(act: Callable[[], object]) -> tuple[int | None, bool]:
        act()
        word = first.single_message(0.0)
        return None if word is None else word.seq, first.has_waiting

    assert word_after(lambda: emit(pair.sides[0], 1)) == (None, True)  # no peer is there
    assert word_after(pair.settle) == (None, False)
    assert word_after(lambda: emit(pair.sides[0], 2)) == (2, False)
    # Until that one is acknowledged, there may be more to go together.
    assert word_after(lambda: emit(pair.sides[0], 3)) == (None, True)
    first.events.retransmit()
    pair.settle()
    assert pair.sides[1].events == [1, 2, 3]

    assert word_after(lambda: first.call(1, small)) == (1, False)
    first.call(2, small)
    assert word_after(lambda: first.call(3, small)) == (None, True)
    pair.settle()
    assert word_after(lambda: first.call(4, large)) == (None, True)


OPS = st.sampled_from(["emit", "offer", "say", "carry", "carry bulk", "cut"])


@given(st.lists(st.tuples(OPS, st.integers(0, 1)), max_size=80))
def test_events_arrive_once_and_in_order_over_links_that_break(ops: list[tuple[str, int]]) -> None:
    pair = Pair()
    emitted: list[list[int]] = [[], []]
    offered: list[dict[str, int]] = [{}, {}]

    for number, (op, index) in enumerate(ops):
        side = pair.sides[index]
        if op == "emit":
            emit(side, number)
            emitted[index].append(number)
        elif op == "offer":
            values = {f"key{number % 3}": number}
            side.session.state.offer(values)
            offered[index].update(values)
        elif op == "say":
            side.say()
        elif op == "cut":
            pair.cut()
        else:
            pair.carry(index, Lane.BULK if op.endswith("bulk") else Lane.CONTROL)

    pair.settle()
    for index in (0, 1):
        assert pair.sides[1 - index].events == emitted[index]
        assert pair.sides[1 - index].ctx == offered[index]
        assert pair.sides[index].session.is_flushed


def test_a_slow_peer_costs_one_slot_a_key_and_one_message_under_way(pair: Pair) -> None:
    for number in range(1_000):
        pair.sides[0].session.state.offer({"weights": number, f"once{number % 2}": number})
        pair.sides[0].say()
    assert len(pair.sides[0].sent[Lane.BULK]) == 1
    pair.settle()
    assert pair.sides[1].ctx == {"weights": 999, "once0": 998, "once1": 999}
    assert len([a for a in pair.sides[1].arrived if isinstance(a, messages.StateArrived)]) == 2


def test_values_that_exceed_one_message_are_split_over_several(pair: Pair) -> None:
    values = {f"k{n}": list(range(40_000)) for n in range(12)}
    pair.sides[0].session.state.offer({key: encode(value) for key, value in values.items()})
    pair.settle()
    assert pair.sides[1].ctx == values
    assert len([a for a in pair.sides[1].arrived if isinstance(a, messages.StateArrived)]) > 1


def test_events_lost_with_a_connection_are_sent_again_and_are_no_fault_of_the_sender(pair) -> None:
    """A connection may break and come back before either side notices."""
    first, second = pair.sides
    emit(first, 1)
    first.say()
    first.sent[Lane.CONTROL].clear()
    emit(first, 2)
    pair.settle()
    assert second.events == []
    [dropped] = [arrival for arrival in second.arrived if isinstance(arrival, messages.Dropped)]
    assert not dropped.is_fault
    pair.cut()
    pair.settle()
    assert second.events == [1, 2]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_refused"), [("a", "b", True), ("a", "a", False), ("a", "", False)]
)
def test_a_node_of_another_job_is_refused_where_both_are_named(ours, theirs, is_refused) -> None:
    here = Session(Identity(0, 1, 2, frozenset(), job=ours), 1)
    there = Session(Identity(1, 1, 2, frozenset(), job=theirs), 0)
    if is_refused:
        with pytest.raises(CodecError, match=r"belongs to another job \(b\) than this one \(a\)"):
            here.greet(there.greeting(Kind.HELLO), 0.0)
    else:
        here.greet(there.greeting(Kind.HELLO), 0.0)
    assert here.is_open is not is_refused


def test_silence_is_detected_and_heartbeats_prevent_it(pair: Pair) -> None:
    sides = pair.sides
    assert sides[0].session.is_silent(SILENCE_S + 0.1)
    beat_s = ACK_S + HEARTBEAT_S
    sides[1].say(now=beat_s)
    assert [e.kind for e in sides[1].sent[Lane.CONTROL]] == [Kind.PING]
    sides[0].hear(sides[1].sent[Lane.CONTROL].popleft(), now=beat_s)
    assert not sides[0].session.is_silent(SILENCE_S + 0.1)
    assert sides[1].session.seconds_to_tick(beat_s + 0.4) == pytest.approx(0.6)


def test_a_peer_that_says_good_bye_is_not_lost(pair: Pair) -> None:
    emit(pair.sides[0], 1)
    pair.sides[0].hear(pair.sides[1].session.good_bye())
    assert pair.sides[0].arrived[-1] == messages.Left()
    assert pair.sides[0].session.has_left
    assert pair.sides[0].session.is_flushed
    awaits, ping = [], pair.sides[1].session.ping()
    for kind in (Kind.PING, Kind.CREDIT, Kind.CALL, Kind.ACK):
        pair.sides[0].hear(replace(ping, kind=kind, seq=1))
        awaits.append(pair.sides[0].session.awaits_ack)
    assert awaits == [True, True, True, False]
    assert pair.sides[0].arrived[-1] == messages.Left()


def test_a_good_bye_takes_effect_after_the_calls_sent_before_it(pair: Pair) -> None:
    leaving, staying = pair.sides
    large = messages.encode_reply(True, b"x" * 100_000)
    leaving.session.reply(1, large)
    leaving.session.reply(2, messages.encode_reply(True, "small"))
    leaving.say()
    leaving.sent[Lane.CONTROL].append(leaving.session.good_bye())
    while pair.carry(0, Lane.CONTROL):
        pass
    assert not staying.session.has_left
    assert pair.carry(0, Lane.BULK)
    assert [type(arrival) for arrival in staying.arrived[-3:]] == [
        messages.ReplyArrived,
        messages.ReplyArrived,
        messages.Left,
    ]
    assert staying.session.has_left


def test_an_answer_that_this_node_cannot_build_ends_the_call_with_an_error(pair: Pair) -> None:
    caller, answering = pair.sides
    answering.session.reply(7, messages.encode_reply(True, {"a": object.__new__(Unbuildable)}))
    pair.settle()
    reply = caller.arrived[-1]
    assert isinstance(reply, messages.ReplyArrived)
    assert (reply.number, reply.ok, reply.value[0]) == (7, False, "CodecError")
    assert "node 0 cannot read the answer" in reply.value[1]


def test_nothing_bulky_overtakes_a_greeting() -> None:
    pair = Pair()
    hub, leaf = pair.sides
    hub.session.state.offer({"weights": encode(b"x" * 100_000)})
    assert pair.carry(1, Lane.CONTROL)  # the leaf's HELLO
    hub.say()
    assert hub.session.is_open
    assert not leaf.session.is_open
    assert not hub.sent[Lane.BULK]
    pair.settle()
    assert leaf.ctx == {"weights": b"x" * 100_000}


def test_a_peer_without_an_expected_label_is_refused() -> None:
    greeting = Side(1).session.greeting(Kind.HELLO)
    me = Identity(0, 1, 2, frozenset({"node.0"}))
    Session(me, 1, expected_labels=frozenset({"node.1"})).greet(greeting, 0.0)
    session = Session(me, 1, expected_labels=frozenset({"node.1", "b", "b.0"}))
    with pytest.raises(CodecError, match=r"Node 1 has the labels node\.1; b, b\.0 were expected"):
        session.greet(greeting, 0.0)
    assert session.peer is None
