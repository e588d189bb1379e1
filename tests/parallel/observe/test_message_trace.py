"""Which slices and arrows a node's messages are."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.wire.messages import CallArrived, EventArrived, ReplyArrived
from ding_lite.runtime.trace.messages import Slice, TracedEvent, Turn
from tests.parallel.tcp import hub_spec

EVENT = EventArrived("collected", (), {}, number=3)
CALL = CallArrived(8, "double", (2,), {})


class Paper:
    """Keeps the drawn slices and arrows."""

    def __init__(self) -> None:
        self.slices: list[str] = []
        self.arrows: list[tuple[str, str, str]] = []

    def slice(self, name: str, began_ns: int) -> Slice:
        self.slices.append(name)
        return Slice(1, began_ns, began_ns + 1)

    def arrow(self, turn: Turn, kind: str, key: str, where: Slice, at_ns: int) -> None:
        self.arrows.append((turn, kind, key))


def drawing(node_id: int, *, incarnation: int = 1) -> tuple[MessageTrace, Paper]:
    spec = replace(hub_spec(2), node_id=node_id, incarnation=incarnation, began=2.0)
    made = MessageTrace(spec, lambda peer: 1)
    paper = made.tracer = Paper()
    return made, paper


def test_a_later_incarnation_of_a_node_has_arrows_of_its_own() -> None:
    one, first = drawing(0)
    again, second = drawing(0, incarnation=2)
    for made in (one, again):
        made.emitted("collected", 1, [(1, 3, 1)])
    assert first.arrows[0][2] != second.arrows[0][2]


def test_internal_calls_are_not_drawn() -> None:
    made, paper = drawing(0)
    made.asked("ding_lite.meet", 1, 1)
    made.answered(1, CallArrived(2, "ding_lite.item", (), {}), 1)
    made.answer_came(1, ReplyArrived(1, True, None), 1)
    assert (paper.slices, paper.arrows) == ([], [])


def test_values_published_while_a_ctx_is_under_way_have_one_arrow() -> None:
    made, paper = drawing(0)
    made.published(1, [1])
    made.published(1, [1])
    made.state_sent(1, 1)
    made.state_sent(1, 2)  # the rest of the same values
    assert [arrow[:2] for arrow in paper.arrows] == [("s", "ctx")]


def say_everything(made: MessageTrace, began_ns: int) -> Any:
    made.emitted("collected", began_ns, [(1, 3, 1)])
    made.published(began_ns, [1])
    made.state_sent(1, 7)
    made.asked("double", began_ns, 8)
    made.item_sent("episodes", began_ns, 5, 1)
    made.state_came(1, 7, began_ns)
    made.answered(1, CALL, began_ns)
    made.answer_came(1, ReplyArrived(8, True, 4), began_ns)
    made.item_came(1, (1, "episodes", 5, 5, "item"), Future(), began_ns)
    return made.event_came(1, EVENT, began_ns)


def test_messages_from_before_the_trace_are_not_drawn() -> None:
    made, paper = drawing(0)
    assert say_everything(made, 0) == "collected"
    assert (paper.slices, paper.arrows) == ([], [])


def test_a_trace_may_end_in_the_middle_of_a_message() -> None:
    made, paper = drawing(0)
    began_ns = made.now()
    made.tracer = None
    name = say_everything(made, began_ns)
    assert not isinstance(name, TracedEvent)
    assert (made.now(), paper.slices) == (0, [])


@pytest.mark.parametrize("args", [(), (1, "episodes"), ("1", "episodes", 5, 5, "item")])
def test_a_malformed_item_is_not_drawn(args: tuple[Any, ...]) -> None:
    made, paper = drawing(1)
    made.item_came(0, args, Future(), 1)
    assert paper.slices == []
