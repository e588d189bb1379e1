"""Topics: the newest value of each node, for all that have subscribed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import pytest

from ding_lite.errors import ConfigError
from ding_lite.runtime.messaging.inbox import Inbox
from ding_lite.runtime.messaging.subscription import Subscription
from ding_lite.testing import ManualClock


def subscribed(inbox: Inbox, *names: str) -> Subscription:
    topics = Subscription(names)
    inbox.subscribe(topics)
    return topics


def test_a_subscription_shows_the_values_of_the_node_that_published_last() -> None:
    topics = Subscription(["x", "y"])
    assert topics.newest == {}
    topics.put(1, {"x": 1, "z": 1})
    topics.put(1, {"y": 2})
    before = topics.newest
    assert before == {"x": 1, "y": 2}
    topics.put(2, {"x": 5})
    assert topics.newest == {"x": 5}
    topics.put(3, {"z": 9})
    assert topics.newest == {"x": 5}
    assert before == {"x": 1, "y": 2}


def test_a_subscription_takes_nothing_from_the_task_and_has_what_came_before_it() -> None:
    inbox = Inbox()
    inbox.put_state(1, {"ctx/x": 1, "y": 1})
    topics = subscribed(inbox, "ctx/x", "y")
    assert topics.newest == {"ctx/x": 1, "y": 1}

    seen: dict[str, Any] = {}

    class Task:
        def receive_event(self, *event: Any) -> None:
            raise AssertionError(event)

        def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
            seen.update(values)

    inbox.join(Task())
    inbox.put_state(1, {"ctx/x": 2})
    assert seen == {"x": 2}
    assert topics.newest == {"ctx/x": 2, "y": 1}
    assert subscribed(inbox, "ctx/x", "y").newest == {"y": 1}


def test_a_late_subscription_has_the_newest_values_of_an_early_one_and_is_dropped_unused() -> None:
    inbox = Inbox()
    early, dropped = subscribed(inbox, "goal", "ctx/x"), ref(subscribed(inbox, "goal"))
    assert dropped() is None  # a program may subscribe in each step to read the newest value
    inbox.put_state(1, {"other": 0})  # node 1 is known first
    for node, topic, value in ((2, "goal", "old"), (1, "goal", "new"), (2, "other", 0)):
        inbox.put_state(node, {topic: value})
    assert early.newest == subscribed(inbox, "goal").newest == {"goal": "new"}
    for node, value in ((1, 1), (2, 2), (1, 3)):
        inbox.put_state(node, {"ctx/x": value})
    assert subscribed(inbox, "ctx/x").newest == {"ctx/x": 3}
    inbox.wake()


def test_a_wait_for_a_topic_ends_in_time_or_when_it_is_told(clock: ManualClock) -> None:
    inbox, is_over, is_ending = Inbox(), threading.Event(), threading.Event()
    topics = Subscription(["x"], is_ending=is_ending.is_set, clock=clock)
    inbox.subscribe(topics)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(topics.wait, timeout=5.0)
        clock.until_waiting()
        clock.advance(5.0)
        assert found.result(10.0) is False

        found = pool.submit(topics.wait, until=is_over.is_set)
        is_over.set()
        inbox.wake()
        assert found.result(10.0) is True

        found = pool.submit(topics.wait)
        is_ending.set()
        inbox.wake()
        assert found.result(10.0) is False

    inbox.put_state(1, {"x": 3})
    assert topics.wait(lambda newest: newest["x"]) is True
    with pytest.raises(ConfigError, match="`timeout` is 'soon'; give seconds"):
        topics.wait(timeout="soon")  # type: ignore[arg-type]


def test_a_wait_reads_messages_itself_and_asks_no_more_once_it_is_over() -> None:
    values, asked = iter([{"x": 1}, {"x": 2}]), []

    def pump(ready: Callable[[], bool], timeout: float | None) -> None:
        assert timeout is None
        while not ready():
            topics.put(1, next(values))

    def ready(newest: Mapping[str, Any]) -> bool:
        asked.append(newest.get("x"))
        return newest.get("x") == 2

    topics = Subscription(["x"], pump=pump)
    assert topics.wait(ready)
    assert asked == [None, 1, 2]


def test_an_error_in_on_values_takes_values_from_no_other_subscription(caplog) -> None:
    def fail(node: int, values: Mapping[str, Any]) -> None:
        raise ValueError(values)

    inbox = Inbox()
    faulty, other = Subscription(["x"], on_values=fail), subscribed(inbox, "x")
    inbox.subscribe(faulty)
    inbox.put_state(1, {"x": 1})
    assert faulty.newest == other.newest == {"x": 1}
    assert caplog.messages == ["`on_values` failed for values of node 1"]
