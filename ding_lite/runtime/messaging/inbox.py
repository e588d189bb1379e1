"""The inbox of a node: a queue of messages from other nodes for the task.

Events are queued, each once and in order. For each topic only the newest value of each node is
kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, takewhile
from operator import methodcaller
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable
from weakref import ref

from ding_lite.errors import ConfigError, MiddlewareError
from ding_lite.interruption import is_for_program, refuse_exit
from ding_lite.runtime.messaging.subscription import CTX, Subscription
from ding_lite.runtime.middleware import MiddlewareShape, name_of, shape_of

FINISH = "finish"
"""The event that the job has ended; it follows from a task's latch, and stays in force."""


class Progress(NamedTuple):
    """The progress of a task, as another thread reads it."""

    total_step: int
    env_step: Any
    """The value of `env_step` of its ctx."""
    num_waiting: int
    """The number of events not yet delivered to its listeners."""
    finish: bool
    """Whether it should end."""
    thread: int
    """The thread on which it runs."""


@runtime_checkable
class ReportsProgress(Protocol):
    """A receiver that reports its progress."""

    def progress(self) -> Progress:
        """Return its progress; called on any thread, so it must not wait."""
        ...


@runtime_checkable
class TakesFailure(Protocol):
    """A receiver that ends with an error when its node is cut off from the job."""

    def receive_failure(self, error: Exception) -> None:
        """Handle the reason; called on the router's threads, so it must not block."""
        ...


class Receiver(Protocol):
    """Takes the messages of other nodes; called on the router's threads, and must not block."""

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        """Handle an event that a node has emitted."""
        ...

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Handle the values that a node has put on its ctx."""
        ...


def check_name(name: object, of: str) -> str:
    """Return the name of an event or a stream, which `of` says; raise ConfigError for no name."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"The name of {of} is a non-empty string, not {name!r:.80}.")
    return name if type(name) is str else str.__str__(name)  # a StrEnum's could not be sent


def check_listener(event: str, fn: object) -> None:
    check_name(event, "an event")
    if not callable(fn):
        raise ConfigError(
            f"A listener of `{event}` is a function, not {fn!r}. "
            f"Give the function itself, without calling it."
        )
    if shape_of(fn) is not MiddlewareShape.FUNCTION:
        raise ConfigError(
            f"A listener of `{event}` is a plain function, and `{name_of(fn)}` a "
            f"{shape_of(fn).value}, of which nothing would run. A coroutine may be a "
            f"middleware, and wait by `await asyncio.to_thread(task.wait_for, {event!r})`."
        )


class Listening:
    """A receiver that only listens to one event."""

    def __init__(self, event: str, fn: Callable[..., object]) -> None:
        self._event = event
        self._fn = fn

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        """Call the listener if the event has its name."""
        if event == self._event:
            try:
                self._fn(*args, **kwargs)
            except SystemExit as error:  # it would end the thread that reads messages
                who = f"Listener `{name_of(self._fn)}` of event `{event}`"
                refuse_exit(error, who, MiddlewareError, "Raise an error, or set `task.finish`.")

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Ignore the values."""


_Message: TypeAlias = Callable[[Receiver], None]


class Inbox:
    """Delivers incoming messages to the receivers; queues them while there are none.

    A receiver that only listens to an event may join before the task does. The end of the job and
    the values of the ctx are kept for the first task, which depends on them.

    All nodes make the same runs, and each node emits the end of each with its number, also if
    another node has ended it. The end of an earlier run, such as one that a slower or restarted
    node makes, is dropped, and that of a later run is kept until this node makes it.
    """

    def __init__(self) -> None:
        self._receivers: list[Receiver] = []
        self._events: deque[tuple[str, _Message]] = deque()
        self._awaits_task = True
        self._end: _Message | None = None
        self._is_between_runs = False
        self._run = 1
        """The number of the present run, or between two runs of the next one."""
        self._last_end: tuple[int, int | None] = (0, None)
        """The last run that another node has ended, and that node; None stands for the launcher."""
        self._ctx: dict[tuple[int, str], Any] = {}
        """The values of ctx keys to deliver, by node and topic, the newest last."""
        self._topics: dict[tuple[int, str], Any] = {}
        """The values of other topics, by node and topic, the newest last."""
        self._subscriptions: tuple[ref[Subscription], ...] = ()
        """Weak references, as a program may subscribe in each step, and use the newest value."""
        self._audience: tuple[Receiver, ...] = ()
        """The receivers of the message that is being delivered now."""
        self._lock = threading.Lock()

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        with self._lock:
            return tuple(self._receivers)

    @property
    def num_waiting(self) -> int:
        """Events that wait for a first receiver."""
        return len(self._events)

    def put_event(
        self, node_id: int | None, event: str, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        """Queue an event of a node; None stands for the launcher, which may end the job."""
        with self._lock:
            if event == FINISH:
                self._put_end(node_id, args[0] if args and type(args[0]) is int else self._run)
            else:
                take = methodcaller("receive_event", node_id, event, args, kwargs)
                self._events.append((event, take))
        self._deliver()

    def _put_end(self, node_id: int | None, run: int) -> None:
        if run < self._run:
            return
        self._last_end = max(run, self._last_end[0]), node_id
        if not self._is_between_runs:
            self._events.append((FINISH, _end(node_id)))

    @property
    def run(self) -> int:
        """The number of the present run, from 1, or between two runs of the next one."""
        return self._run

    def begin_run(self) -> None:
        """Begin a run; end it if another node has ended it already."""
        with self._lock:
            if not self._is_between_runs:
                return
            self._is_between_runs = False
            run, node_id = self._last_end
            if run >= self._run:
                self._events.appendleft((FINISH, _end(node_id)))
        self._deliver()

    def end_run(self) -> None:
        """Note that the run has ended with the job."""
        with self._lock:
            self._is_between_runs = True
            self._run += 1

    def put_failure(self, error: Exception) -> None:
        """Queue an error that ends the task, in place of the end of the job."""
        with self._lock:
            self._events.append((FINISH, partial(_hand_over_failure, error)))
        self._deliver()

    def put_state(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Store the values of topics of a node; they replace older ones."""
        with self._lock:
            for topic, value in values.items():
                held = self._ctx if topic.startswith(CTX) else self._topics
                held.pop((node_id, topic), None)  # so that it becomes the last
                held[node_id, topic] = value
            for subscription in self._alive():
                subscription.put(node_id, values)
        self._deliver()

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription; values of a ctx that were delivered before are not included."""
        with self._lock:
            for (node_id, topic), value in chain(self._topics.items(), self._ctx.items()):
                subscription.put(node_id, {topic: value})
            self._subscriptions = tuple(map(ref, [*self._alive(), subscription]))

    def _alive(self) -> list[Subscription]:
        """Return the subscriptions that the program still refers to."""
        found = [subscription() for subscription in self._subscriptions]
        return [subscription for subscription in found if subscription is not None]

    def wake(self) -> None:
        """Wake all waits of subscriptions so that they check `until` again."""
        for subscription in self._alive():
            subscription.wake()

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Deliver messages to a receiver from now on; the returned function ends that.

        The first receiver also gets the messages that came while there was none. Errors of
        receivers are raised once all have got all messages; several are a group.
        """
        with self._lock:
            self._receivers.append(receiver)
            end = None
            if not isinstance(receiver, Listening):
                end, self._end, self._awaits_task = self._end, None, False
        try:
            self._deliver()
        finally:
            if end is not None:  # listeners have got it
                end(receiver)

        def leave() -> None:
            with self._lock:
                if receiver in self._receivers:
                    self._receivers.remove(receiver)

        return leave

    def _deliver(self) -> None:
        """Deliver queued messages in order, without a lock while a receiver runs.

        A receiver may send, join and leave. One thread at a time delivers, including messages that
        others add meanwhile.
        """
        errors: list[BaseException] = []
        is_delivering = False
        try:
            while True:
                with self._lock:
                    if is_delivering:
                        self._audience, is_delivering = (), False
                    if self._audience or not (self._receivers and (self._events or self._ctx)):
                        break
                    if (message := self._next()) is None:
                        break
                    self._audience, is_delivering = tuple(self._receivers), True
                for receiver in self._audience:
                    try:
                        message(receiver)
                    except BaseException as error:
                        if is_for_program(error):
                            raise
                        errors.append(error)
        finally:
            if is_delivering:  # a signal has interrupted it
                with self._lock:
                    self._audience = ()

        if len(errors) > 1:
            raise BaseExceptionGroup(f"{len(errors)} messages were not taken", errors)
        if errors:
            raise errors[0]

    def _next(self) -> _Message | None:
        if self._ctx and not self._awaits_task:
            node_id, _ = next(iter(self._ctx))
            topics = [topic for _, topic in takewhile(lambda key: key[0] == node_id, self._ctx)]
            values = {topic[len(CTX) :]: self._ctx.pop((node_id, topic)) for topic in topics}
            return lambda to: to.receive_ctx(node_id, values)
        if not self._events:
            return None
        event, message = self._events.popleft()
        if event == FINISH and self._awaits_task:
            self._end = message
        return message


def _end(node_id: int | None) -> _Message:
    return methodcaller("receive_event", node_id, FINISH, (), {})


def _hand_over_failure(error: Exception, receiver: Receiver) -> None:
    if isinstance(receiver, TakesFailure):
        receiver.receive_failure(error)
