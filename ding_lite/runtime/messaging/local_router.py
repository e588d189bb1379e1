"""The router of a node that is in one process with all nodes that it can reach.

A single one is the only node of its job. Several ones, on threads of one process, are a job for
tests and for stepping through a distributed program in a debugger. Messages between them are
copied, as on a network.
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ding_lite.errors import (
    CodecError,
    LabelError,
    NotRegistered,
    PeerLost,
    RemoteError,
    did_you_mean,
)
from ding_lite.log import Throttle
from ding_lite.runtime.messaging.base import CtxPart, Router, check_handler, guard
from ding_lite.runtime.messaging.labels import (
    check_labels,
    check_own_labels,
    check_patterns,
    count_roles,
    matches,
    node_labels,
    several,
)
from ding_lite.runtime.messaging.streams import Parcel, Streams
from ding_lite.runtime.messaging.subscription import CTX, check_topic
from ding_lite.runtime.trace.messages import Traced
from ding_lite.settings.environment import Settings
from ding_lite.settings.rules import check_all, whole

logger = logging.getLogger(__name__)


class LocalRouter(Router):
    """The router of a node that is in one process with all nodes that it can reach.

    A router made by itself is the only node, and is never active. `LocalRouter.group` makes several
    routers that are connected to each other, each for a separate thread.

    Args:
        node_id: This node's number.
        labels: Labels beside `standalone` and `node.<id>`; by default those of
            `DING_LITE_LABELS` and `DING_LITE_ROLES`.
    """

    __slots__ = ("has_audience",)  # each step reads it, and a slot takes a third of the time
    has_audience: bool

    is_active = False
    grows = may_leave = False
    address: str | None = None
    host: str | None = None

    def __init__(self, node_id: int = 0, *, labels: Iterable[str] | None = None) -> None:
        super().__init__()
        self._node_id = node_id
        extra = labels_of_environment() if labels is None else check_labels(labels)
        self._labels = node_labels(node_id, distributed=False, extra=extra)
        self._group: tuple[LocalRouter, ...] = ()
        self.has_audience = False
        self._published: dict[str, Any] = {}
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._streams = Streams(self._carry, self._withdraw, self._receivers, self._clock)
        self._serve_collectives()
        self._throttle = Throttle(logger)
        self.traced = Traced()

    @classmethod
    def group(
        cls, num_nodes: int, *, roles: Sequence[str | Iterable[str]] | None = None
    ) -> tuple[LocalRouter, ...]:
        """Make `num_nodes` routers, all connected to each other.

        Args:
            num_nodes: The number of nodes.
            roles: One entry per node: a role, or a set of roles.

        Raises:
            ConfigError: There would be no node, or the number of `roles` differs.
        """
        check_all(whole(1, num_nodes=num_nodes))
        roles = [()] * num_nodes if roles is None else roles
        counted = count_roles(roles, num_nodes=num_nodes)
        routers = tuple(cls(node_id, labels=()) for node_id in range(num_nodes))

        for router, names in zip(routers, counted, strict=True):
            router._labels = node_labels(router._node_id, distributed=True, roles=names)
            router._group = tuple(other for other in routers if other is not router)
            router.is_active = router.has_audience = num_nodes > 1
        return routers

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def labels(self) -> frozenset[str]:
        return self._labels

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(router._node_id for router in self._group)

    def emit(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        if not isinstance(event, str) or not event:  # as on a network
            raise CodecError(f"The name of an event is a non-empty string, not {event!r:.80}.")
        for router in self._group:
            copies = _copied((args, kwargs), f"An argument of event `{event}`")
            router._inbox.put_event(self._node_id, event, *copies)

    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        topic, what = check_topic(topic), f"The value of topic `{topic}`"
        has_receivers = to is not None and bool(self._group)
        patterns = check_patterns(to or (), of_receivers=True) if has_receivers else ("*",)
        self._published[topic] = _copied(tree, what)
        for router in self._group:
            if matches(router._labels, patterns):
                router._inbox.put_state(self._node_id, {topic: _copied(tree, what)})

    def _publish_parts(self, parts: Sequence[CtxPart]) -> None:
        of_patterns = [
            ({CTX + key: v for key, v in values.items()}, several("*" if to is None else to))
            for values, to in parts
        ]
        for router in self._group:
            found: dict[str, Any] = {}
            for values, patterns in of_patterns:
                if matches(router._labels, patterns):
                    found |= values
            router._inbox.put_state(self._node_id, self._copy(found))
        for values, _ in of_patterns:
            self._published |= self._copy(values)

    def published(self, topic: str) -> Any:
        return copy.deepcopy(self._published.get(topic))

    def register(self, name: str, fn: Callable[..., Any], *, quick: bool = False) -> None:
        check_handler(name, fn)  # it may replace another, as a server that starts again does
        self._handlers[name] = fn

    def ask(self, node: int, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
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

        def pass_on(done: Future[Any]) -> None:
            try:
                answer.set_result(_copied(done.result(), f"The result of call `{name}`"))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                answer.set_exception(_remote(node, error))

        given = _copied((args, kwargs), f"An argument of call `{name}`")
        guard(routers[node]._handle, (name, *given), {}).add_done_callback(pass_on)
        return answer

    def _handle(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handler = self._handlers.get(name)
        if handler is None:
            raise NotRegistered(
                f"No call is answered under the name `{name}` on this node."
                f"{did_you_mean(name, self._handlers)}"
            )
        return handler(*args, **kwargs)

    def _item(self, stream: str, number: int, oldest: int, tree: Any) -> Any:
        return oldest, _copied(tree, f"An item of stream `{stream}`")

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
        pass  # all nodes are here

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        routers = sorted((self, *self._group), key=lambda router: router._node_id)
        return tuple(router._labels for router in routers)

    def coordinator_of(self, members: Sequence[int]) -> int:
        return members[0]

    def _copy(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Copy values; leave out those that cannot be copied, as on a network."""
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


def _copied(value: Any, what: str) -> Any:
    """Copy what is sent, as a whole, so that objects in it are still shared."""
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise CodecError(
            f"{what} cannot be sent: {error}. Send what the other nodes need of it."
        ) from error


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
    """Return the labels that `DING_LITE_LABELS` and `DING_LITE_ROLES` add to a single node."""
    settings = Settings.from_environ()
    with _naming("DING_LITE_ROLES"):
        roles = count_roles([role.split("+") for role in settings.roles])
    with _naming("DING_LITE_LABELS"):
        labels = check_own_labels(settings.labels)
    return labels | roles[0] if len(roles) == 1 else labels


@contextmanager
def _naming(variable: str) -> Iterator[None]:
    try:
        yield
    except LabelError as error:
        raise LabelError(f"{variable}: {error}") from None
