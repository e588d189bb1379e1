"""Calls that come before their handlers wait for them, for a limited time."""

from __future__ import annotations

import pytest

from ding_lite.parallel.router import calls as rpc
from ding_lite.parallel.router.calls import REGISTRATION_S, Answers
from ding_lite.parallel.wire.messages import CallArrived
from ding_lite.testing import ManualClock


def call(number: int, name: str = "sample") -> CallArrived:
    return CallArrived(number, name, (), {})


@pytest.fixture
def answers(clock: ManualClock) -> Answers:
    return Answers(lambda *_: None, clock)


def samples(answers: Answers) -> list[tuple[int, CallArrived]]:
    return answers.take(lambda _, call: call.name == "sample")


def test_a_handler_gets_its_calls_in_order_and_once(answers: Answers) -> None:
    for number in range(3):
        assert answers.hold(1, call(number))
        assert answers.hold(2, call(number, "other"))
    assert samples(answers) == [(1, call(number)) for number in range(3)]
    assert samples(answers) == []
    assert len(answers.close()) == 3


def test_an_overdue_call_is_taken(answers: Answers, clock: ManualClock) -> None:
    answers.hold(1, call(1))
    clock.advance(REGISTRATION_S / 2)
    answers.hold(1, call(2))
    clock.advance(REGISTRATION_S / 2)
    assert answers.take(lambda deadline, _: deadline.expired) == [(1, call(1))]
    assert samples(answers) == [(1, call(2))]


def test_calls_of_a_lost_node_are_dropped(answers: Answers) -> None:
    answers.hold(1, call(1))
    answers.hold(2, call(1))
    answers.forget(1)
    assert samples(answers) == [(2, call(1))]


def test_only_so_many_calls_wait_and_none_at_a_leaving_node(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "MAX_EARLY", 3)
    assert [answers.hold(1, call(number)) for number in range(5)] == [True] * 3 + [False] * 2
    assert answers.close() == [(1, call(number)) for number in range(3)]
    assert not answers.hold(1, call(5))
