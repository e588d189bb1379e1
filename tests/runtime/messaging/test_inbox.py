"""The inbox: each message once and in order, while receivers answer, fail or leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from ding_lite.runtime.messaging.inbox import FINISH, Inbox, Listening
from tests.threads import switching_often, together


class Recorder:
    """Notes what comes, and acts on it."""

    def __init__(self, act: Callable[[str], object] = str) -> None:
        self.received: list[Any] = []
        self.act = act

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        self.received.append(event)
        self.act(event)

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        self.received.append((node_id, dict(values)))


def put(inbox: Inbox, *events: str) -> None:
    for event in events:
        inbox.put_event(1, event, (), {})


def test_messages_without_a_receiver_wait_for_the_first_one_the_newest_values_last() -> None:
    inbox = Inbox()
    put(inbox, "a", "b")
    inbox.put_state(1, {"ctx/x": 1, "ctx/y": 1})
    inbox.put_state(2, {"ctx/x": 2, "ctx/y": 2})
    inbox.put_state(1, {"ctx/x": 3})
    assert inbox.num_waiting == 2
    first, second = Recorder(), Recorder()
    inbox.join(first)
    inbox.join(second)
    assert first.received == [(1, {"y": 1}), (2, {"x": 2, "y": 2}), (1, {"x": 3}), "a", "b"]
    assert second.received == []
    assert inbox.num_waiting == 0


def test_a_listener_takes_nothing_away_from_the_first_task() -> None:
    """A program may listen to its router before it has made its task."""
    inbox, noted = Inbox(), []
    inbox.join(Listening("a", lambda: noted.append("a")))
    inbox.join(Listening(FINISH, lambda: noted.append(FINISH)))
    put(inbox, "a", FINISH)
    inbox.put_state(1, {"ctx/x": 1})
    assert noted == ["a", FINISH]
    first, second = Recorder(), Recorder()
    inbox.join(first)
    inbox.join(second)
    assert first.received == [(1, {"x": 1}), FINISH]
    assert second.received == []
    assert noted == ["a", FINISH]


def test_the_end_of_a_job_does_not_wait_for_a_second_task() -> None:
    inbox = Inbox()
    inbox.join(Listening("a", print))
    leave = inbox.join(Recorder())
    leave()
    put(inbox, FINISH)
    inbox.put_state(1, {"ctx/x": 1})
    second = Recorder()
    inbox.join(second)
    assert second.received == []


def test_between_two_runs_the_launcher_s_end_of_the_job_waits_for_the_next_run() -> None:
    inbox, task = Inbox(), Recorder()
    inbox.join(task)
    inbox.begin_run()
    inbox.end_run()
    inbox.put_event(1, FINISH, (1,), {})  # of the last run
    inbox.begin_run()
    assert task.received == []
    inbox.end_run()
    inbox.put_event(None, FINISH, (), {})
    assert task.received == []
    inbox.begin_run()
    assert task.received == [FINISH]


def test_an_answer_is_delivered_after_its_question() -> None:
    inbox = Inbox()
    first = Recorder(lambda event: put(inbox, "answer") if event == "question" else None)
    second = Recorder()
    inbox.join(first)
    inbox.join(second)
    put(inbox, "question")
    assert first.received == second.received == ["question", "answer"]


def test_a_receiver_that_left_gets_nothing_more_and_later_messages_wait() -> None:
    inbox = Inbox()
    recorder = Recorder()
    leave = inbox.join(recorder)
    recorder.act = lambda _: leave()
    put(inbox, "one", "two")
    assert recorder.received == ["one"]
    assert inbox.num_waiting == 1
    inbox.join(other := Recorder())
    leave()  # again: it changes nothing
    put(inbox, "three")
    assert other.received == ["two", "three"]


def test_errors_of_receivers_are_raised_after_all_messages_are_delivered() -> None:
    def fail(event: str) -> None:
        raise ValueError(event)

    inbox = Inbox()
    put(inbox, "one")
    with pytest.raises(ValueError, match="one"):
        inbox.join(Recorder(fail))
    healthy = Recorder()
    inbox.join(healthy)
    inbox.join(Recorder(fail))
    with pytest.raises(ExceptionGroup) as caught:
        put(inbox, "two")
    assert list(map(str, caught.value.exceptions)) == ["two", "two"]
    assert healthy.received == ["two"]


def test_an_interrupt_in_a_receiver_stops_no_later_message() -> None:
    def interrupt(event: str) -> None:
        if event == "one":
            raise KeyboardInterrupt

    inbox = Inbox()
    recorder = Recorder(interrupt)
    put(inbox, "one", "two")
    with pytest.raises(KeyboardInterrupt):
        inbox.join(recorder)
    assert inbox.num_waiting == 1
    put(inbox, "three")
    assert recorder.received == ["one", "two", "three"]


@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
def test_under_many_threads_every_event_arrives_once_and_in_order_per_sender(is_late: bool) -> None:
    inbox, inside, met = Inbox(), threading.Lock(), list[str]()

    def check_alone(event: str) -> None:
        if inside.acquire(blocking=False):
            inside.release()
        else:
            met.append(event)

    recorder = Recorder(check_alone)
    if not is_late:
        inbox.join(recorder)

    def send(sender: int) -> None:
        for number in range(150):
            inbox.put_event(sender, f"{sender}-{number}", (), {})
            if is_late and (sender, number) == (1, 75):
                inbox.join(recorder)

    with switching_often():
        together(*(partial(send, sender) for sender in range(1, 6)))
    assert met == []
    for sender in range(1, 6):
        events = [event for event in recorder.received if event.startswith(f"{sender}-")]
        assert events == [f"{sender}-{number}" for number in range(150)]
