"""The router: a node's way to the other nodes, as the runtime sees it.

The runtime owns this protocol so that it need not know about processes or sockets; the
parallel floor implements it and sets it before `main()` runs. `LocalRouter` is its twin for
one process: a node that is alone, or several nodes on threads of one process, for tests and
for stepping through a distributed program in a debugger.
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ding_lite.errors import (
    CodecError,
    DeadlineExceeded,
    LabelError,
    PeerLost,
    RemoteError,
    did_you_mean,
)
from ding_lite.log import Throttle
from ding_lite.runtime.inbox import Inbox, Listening, Receiver
from ding_lite.runtime.labels import check_labels, count_roles, matches, node_labels, several
from ding_lite.runtime.meetings import MEET, PAIRED, Meetings
from ding_lite.settings import Settings, check_all, whole

logger = logging.getLogger(__name__)

FINISH = "finish"
"""The event that says that the job ends; it follows from a task's latch, and stays true."""


class Router(Protocol):
    """A node's way to the other nodes."""

    @property
    def is_active(self) -> bool:
        """Whether anybody is connected."""
        ...

    @property
    def node_id(self) -> int:
        """This node's number in the job, from 0."""
        ...

    @property
    def labels(self) -> frozenset[str]:
        """The labels of this node."""
        ...

    @property
    def peers(self) -> tuple[int, ...]:
        """The ids of the nodes connected to this one."""
        ...

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node: exactly once, in order."""
        ...

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Offer ctx values to the connected nodes that `to` matches; the newest wins."""
        ...

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the router's own thread.

        A task's listeners (`task.on`) run on the task's time instead, and are the usual way.
        """
        ...

    def register(self, name: str, fn: Callable[..., Any]) -> None:
        """Answer calls of this name with `fn`, which may return a `Future` to answer later."""
        ...

    def call(
        self, node: int, name: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> Any:
        """Ask a node, and wait for its answer."""
        ...

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every neighbour is connected."""
        ...

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job."""
        ...

    @property
    def meetings(self) -> Meetings:
        """What this node knows of the groups it is in."""
        ...

    def meeting_point(self, members: Sequence[int]) -> int:
        """Return a node that all these nodes can call, the same one on each of them."""
        ...

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Hand what arrives to a receiver from now on; the returned function ends that."""
        ...


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
        """Whether anybody is connected."""
        self._inbox = Inbox()
        self._handlers: dict[str, Callable[..., Any]] = {}
        self.meetings = Meetings()
        self.register(MEET, self.meetings.meet)
        self.register(PAIRED, self.meetings.paired)
        self._throttle = Throttle(logger)

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

        for router, names in zip(routers, counted, strict=True):
            router._labels = node_labels(router._node_id, distributed=True, roles=names)
            router._group = tuple(other for other in routers if other is not router)
            router.is_active = num_nodes > 1
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
        for router in self._group:
            router._inbox.put_event(self._node_id, event, *_copy_said(event, args, kwargs))

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Offer a copy of ctx values to the connected nodes whose labels `to` matches."""
        patterns = None if to is None else several(to)
        for router in self._group:
            if patterns is None or matches(router._labels, patterns):
                router._inbox.put_ctx(self._node_id, self._copy(values))

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the thread that emits it."""
        self.join(Listening(event, fn))

    def register(self, name: str, fn: Callable[..., Any]) -> None:
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
        routers = {router._node_id: router for router in (self, *self._group)}
        if node not in routers:
            raise PeerLost(
                f"Node {node} cannot be asked for `{name}`: the nodes here are {sorted(routers)}."
            )
        handler = routers[node]._handlers.get(name)
        if handler is None:
            raise RemoteError(
                f"No call is answered under the name `{name}` on node {node}."
                f"{did_you_mean(name, routers[node]._handlers)}",
                node_id=node,
                kind="ConfigError",
            )
        given, named = copy.deepcopy((args, kwargs))
        try:
            answer = handler(*given, **named)
            if isinstance(answer, Future):
                answer = answer.result(timeout)
        except FutureTimeout as error:
            raise DeadlineExceeded(
                f"Node {node} has not answered `{name}` within {timeout:g} s."
            ) from error
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            kind = type(error).__name__
            raise RemoteError(
                f"{kind} on node {node}: {error}", node_id=node, kind=kind, remote_traceback=text
            ) from error
        return copy.deepcopy(answer)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Return at once: all nodes are here."""

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job."""
        routers = sorted((self, *self._group), key=lambda router: router._node_id)
        return tuple(router._labels for router in routers)

    def meeting_point(self, members: Sequence[int]) -> int:
        """Return the first of these nodes: each is connected to each."""
        return members[0]

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Hand what arrives to a receiver from now on; the returned function ends that.

        What came while nobody was there goes to the first receiver.
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
                    "`ctx.%s` stays on node %d: %s. `task.share(...)` names the keys that travel",
                    key,
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


_CURRENT: ContextVar[Router] = ContextVar("ding_lite_router")


def current_router() -> Router:
    """Return this node's router; a `LocalRouter` where nothing was launched."""
    try:
        return _CURRENT.get()
    except LookupError:
        router = LocalRouter()
        _CURRENT.set(router)
        return router


@contextmanager
def use_router(router: Router) -> Iterator[Router]:
    """Make a router the current one, in this thread, for the length of a `with` block."""
    token = _CURRENT.set(router)
    try:
        yield router
    finally:
        _CURRENT.reset(token)
