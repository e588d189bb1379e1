"""A node's end of the calls: it asks other nodes, and answers them on threads of its own."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future, TimeoutError as FutureTimeout
from functools import partial
from typing import Any, Protocol

from ding_lite.cancellation import Wait
from ding_lite.clock import Clock, Deadline
from ding_lite.errors import CodecError, DeadlineExceeded, StepCancelled
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.router.calls import Answers, Calls, EarlyCalls, Handler
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import CallArrived, ReplyArrived, encode_call
from ding_lite.runtime.concurrency import Workers
from ding_lite.runtime.messaging.events import MessagePump
from ding_lite.runtime.messaging.router import Router, use_router

NUM_WORKERS = 2
"""Threads that answer the calls of other nodes."""


class PumpedRouter(Router, MessagePump, Protocol):
    """A router whose messages a thread that waits may read itself."""


class CallEndpoint:
    """Asks other nodes, and answers them.

    Args:
        node_id: This node.
        links: Whom it is connected to.
        traced: What it has for a time line.
        clock: What waits are measured by.
        router: What handlers find as their node's router.
    """

    def __init__(
        self, node_id: int, links: Links, traced: MessageTrace, clock: Clock, router: PumpedRouter
    ) -> None:
        self._node_id = node_id
        self._links = links
        self._clock = clock
        self._traced = traced
        self._router = router
        self._calls = Calls()
        self._early = EarlyCalls(clock)
        self._answers = Answers(self._reply)
        self._workers = Workers(NUM_WORKERS)
        self._services: dict[str, Handler] = {}
        self.onward: Callable[[int, Encoded], Future[Any]] | None = None
        """Asks the nodes that this one is not connected to, where others pass that on."""

    @property
    def num_under_way(self) -> int:
        """How many calls of this node wait for their answers."""
        return self._calls.num_under_way

    # -- asking ------------------------------------------------------------------------------

    def call(
        self, node: int, name: str, args: tuple[Any, ...], kwargs: Any, timeout: float | None
    ) -> Any:
        """Ask a node, and wait for its answer.

        Raises:
            RemoteError: The handler has raised.
            PeerLost: The node is not connected, or was lost before it answered.
            DeadlineExceeded: No answer came in time.
            CodecError: An argument cannot travel.
            StepCancelled: The step that asks has failed meanwhile.
        """
        answer = self.ask(node, name, args, kwargs)
        deadline = Deadline.after(timeout, self._clock)
        answer.add_done_callback(lambda _: self._links.wake_pump())
        with Wait(self._links.wake_pump) as wait:
            self._router.pump(lambda: answer.done() or wait.is_over, timeout)
        try:
            return deadline.result_of(answer)
        except StepCancelled:
            self._calls.forget(answer)
            raise
        except FutureTimeout:
            if answer.done():  # the handler's own
                raise
            self._calls.forget(answer)
            raise DeadlineExceeded(
                f"Node {node} has not answered `{name}` within {timeout:g} s. Is it busy or "
                f"hung? A call that takes long needs a longer `timeout`."
            ) from None

    def ask(self, node: int, name: str, args: tuple[Any, ...], kwargs: Any) -> Future[Any]:
        """Ask a node, which may be this one, without waiting.

        Raises:
            CodecError: An argument cannot travel.
        """
        if node == self._node_id:
            return self._calls.handle(name, args, kwargs)
        return self.send(node, name, encode_call(name, args, kwargs))

    def send(self, node: int, name: str, request: Encoded) -> Future[Any]:
        """Ask another node by a request that is encoded already."""
        if self.onward is not None and node not in self._links.sessions:
            return self.onward(node, request)
        began_ns = self._traced.now()
        number, answer = self._calls.begin(node)
        with self._links.changed:
            session = self._links.sessions.get(node)
            if session is not None and session.is_open:
                session.call(number, request)
                self._traced.asked(name, began_ns, number)
                self._links.say(node)
            else:
                session = None
        if session is None:
            self._calls.refuse(
                number,
                f"Node {node} cannot be asked for `{name}`: node {self._node_id} is not connected "
                f"to it. Connected are: {[*self._links.connected] or 'none'}.",
            )
        return answer

    def settle(self, peer: int, reply: ReplyArrived, began_ns: int) -> None:
        """Take a node's answer."""
        if not self._calls.settle(peer, reply.number, reply.ok, reply.value):
            self._links.reject(f"Node {peer} answers call {reply.number}, which nothing waits for.")
        self._traced.answer_came(peer, reply, began_ns)

    # -- answering ---------------------------------------------------------------------------

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        """Answer calls of this name, and those that wait for it.

        Raises:
            ConfigError: The name is taken, or `fn` cannot be called.
        """
        self._calls.register(name, fn, quick=quick)
        self._start(self._early.take(name))

    def serve(self, name: str, fn: Handler) -> None:
        """Answer calls of this name in their order, on the thread that reads them.

        `fn` also gets who asks, as its first argument: it has no need to believe a word of it.
        """
        self._services[name] = fn

    def take(self, peer: int, call: CallArrived, *, asker: int | None = None) -> None:
        """Answer a call that has come, now or when its handler is there.

        Args:
            peer: Who gets the answer.
            call: The call.
            asker: Who has asked, if `peer` has only passed it on.
        """
        sender = peer if asker is None else asker
        self._answers.begin(peer, call.number)
        service = self._services.get(call.name)
        if service is not None:
            began_ns = self._traced.now()
            answer = self.guard(service, sender, call.args, call.kwargs)
            if answer.done() and isinstance(error := answer.exception(), CodecError):
                self._links.reject(f"Node {sender} calls `{call.name}`: {error}")
            self._traced.item_came(sender, call.args, answer, began_ns)
            self._answers.give(peer, call.number, answer)
        elif self._calls.is_quick(call.name):
            self._answer(peer, call)
        elif self._calls.answers(call.name) or not self._early.hold(peer, call):
            self._start([(peer, call)])
        elif self._calls.answers(call.name):  # registered just now
            self._start(self._early.take(call.name))

    def guard(
        self, service: Handler, peer: int, args: Iterable[Any], kwargs: Any = None
    ) -> Future[Any]:
        """Put what a service answers a node, or why it does not, into a future."""
        return self._calls.guard(service, (peer, *args), kwargs or {})

    def _start(self, calls: Iterable[tuple[int, CallArrived]]) -> None:
        for peer, call in calls:
            self._workers.submit(partial(self._answer, peer, call))

    def _answer(self, peer: int, call: CallArrived) -> None:
        began_ns = self._traced.now()
        with use_router(self._router):
            answer = self._calls.handle(call.name, call.args, call.kwargs)
        self._traced.answered(peer, call, began_ns)
        self._answers.give(peer, call.number, answer)

    def _reply(self, peer: int, number: int, body: Encoded) -> None:
        with self._links.changed:
            session = self._links.sessions.get(peer)
            if session is not None:  # else it had joined, and has left meanwhile
                session.reply(number, body)
                self._links.say(peer)

    # -- the passing of time -----------------------------------------------------------------

    def turn(self) -> None:
        """Answer those who have waited for a handler for long enough."""
        self._start(self._early.overdue())

    def forget(self, peer: int) -> None:
        """End what is under way with a node that is gone."""
        self._early.forget(peer)
        self._answers.forget(peer)
        self._calls.fail(peer)

    def leave(self) -> None:
        """Let no call wait for a handler any more."""
        self._start(self._early.close())

    def owes(self, nodes: Container[int]) -> bool:
        """Whether one of these nodes waits for an answer that can be given."""
        return self._answers.has_any_for(nodes)

    def end(self) -> None:
        """End the calls of this node: it is not connected to anybody any more."""
        self._calls.end()

    def close(self) -> None:
        """End the threads."""
        self._workers.close()
