"""The router of a single node, which has no other nodes.

Calls and stream items that the node sends to itself are copied, as on a network, so a program runs
unchanged on one node and on several. Several nodes in one process are a `testing.Cluster`.
"""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    count_roles,
    matches,
    node_labels,
)
from ding_lite.runtime.messaging.streams import Parcel, Streams
from ding_lite.runtime.messaging.subscription import CTX, check_topic
from ding_lite.runtime.trace.messages import Traced
from ding_lite.settings.environment import Settings

logger = logging.getLogger(__name__)


class LocalRouter(Router):
    """The router of a single node, which is node 0 of its job and has no peers.

    It is the current router where no job was launched.

    Args:
        labels: Labels beside `standalone` and `node.0`; by default those of `DING_LITE_LABELS` and
            `DING_LITE_ROLES`.
    """

    node_id = 0
    peers = ()
    is_active = has_audience = grows = may_leave = False
    address: str | None = None
    host: str | None = None

    def __init__(self, *, labels: Iterable[str] | None = None) -> None:
        super().__init__()
        extra = labels_of_environment() if labels is None else check_labels(labels)
        self._labels = node_labels(self.node_id, distributed=False, extra=extra)
        self._published: dict[str, Any] = {}
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._streams = Streams(self._carry, self._withdraw, self._receivers, self._clock)
        self._serve_collectives()
        self._throttle = Throttle(logger)
        self.traced = Traced()

    @property
    def labels(self) -> frozenset[str]:
        return self._labels

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        return (self._labels,)

    def coordinator_of(self, members: Sequence[int]) -> int:
        return members[0]

    def _is_unreachable(self, node: int) -> bool:
        return False

    def wait_ready(self, timeout: float | None = None) -> None:
        pass

    def emit(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        if not isinstance(event, str) or not event:  # as on a network
            raise CodecError(f"The name of an event is a non-empty string, not {event!r:.80}.")

    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        topic = check_topic(topic)
        self._checked_receivers(f"publish({topic!r})", to)
        self._published[topic] = _copied(tree, f"The value of topic `{topic}`")

    def _publish_parts(self, parts: Sequence[CtxPart]) -> None:
        for values, _ in parts:
            for key, value in values.items():
                self._keep(CTX + key, value)

    def _keep(self, topic: str, value: Any) -> None:
        """Keep a copy of a value, unless it cannot be copied; a network does not send it then."""
        try:
            self._published[topic] = copy.deepcopy(value)
        except Exception as error:  # noqa: BLE001 - values copy themselves as they like
            self._throttle.once(
                logging.WARNING,
                topic,
                "`%s` stays on node %d: %s. `task.share` chooses the keys to send",
                topic.replace(CTX, "ctx."),
                self.node_id,
                error,
            )

    def published(self, topic: str) -> Any:
        return copy.deepcopy(self._published.get(topic))

    def register(self, name: str, fn: Callable[..., Any], *, quick: bool = False) -> None:
        check_handler(name, fn)  # it may replace another, as a server that starts again does
        self._handlers[name] = fn

    def ask(self, node: int, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if node != self.node_id:
            reason = f"Node {node} cannot be asked for `{name}`: the nodes here are [0]."
            answer.set_exception(PeerLost(reason))
            return answer

        def pass_on(done: Future[Any]) -> None:
            try:
                answer.set_result(_copied(done.result(), f"The result of call `{name}`"))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                answer.set_exception(_remote(node, error))

        given = _copied((args, kwargs), f"An argument of call `{name}`")
        guard(self._handle, (name, *given), {}).add_done_callback(pass_on)
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
        oldest, value = parcel.body
        return self._streams.arrive(node, 0, parcel.stream, parcel.number, oldest, value)

    def _withdraw(self, node: int, numbers: Sequence[int]) -> Future[Any]:
        raise AssertionError("a node does not lose itself")

    def _receivers(self, patterns: Iterable[str]) -> list[int]:
        return [self.node_id] if matches(self._labels, patterns) else []


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
