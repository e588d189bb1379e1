"""The `Router` protocol: the interface of the runtime to other nodes.

The runtime owns this protocol so that it need not know about processes or sockets; the
parallel floor implements it and sets it before `main()` runs. Where nothing was launched,
`LocalRouter` takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ding_lite.runtime.messaging.collectives import Collectives
from ding_lite.runtime.messaging.inbox import Receiver
from ding_lite.runtime.messaging.local_router import LocalRouter
from ding_lite.runtime.messaging.streams import Item, Until
from ding_lite.runtime.messaging.subscription import Subscription
from ding_lite.runtime.trace.messages import Traced


class Router(Protocol):
    """A node's way to the other nodes."""

    @property
    def is_active(self) -> bool:
        """Whether another node is connected."""
        ...

    @property
    def has_audience(self) -> bool:
        """Whether another node is connected, or was lost and may come back."""
        ...

    @property
    def grows(self) -> bool:
        """Whether nodes may join the job and leave it: no labels in `world` are an empty place."""
        ...

    @property
    def may_leave(self) -> bool:
        """Whether the end of this node's own run does not end the job."""
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

    @property
    def address(self) -> str | None:
        """The address at which peers dial this node, if they do."""
        ...

    @property
    def host(self) -> str | None:
        """The host by which other nodes reach this machine outside of the router.

        None where the router does not know, or no other machine takes part.
        """
        ...

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Send an event to every connected node: exactly once, in order."""
        ...

    def publish(self, topic: str, tree: Any, *, to: str | Iterable[str] | None = None) -> None:
        """Publish a value under a topic to the nodes that `to` matches; the newest wins."""
        ...

    def publish_ctx(self, values: Mapping[str, Any], *, to: Iterable[str] | None = None) -> None:
        """Publish each key of a ctx under a topic of its own."""
        ...

    def published(self, topic: str) -> Any:
        """Return what this node has published last under a topic, as it was then; else None."""
        ...

    def subscribe(self, *topics: str) -> Subscription:
        """Subscribe to topics of all nodes; the newest value of each node is kept."""
        ...

    def on(self, event: str, fn: Callable[..., object]) -> None:
        """Call `fn` with the arguments of each such event, on the thread that reads it.

        That is the router's own one, or one that waits for another node meanwhile.
        A task's listeners (`task.on`) run on the task's time instead, and are the usual way.
        """
        ...

    def register(self, name: str, fn: Callable[..., Any], *, quick: bool = False) -> None:
        """Answer calls of this name with `fn`, which may return a `Future` to answer later.

        One that never waits, and takes below a millisecond, may be said to be `quick`.
        """
        ...

    def call(
        self, node: int, name: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> Any:
        """Ask a node, and wait for its answer."""
        ...

    def ask(self, node: int, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask a node without waiting; the future gets the answer, or why there is none."""
        ...

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

        It waits until one of them has room, and returns False where `until` has ended that.
        """
        ...

    def receive(
        self, stream: str, *, timeout: float | None = 60.0, until: Until | None = None
    ) -> Item | None:
        """Wait for the next item of a stream; None where `until` has ended that."""
        ...

    def wake(self) -> None:
        """Wake all blocked calls so that they check `until` again."""
        ...

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every peer is connected."""
        ...

    @property
    def traced(self) -> Traced:
        """The trace of this node's messages."""
        ...

    @property
    def world(self) -> tuple[frozenset[str], ...]:
        """The labels of every node of the job."""
        ...

    @property
    def collectives(self) -> Collectives:
        """The collective operations and named values of this node."""
        ...

    def coordinator_of(self, members: Sequence[int]) -> int:
        """Return a node that all these nodes can call, the same one on each of them."""
        ...

    def join(self, receiver: Receiver) -> Callable[[], None]:
        """Deliver messages to a receiver from now on; the returned function ends that."""
        ...


def is_alone(router: Router) -> bool:
    """Return whether this node has no peers, as far as it can know."""
    return not (router.is_active if router.grows else router.has_audience)


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
