"""The base of all routers: the connection of a node to the other nodes of its job.

The runtime defines it, so that it need not know about processes or sockets. `LocalRouter` is the
router of a single node. The router of `parallel`, which is set before `main()` runs, connects the
nodes of a job of several processes.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from operator import attrgetter
from typing import Any, TypeAlias, cast

from ding_lite.cancellation import Wait
from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import (
    ConfigError,
    DeadlineExceeded,
    LabelError,
    MiddlewareError,
    StepCancelled,
    did_you_mean,
)
from ding_lite.interruption import is_for_program
from ding_lite.log import Throttle
from ding_lite.runtime.messaging.collectives import COLLECTIVE, Collectives
from ding_lite.runtime.messaging.inbox import Inbox, Listening, Receiver, check_listener, check_name
from ding_lite.runtime.messaging.labels import check_patterns, matches
from ding_lite.runtime.messaging.streams import Item, Streams, Until
from ding_lite.runtime.messaging.subscription import Subscription
from ding_lite.runtime.trace.messages import Traced
from ding_lite.settings.rules import check_all, whole

CtxPart: TypeAlias = tuple[Mapping[str, Any], Iterable[str] | None]
"""Some values of a ctx, and patterns of the labels of their receivers; None for all."""


class CoroutineThread(threading.Thread):
    """A thread that runs coroutines; they must not block it."""


class Router(ABC):
    """The connection of a node to the other nodes."""

    # More than 20 methods: a program does everything with other nodes by one object, which is the
    # current router, `task.router` and `Parallel()`. It has four kinds of messages, each with a
    # verb for either side, and the properties of the job.

    traced: Traced
    """The trace of this node's messages."""
    collectives: Collectives
    """The collective operations of this node."""
    _streams: Streams
    _throttle: Throttle
    _clock: Clock = SYSTEM_CLOCK

    def __init__(self) -> None:
        self._inbox = Inbox()
        self.collectives = Collectives()
        self.running: list[Any] = []
        """The tasks of this node that run now."""

    def _serve_collectives(self) -> None:
        self.register(COLLECTIVE, self.collectives.contribute)

    # -- the job ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def node_id(self) -> int:
        """This node's number in the job, from 0."""

    @property
    @abstractmethod
    def labels(self) -> frozenset[str]:
        """The labels of this node."""

    @property
    @abstractmethod
    def peers(self) -> tuple[int, ...]:
        """The ids of the connected nodes; in a tree also of the nodes behind them.

        A node leaves when its `main` has returned: a short one may be gone before this one begins.
        """

    @property
    @abstractmethod
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job; empty for a node unknown to this one."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether this node is one of several; True also after the others have left or are lost."""

    @property
    @abstractmethod
    def has_audience(self) -> bool:
        """Whether another node is connected, or was lost and may come back."""

    @property
    @abstractmethod
    def grows(self) -> bool:
        """Whether the job is elastic; empty labels in `world` then mean a free place."""

    @property
    @abstractmethod
    def may_leave(self) -> bool:
        """Whether the end of this node's own run does not end the job."""

    @property
    @abstractmethod
    def address(self) -> str | None:
        """The address on which this node listens; None if it does not."""

    @property
    @abstractmethod
    def host(self) -> str | None:
        """The host by which other nodes reach this machine, for connections without the router.

        None if the router listens on all interfaces and dials no other machine.
        """

    @abstractmethod
    def coordinator_of(self, members: Sequence[int]) -> int:
        """Return a node that all these nodes can call, the same one on each of them.

        Raises:
            ConfigError: There is no such node.
        """

    @abstractmethod
    def _is_unreachable(self, node: int) -> bool:
        """Return whether the topology never connects this node with another."""

    def _fault_of_topology(self, nodes: Sequence[int]) -> str | None:
        """Return a message if the topology never connects this node with any of the nodes."""
        if not nodes or not all(map(self._is_unreachable, nodes)):
            return None
        names = f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
        return (
            f"The topology of the job never connects node {self.node_id} with {names}, and no node "
            f'relays messages. Use topology="mesh"; or, in a star, let the node that all others '
            f"need be the hub, node 0: name its role first in `roles`."
        )

    @abstractmethod
    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every peer is connected.

        Raises:
            DeadlineExceeded: A peer is missing; the message names it.
            AuthenticationError: A peer has refused this node; the message says why.
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
        """

    # -- events ----------------------------------------------------------------------------------

    @abstractmethod
    def emit(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node: exactly once, in order.

        Raises:
            CodecError: The name or an argument cannot be sent.
            TransportError: A peer has been too slow for too long.
        """

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the thread that reads messages.

        A task's listeners (`task.on`) run between two middleware instead, and are the usual way.
        """
        check_listener(event, fn)
        self.join(Listening(event, fn))

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Deliver messages to a receiver from now on; the returned function ends that.

        The first receiver also gets the messages that came while there was none.
        """
        return self._inbox.join(receiver)

    # -- state -----------------------------------------------------------------------------------

    @abstractmethod
    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        """Publish a value under a topic, for `subscribe` on other nodes; the newest value wins.

        It never waits: a slow receiver skips values, and ends with the newest. Large
        arrays go through shared memory to nodes of the same machine.

        Args:
            topic: The name of the topic, such as `actor/weights`.
            tree: The value; a snapshot is sent, so it may change after the call.
            to: Patterns of the labels of the receivers; by default all connected nodes. If they
                match no node of the job, a warning says so, once.

        Raises:
            ConfigError: The topic is no name.
            LabelError: `to` is empty, or a pattern is malformed.
            CodecError: The value cannot be encoded, or is of the 10,001st topic of this node.
        """

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Publish each key of a ctx under a separate topic, `ctx/KEY`.

        A value that cannot be encoded is not sent, with one warning for each key.
        """
        self._publish_parts([(values, to)])

    @abstractmethod
    def _publish_parts(self, parts: Sequence[CtxPart]) -> None:
        """Publish parts of a ctx, each to other nodes; a node gets all of its parts together."""

    @abstractmethod
    def published(self, topic: str) -> Any:
        """Return the last value that this node has published under a topic, or None.

        Tensors are copies. Arrays do not change.
        """

    def subscribe(
        self,
        *topics: str,
        on_values: Callable[[int, Mapping[str, Any]], None] = lambda node, values: None,
    ) -> Subscription:
        """Subscribe to topics of all nodes; the newest value of each node is kept.

        Values that have arrived before are included; those of a ctx (`ctx/KEY`) only until a task
        has received them, which has them in its `parallel_ctx`.

        Args:
            *topics: The names of the topics.
            on_values: Called with a node and its newest values whenever some arrive, on the thread
                that reads messages; it must not block, or call the router.
        """
        subscription = Subscription(
            topics,
            on_values=on_values,
            pump=self.pump,
            wake_pump=self.wake_pump,
            is_ending=self._is_ending,
            clock=self._clock,
        )
        self._inbox.subscribe(subscription)
        return subscription

    # -- calls -----------------------------------------------------------------------------------

    @abstractmethod
    def register(self, name: str, fn: Callable[..., Any], *, quick: bool = False) -> None:
        """Answer calls of this name with `fn`, on a worker thread of the router.

        A call that arrives up to 5 s before its handler is registered waits for it. Each peer has
        two threads of its own, so that calls of one that hang do not stop those of others.

        Args:
            name: The name of the call.
            fn: The handler; gets the arguments of the call. It may return a `Future` to answer
                later.
            quick: Run `fn` on the thread that reads messages, which saves two thread switches. It
                must take less than a millisecond and never wait.

        Raises:
            ConfigError: The name is taken, or `fn` cannot be called.
        """

    def call(
        self, node: int, name: str, /, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> Any:
        """Call a handler of another node, and wait for the answer.

        Args:
            node: The id of the node. A call to this node is answered without a message; its
                handler and its caller get copies, too.
            name: The name of the handler.
            *args: Arguments of the handler.
            timeout: Seconds; `None` waits for ever.
            **kwargs: Keyword arguments of the handler, except `timeout`.

        Raises:
            RemoteError: The handler has raised; the error has its traceback.
            PeerLost: The node is not connected, or was lost before it answered.
            DeadlineExceeded: No answer came in time.
            CodecError: An argument cannot be encoded.
            StepCancelled: The calling step has failed meanwhile.
            MiddlewareError: A coroutine calls.
            TransportError: This thread reads messages, and cannot wait for one meanwhile.
        """
        deadline = Deadline.after(timeout, self._clock)
        if node != self.node_id:
            self._begin_wait(timeout)
        answer = self.ask(node, name, *args, **kwargs)
        answer.add_done_callback(lambda _: self.wake_pump())
        with Wait(self.wake_pump) as wait:
            self.pump(lambda: answer.done() or wait.is_over, deadline.remaining)
        try:
            return deadline.result_of(answer)
        except StepCancelled:
            self._give_up(answer)
            raise
        except FutureTimeout:
            if answer.done():  # the handler's own
                raise
            self._give_up(answer)
            raise DeadlineExceeded(
                f"Node {node} has not answered `{name}` within {timeout:g} s. Is it busy or "
                f"hung, or has it no such handler? A slow call needs a longer `timeout`."
            ) from None

    def _give_up(self, answer: Future[Any]) -> None:
        """Drop a pending call for which its caller no longer waits."""
        return

    @abstractmethod
    def ask(self, node: int, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a handler of another node without waiting; return a future of the answer.

        The call cannot be taken back: `cancel` of its future does nothing.

        Raises:
            CodecError: An argument cannot be encoded.
        """

    # -- streams ---------------------------------------------------------------------------------

    def send(
        self,
        stream: str,
        tree: Any,
        *,
        to: str | Iterable[str],
        in_flight: int = 2,
        timeout: float | None = 60.0,
        until: Until | None = None,
    ) -> bool:
        """Send an item to exactly one of the nodes that label patterns match.

        It waits until one of them has room. This node is a receiver too if its own labels match.

        After a broken link the receiver keeps its items. If it comes back in a new incarnation,
        leaves, loses its place in an elastic job, or is away for more than two minutes, other
        nodes get the items that it has not acknowledged. Unless it has left, it may have taken
        one of them just before; that item is then taken twice, with the same `Item.id`.

        Args:
            stream: The stream's name.
            tree: The item; a snapshot is sent, so it may change after the call.
            to: Patterns of the labels of the receivers.
            in_flight: Items of this stream that each receiver may hold before it takes them. More
                hide more delay and cost more memory; 2 is usual.
            timeout: Seconds to wait for room; `None` waits for ever.
            until: Ends the wait when it returns True; called again at each `wake`.

        Returns:
            Whether the item was sent; False if `until` ended the wait.

        Raises:
            ConfigError: The stream is no name, or `in_flight` no whole number from 1 on.
            LabelError: No node of the job has a label that a pattern matches, or the topology
                never connects this node with such a node.
            DeadlineExceeded: No receiver had room in time.
            CodecError: The item cannot be encoded.
        """
        stream = check_name(stream, "a stream")
        check_all(whole(1, in_flight=in_flight))
        patterns = check_patterns(to, of_receivers=True)
        began_ns, number, at_ns = self.traced.now(), 0, 0

        def write(own_number: int, oldest: int) -> Any:
            nonlocal number, at_ns
            number, at_ns = own_number, self.traced.now()
            return self._item(stream, number, oldest, tree)

        has_ended = self._checked(until, timeout)

        def is_over() -> bool:
            if has_ended():
                return True
            if (error := self._unmatched(patterns)) is not None:
                raise error
            return False

        is_sent = self._streams.send(
            stream,
            write,
            patterns,
            in_flight=in_flight,
            timeout=timeout,
            until=is_over,
        )
        self.traced.item_sent(stream, began_ns, number, at_ns)
        return is_sent

    def _find_node(self, label: str) -> str:
        """Return the label `node.N` of the node with a label; the same label if it is unknown."""
        patterns = check_patterns(label)
        known = [(f"node.{node}", labels) for node, labels in enumerate(self.world)]
        found = [name for name, labels in known if matches(labels | {name}, patterns)]
        if len(found) > 1:
            raise LabelError(
                f"`of({label!r})` is the ctx of one node, and {', '.join(found)} match it. "
                f"Ask for each by its own label."
            )
        is_alone = len(known) == 1  # with a file that may be for several nodes
        if not (found or is_alone) and (error := self._unmatched(patterns, f"of({label!r})")):
            raise error
        return found[0] if found else label

    def _unmatched(self, patterns: tuple[str, ...], asked: str = "") -> LabelError | None:
        """Return the error for patterns that match no node that this one is ever connected with.

        None if the labels of some nodes are not known.
        """
        world = self.world
        if self.grows or not all(world):
            return None
        far = []
        for node, labels in enumerate(world):  # as far as the first receiver: `send` asks often
            if matches(labels, patterns):
                if not self._is_unreachable(node):
                    return None
                far.append(node)
        if fault := self._fault_of_topology(far):
            return LabelError(f"{fault} They match {list(patterns)}.")
        known = sorted(frozenset().union(*world))
        return LabelError(
            f"No node of this job is matched by `{asked or f'to={list(patterns)}'}`, so nothing "
            f"would ever arrive.{did_you_mean(patterns[0], known)} The labels of the nodes are: "
            f"{', '.join(known)}."
        )

    def _checked_receivers(
        self, call: str, to: str | Iterable[str] | None
    ) -> tuple[str, ...] | None:
        """Return the patterns of receivers; warn once if they match no node of the job.

        A warning only: a job may be started without nodes of a role.
        """
        patterns = None if to is None else check_patterns(to, of_receivers=True)
        # A node that is alone may run a file that is for several.
        if patterns and len(self.world) > 1 and (error := self._unmatched(patterns)):
            self._throttle.once(logging.WARNING, f"{call} {patterns}", "`%s`: %s", call, error)
        return patterns

    @abstractmethod
    def _item(self, stream: str, number: int, oldest: int, tree: Any) -> Any:
        """Return an item as it is sent: its number, the oldest number under way, and a snapshot."""

    def receive(
        self, stream: str, *, timeout: float | None = 60.0, until: Until | None = None
    ) -> Item | None:
        """Wait for the next item of a stream.

        Args:
            stream: The stream's name.
            timeout: Seconds; `None` waits for ever.
            until: Ends the wait when it returns True; called again at each `wake`.

        Returns:
            The item with its sender; None if `until` ended the wait.

        Raises:
            ConfigError: The stream is no name.
            DeadlineExceeded: No item arrived in time.
        """
        stream = check_name(stream, "a stream")
        return self._streams.receive(stream, timeout=timeout, until=self._checked(until, timeout))

    # -- waiting ---------------------------------------------------------------------------------

    def _task_of_node(self) -> Any:
        """Return the task that runs now: one made in `main`, or else the first; None for none."""
        return min([*self.running], key=attrgetter("_is_helper"), default=None)

    def _is_ending(self) -> bool:
        """Return whether the job ends, or a step of async mode fails, while a task runs."""
        task = self._task_of_node()
        return task is not None and bool(task.finish)

    def _is_reading(self) -> bool:
        """Return whether this call is within a callback, on the thread that reads messages."""
        return False

    def _begin_wait(self, timeout: float | None) -> None:
        """Prepare for a wait; raise an error on a thread that others need meanwhile."""
        may_wait = timeout is None or timeout > 0
        if may_wait and isinstance(threading.current_thread(), CoroutineThread):
            raise MiddlewareError(
                "A coroutine cannot wait for a message, as no other coroutine could run meanwhile. "
                "Wait in a middleware that is a plain function, or on another thread: `await "
                "asyncio.to_thread(task.wait_for, event)`."
            )

    def _checked(self, until: Until | None, timeout: float | None) -> Until:
        """Return `until` for a wait that may not begin on the thread that reads messages."""

        def is_over() -> bool:
            if until is not None and until():
                return True
            self._begin_wait(timeout)
            return False

        return is_over

    def wake(self) -> None:
        """Wake all blocked calls so that they check `until` again."""
        self._streams.wake()
        self._inbox.wake()

    def pump(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Read messages on this thread until `ready()`, if that saves time; may return early.

        Another thread that makes `ready` true calls `wake_pump`. By default it only checks that
        this thread may wait.

        Args:
            ready: Checked after each message, and after `wake_pump`. It must not wait.
            timeout: Maximum seconds; None for no limit.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
        """
        if not ready():
            self._begin_wait(timeout)

    def wake_pump(self) -> None:
        """Make the pumping thread check `ready` again; safe from any thread."""
        return


def check_handler(name: object, fn: object) -> None:
    """Raise ConfigError unless these are the name of a call and a function."""
    if not isinstance(name, str) or not name or not callable(fn):
        raise ConfigError(
            f"A handler is a name and a function, not {name!r} and {fn!r}: "
            f'`router.register("sample", replay.sample)`.'
        )
    if inspect.iscoroutinefunction(fn):
        raise ConfigError(
            f"The handler of `{name}` is an `async def`; a plain function was expected. "
            f"A handler that answers later returns a `concurrent.futures.Future`."
        )


def guard(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Future[Any]:
    """Run a handler; return a future of its result or exception."""
    answer: Future[Any] = Future()
    try:
        result = handler(*args, **kwargs)
    except BaseException as error:  # the caller raises it, also a SystemExit
        if isinstance(error, KeyboardInterrupt) and is_for_program(error):  # Ctrl-C
            raise
        answer.set_exception(error)
    else:
        if issubclass(type(result), Future):  # its `__class__` may be wrong
            return cast("Future[Any]", result)
        answer.set_result(result)
    return answer
