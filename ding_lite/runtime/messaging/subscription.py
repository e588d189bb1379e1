"""Topics of state, for each of which only the newest value of each node is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ding_lite.cancellation import Wait
from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import ConfigError

logger = logging.getLogger(__name__)

CTX = "ctx/"
"""The prefix of the topics of ctx keys."""
LONGEST_TOPIC = 1024
"""The most characters of a topic."""


def check_topic(topic: object) -> str:
    """Return a topic that a program may publish; raise ConfigError for any other."""
    if not isinstance(topic, str) or not 1 <= len(topic) <= LONGEST_TOPIC:
        raise ConfigError(
            f"A topic is {topic!r:.80}; a str of 1 to {LONGEST_TOPIC} characters was expected, "
            f"such as `actor/weights`."
        )
    if topic.startswith(CTX):
        raise ConfigError(
            f"The topic {topic!r:.80} is that of a ctx key. Set the key on the ctx, or choose a "
            f"topic that does not begin with {CTX!r}."
        )
    return str.__str__(topic)  # a plain one: a member of a StrEnum cannot be sent


class Subscription:
    """The newest values of some topics, by the node that has published them.

    It includes values that were published before: the newest of each topic and node is kept. The
    topic of a ctx key is `ctx/KEY`, and its value is kept until a task has received it. `pump` and
    `wake_pump` are those of a router.
    `on_values` is called with each node and its values as they arrive, and `is_ending` returns
    whether the job ends, and with it each wait.
    """

    def __init__(
        self,
        topics: Iterable[str],
        *,
        on_values: Callable[[int, Mapping[str, Any]], None] = lambda node, values: None,
        pump: Callable[[Callable[[], bool], float | None], None] = lambda ready, timeout: None,
        wake_pump: Callable[[], None] = lambda: None,
        is_ending: Callable[[], bool] = lambda: False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.topics = frozenset(topics)
        self._on_values, self._pump, self._wake_pump = on_values, pump, wake_pump
        self._is_ending, self._clock = is_ending, clock
        self._of_node: dict[int, dict[str, Any]] = {}
        self._newest: dict[str, Any] = {}
        self._changed = threading.Condition()

    @property
    def newest(self) -> Mapping[str, Any]:
        """The values of the node that has published last, by topic; empty before the first."""
        return self._newest

    @property
    def of_nodes(self) -> Mapping[int, Mapping[str, Any]]:
        """The values of each node, by topic."""
        with self._changed:
            return dict(self._of_node)

    def wait(
        self,
        ready: Callable[[Mapping[str, Any]], bool] = bool,
        *,
        timeout: float | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Block until `ready(newest)` or `until()`.

        Within a running task the end of the job ends the wait, too.

        Args:
            ready: By default, whether anything was published.
            timeout: Seconds; `None` waits for ever.
            until: Called again at each value, and at each `wake` of the router.

        Returns:
            Whether one of them was true; False at the timeout, and at the end of the job.
        """
        was_true = False

        def is_over() -> bool:
            nonlocal was_true
            was_true = bool(until() or ready(self._newest))
            return was_true

        self.wait_before(Deadline.after(timeout, self._clock), is_over)
        return was_true

    def wait_before(self, deadline: Deadline, is_over: Callable[[], bool]) -> bool:
        """Block until `is_over()`, or the job ends; return False if the deadline expires first."""
        has_ended = False

        def ends() -> bool:  # `is_over` is not called again once it was true
            nonlocal has_ended
            has_ended = has_ended or is_over() or self._is_ending()
            return has_ended

        with Wait(self._wake_pump) as wait:
            self._pump(lambda: ends() or wait.is_over, deadline.remaining)
        with self._changed:
            return deadline.wait(self._changed, ends)

    def put(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Store values that a node has published; called by the router."""
        seen = {topic: values[topic] for topic in self.topics if topic in values}
        if seen:
            with self._changed:
                # A new dict each time: values that a reader has taken belong together.
                self._newest = self._of_node[node_id] = self._of_node.get(node_id, {}) | seen
                try:
                    self._on_values(node_id, self._newest)
                except Exception:  # other subscriptions get the values all the same
                    logger.exception("`on_values` failed for values of node %s", node_id)
                self._changed.notify_all()
            self._wake_pump()

    def wake(self) -> None:
        """Make each wait check `until` again."""
        with self._changed:
            self._changed.notify_all()
        self._wake_pump()
