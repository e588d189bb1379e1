"""The router of a node that shares its process with all the nodes it can reach.

By itself it is the only node. Several on threads of one process are a job for tests, and for
stepping through a distributed program in a debugger. What passes between them is copied, as on
a wire.
"""

from __future__ import annotations

import copy
import itertools
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.errors import (
    CodecError,
    DeadlineExceeded,
    LabelError,
    NotRegistered,
    PeerLost,
    RemoteError,
    did_you_mean,
)
from ding_lite.log import Throttle
from ding_lite.runtime.messaging.collectives import COLLECTIVE, PAIRED, Collectives
from ding_lite.runtime.messaging.inbox import Inbox, Listening, Receiver
from ding_lite.runtime.messaging.labels import (
    check_labels,
    check_patterns,
    count_roles,
    matches,
    node_labels,
    several,
)
from ding_lite.runtime.messaging.streams import Item, Parcel, Streams, Until
from ding_lite.runtime.messaging.subscription import CTX, Subscription, check_topic
from ding_lite.runtime.trace.messages import Traced, TracedEvent, arrow_key
from ding_lite.settings import Settings, check_all, whole

logger = logging.getLogger(__name__)


class LocalRouter:
    """The router of a node that shares its process with all the nodes it can reach.

    Made by itself it is the only node and never active. `LocalRouter.group` makes several
    that are connected to each other, each for a thread of its own.

    Args:
        node_id: This node's number.
        labels: Labels beside `standalone` and `node.<id>`; those of `DING_LITE_LABELS` and
            `DING_LITE_ROLES` by default.
    """

    def __init__(self, node_id: int = 0, *, labels: Iterable[str] | None = None) -> None:
        self._node_id = node_id
        extra = labels_of_environment() if labels is None else check_labels(labels)
        self._labels = node_labels(node_id, distributed=False, extra=extra)
        self._group: tuple[LocalRouter, ...] = ()
        self.is_active = False
        """Whether another node is connected."""
        self.has_audience = False
        """The same, as no node here is ever lost; no property, since each step reads it."""
        self.grows = self.may_leave = False
        """Whether nodes may join the job, and leave it without ending it."""
        self.address: str | None = None
        """The address at which peers dial this node: there is none."""
        self.host: str | None = None
        """The host by which other machines reach this one: there is none."""
        self._inbox = Inbox()
        self._published: dict[str, Any] = {}
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._streams = Streams(self._carry, self._withdraw, self._receivers, SYSTEM_CLOCK)
        self.collectives = Collectives()
        self.register(COLLECTIVE, self.collectives.contribute)
        self.register(PAIRED, self.collectives.paired)
        self._throttle = Throttle(logger)
        self.traced = Traced()
        """The trace of this node's messages."""
        self._arrows = itertools.count()

    @classmethod
    def group(
        cls, num_nodes: int, *, roles: Sequence[str | Iterable[str]] | None = None
    ) -> tuple[LocalRouter, ...]:
        """Make `num_nodes` routers, all connected to each other.

        Args:
            num_nodes: How many nodes.
            roles: One entry a node: a role, or a set of roles.

        Raises:
            ConfigError: There would be no node, or `roles` are not those of so many.
        """
        check_all(whole(1, num_nodes=num_nodes))
        roles = [()] * num_nodes if roles is None else roles
        counted = count_roles(roles, num_nodes=num_nodes)
        routers = tuple(cls(node_id, labels=()) for node_id in range(num_nodes))

        began_ns = time.monotonic_ns()
        for router, names in zip(routers, counted, strict=True):
            router.traced = Traced(began_ns, shares_process=True)
            router._labels = node_labels(router._node_id, distributed=True, roles=names)
            router._group = tuple(other for other in routers if other is not router)
            router.is_active = router.has_audience = num_nodes > 1
        return routers

    @property
    def node_id(self) -> int:
        """This node's number in the job, from 0."""
        return self._node_id

    @property
    def labels(self) -> frozenset[str]:
        """The labels of this node."""
        return self._labels

    @property
    def peers(self) -> tuple[int, ...]:
        """The ids of the nodes connected to this one."""
        return tuple(router._node_id for router in self._group)

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node; each gets a copy of the arguments.

        Raises:
            CodecError: An argument cannot be copied.
        """
        tracer, began_ns, keys = self.traced.tracer, self.traced.now(), []
        for router in self._group:
            said, name = _copy_said(event, args, kwargs), event
            theirs = router.traced.tracer
            if tracer is not None and theirs is not None:
                keys.append(arrow_key("local event", self._node_id, next(self._arrows)))
                name = TracedEvent(event, theirs, keys[-1])
            router._inbox.put_event(self._node_id, name, *said)
        if tracer is not None and keys:
            where = tracer.slice(f"emit {event}", began_ns)
            for key in keys:
                tracer.arrow("s", "event", key, where, began_ns)

    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        """Publish a copy of a value under a topic; see `NodeRouter.publish`."""
        self._publish({check_topic(topic): tree}, to)

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Publish a copy of each key of a ctx under a topic of its own."""
        self._publish({CTX + key: value for key, value in values.items()}, to)

    def published(self, topic: str) -> Any:
        """Return what this node has published last under a topic, as it was then; else None."""
        return copy.deepcopy(self._published.get(topic))

    def subscribe(self, *topics: str) -> Subscription:
        """Subscribe to topics of all nodes; the newest value of each node is kept."""
        return self._inbox.subscribe(*topics)

    def _publish(self, values: Mapping[str, Any], to: str | Iterable[str] | None) -> None:
        patterns = None if to is None else several(to)
        for router in self._group:
            if patterns is None or matches(router._labels, patterns):
                router._inbox.put_state(self._node_id, self._copy(values))
        self._published |= self._copy(values)

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the thread that emits it."""
        self.join(Listening(event, fn))

    def register(self, name: str, fn: Callable[..., Any], *, quick: bool = False) -> None:
        """Answer calls of this name with `fn`, on the thread that calls."""
        self._handlers[name] = fn

    def call(
        self, node: int, name: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> Any:
        """Ask a node, and wait for its answer; arguments and answer are copied.

        Raises:
            PeerLost: There is no such node.
            RemoteError: Its handler has raised.
            DeadlineExceeded: No answer came in time.
        """
        answer = self.ask(node, name, *args, **kwargs)
        try:
            return Deadline.after(timeout).result_of(answer)
        except FutureTimeout as error:
            if answer.done():  # the handler's own
                raise
            raise DeadlineExceeded(
                f"Node {node} has not answered `{name}` within {timeout:g} s."
            ) from error

    def ask(self, node: int, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask a node without waiting; the future gets the answer, or why there is none."""
        answer: Future[Any] = Future()
        routers = {router._node_id: router for router in (self, *self._group)}
        if node not in routers:
            answer.set_exception(
                PeerLost(
                    f"Node {node} cannot be asked for `{name}`: the nodes here are "
                    f"{sorted(routers)}."
                )
            )
            return answer
        given, named = copy.deepcopy((args, kwargs))
        try:
            result = routers[node]._handle(name, given, named)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the asker's to raise
            answer.set_exception(_remote(node, error))
            return answer
        if not isinstance(result, Future):
            answer.set_result(copy.deepcopy(result))
            return answer

        def pass_on(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                answer.set_exception(_remote(node, error))
            else:
                answer.set_result(copy.deepcopy(done.result()))

        result.add_done_callback(pass_on)
        return answer

    def _handle(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handler = self._handlers.get(name)
        if handler is None:
            raise NotRegistered(
                f"No call is answered under the name `{name}` on this node."
                f"{did_you_mean(name, self._handlers)}"
            )
        return handler(*args, **kwargs)

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
        """Send a copy of an item to exactly one of the nodes that label patterns match.

        It waits until one of them has room. This node is a receiver too if its labels match.

        Returns:
            Whether the item was sent; False where `until` has ended the wait.

        Raises:
            DeadlineExceeded: No receiver had room in time.
        """
        check_all(whole(1, in_flight=in_flight))
        return self._streams.send(
            stream,
            lambda _number, oldest: (oldest, copy.deepcopy(tree)),
            check_patterns(to),
            in_flight=in_flight,
            timeout=timeout,
            until=until,
        )

    def receive(
        self, stream: str, *, timeout: float | None = 60.0, until: Until | None = None
    ) -> Item | None:
        """Wait for the next item of a stream that nodes have sent here.

        Returns:
            The item and its sender; None where `until` has ended the wait.

        Raises:
            DeadlineExceeded: None came in time.
        """
        return self._streams.receive(stream, timeout=timeout, until=until)

    def wake(self) -> None:
        """Wake all blocked calls so that they check `until` again."""
        self._streams.wake()
        self._inbox.wake()

    def _carry(self, node: int, parcel: Parcel) -> Future[Any]:
        [receiver] = [r for r in (self, *self._group) if r._node_id == node]
        oldest, value = parcel.body
        return receiver._streams.arrive(
            self._node_id, 0, parcel.stream, parcel.number, oldest, value
        )

    def _withdraw(self, node: int, numbers: Sequence[int]) -> Future[Any]:
        raise AssertionError("no node of one process is ever lost")

    def _receivers(self, patterns: Iterable[str]) -> list[int]:
        return [r._node_id for r in (self, *self._group) if matches(r._labels, patterns)]

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return at once: all nodes are here."""

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job."""
        routers = sorted((self, *self._group), key=lambda router: router._node_id)
        return tuple(router._labels for router in routers)

    def coordinator_of(self, members: Sequence[int]) -> int:
        """Return the first of these nodes: each is connected to each."""
        return members[0]

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Deliver messages to a receiver from now on; the returned function ends that.

        Messages that came while there was no receiver go to the first one.
        """
        return self._inbox.join(receiver)

    def _copy(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Copy what can be copied; the rest stays home, as on a wire."""
        copied = {}
        for key, value in values.items():
            try:
                copied[key] = copy.deepcopy(value)
            except Exception as error:  # noqa: BLE001 - values copy themselves as they like
                self._throttle.once(
                    logging.WARNING,
                    key,
                    "`%s` stays on node %d: %s. `task.share(...)` names the keys that travel",
                    key.replace(CTX, "ctx."),
                    self._node_id,
                    error,
                )
        return copied


def _copy_said(
    event: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return copy.deepcopy((args, kwargs))  # at once, so that they still share what they share
    except Exception as error:
        at_fault = ", ".join(
            f"`{name}`, a {type(value).__name__}"
            for name, value in [*enumerate(args), *kwargs.items()]
            if not _can_be_copied(value)
        )
        raise CodecError(
            f"Event `{event}` cannot travel with its argument {at_fault}: {error}. Send what the "
            f"other nodes need of it, or say `only_local=True`."
        ) from error


def _can_be_copied(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - values copy themselves as they like
        return False
    return True


def _remote(node: int, error: BaseException) -> RemoteError:
    kind = type(error).__name__
    remote = RemoteError(
        f"{kind} on node {node}: {error}",
        node_id=node,
        kind=kind,
        remote_traceback="".join(traceback.format_exception(error)),
    )
    remote.__cause__ = error
    return remote


def labels_of_environment() -> frozenset[str]:
    """Return what `DING_LITE_LABELS` and `DING_LITE_ROLES` add to a node that is alone."""
    settings = Settings.from_environ()
    with _blaming("DING_LITE_ROLES"):
        roles = count_roles([role.split("+") for role in settings.roles])
    with _blaming("DING_LITE_LABELS"):
        labels = check_labels(settings.labels)
    return labels | roles[0] if len(roles) == 1 else labels


@contextmanager
def _blaming(variable: str) -> Iterator[None]:
    try:
        yield
    except LabelError as error:
        raise LabelError(f"{variable}: {error}") from None
