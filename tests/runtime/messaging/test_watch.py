"""Watches of ctx values of other nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.runtime.messaging.inbox import Inbox
from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.watch import Watch
from ding_lite.testing import ManualClock


def test_a_watch_shows_the_values_of_the_node_that_sent_last() -> None:
    watch = Watch(["x", "y"])
    assert watch.newest == {}
    watch.put(1, {"x": 1, "z": 1})
    watch.put(1, {"y": 2})
    before = watch.newest
    assert before == {"x": 1, "y": 2}
    watch.put(2, {"x": 5})
    assert watch.newest == {"x": 5}
    watch.put(3, {"z": 9})
    assert watch.newest == {"x": 5}
    assert before == {"x": 1, "y": 2}


def test_a_watch_takes_nothing_away_from_the_task_and_sees_what_came_before_it() -> None:
    inbox = Inbox()
    inbox.put_ctx(1, {"x": 1})
    watch = inbox.watch("x")
    assert watch.newest == {"x": 1}

    seen: dict[str, Any] = {}

    class Task:
        def receive_event(self, *event: Any) -> None:
            raise AssertionError(event)

        def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
            seen.update(values)

    inbox.join(Task())
    inbox.put_ctx(1, {"x": 2})
    assert seen == watch.newest == {"x": 2}


def test_a_wait_for_what_is_watched_ends_in_time_or_when_it_is_told(clock: ManualClock) -> None:
    learner, collector = LocalRouter.group(2)
    watch = collector.watch("x")
    assert not watch.wait(lambda newest: "x" in newest, Deadline.after(0.0, clock), lambda: False)

    is_over = threading.Event()
    ended = threading.Thread(
        target=watch.wait, args=(lambda newest: False, Deadline.after(None), is_over.is_set)
    )
    ended.start()
    is_over.set()
    collector.wake()
    ended.join(10.0)
    assert not ended.is_alive()

    learner.publish_ctx({"x": 3})
    assert watch.wait(lambda newest: newest["x"] == 3, Deadline.after(None), lambda: False)
