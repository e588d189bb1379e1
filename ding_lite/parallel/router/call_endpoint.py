"""The call endpoint of a node: calls other nodes, and answers them on worker threads."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future, TimeoutError as FutureTimeout
from functools import partial
from typing import Any

from ding_lite.cancellation import Wait
from ding_lite.clock import Clock, Deadline
from ding_lite.errors import CodecError, DeadlineExceeded, StepCancelled
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.router.calls import Answers, Calls, EarlyCalls, Handler
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import CallArrived, ReplyArrived, encode_call
from ding_lite.runtime.concurrency import Workers
from ding_lite.runtime.messaging.router import Router, use_router

NUM_WORKERS = 2
"""Worker threads that answer the calls of other nodes."""


class CallEndpoint:
    """Call other nodes, and answer their calls.

    Args:
        node_id: This node.
        links: Its links.
        traced: Records messages for a timeline.
        clock: Measures timeouts.
        router: The current router within handlers.
    """

    def __init__(
        self, node_id: int, links: Links, traced: MessageTrace, clock: Clock, router: Router
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
        """Calls nodes beyond the peers over relays; None without relays."""

    @property
    def num_under_way(self) -> int:
        """The number of calls of this node without an answer."""
        return self._calls.num_under_way

    # -- calling -----------------------------------------------------------------------------

    def call(
        self, node: int, name: str, args: tuple[Any, ...], kwargs: Any, timeout: float | None
    ) -> Any:
        """Call a node, and wait for its answer.

        Raises:
            RemoteError: The handler has raised.
            PeerLost: The node is not connected, or was lost before it answered.
            DeadlineExceeded: No answer came in time.
            CodecError: An argument cannot be encoded.
            StepCancelled: The calling step has failed meanwhile.
        """
        answer = self.ask(node, name, args, kwargs)
        deadline = Deadline.after(timeout, self._clock)
        answer.add_done_callback(lambda _: self._router.wake_pump())
        with Wait(self._router.wake_pump) as wait:
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
                f"hung? A slow call needs a longer `timeout`."
            ) from None

    def ask(self, node: int, name: str, args: tuple[Any, ...], kwargs: Any) -> Future[Any]:
        """Call a node, which may be this one, without waiting.

        Raises:
            CodecError: An argument cannot be encoded.
        """
        if node == self._node_id:
            return self._calls.handle(name, args, kwargs)
        return self.send(node, name, encode_call(name, args, kwargs))

    def send(self, node: int, name: str, request: Encoded) -> Future[Any]:
        """Send an encoded call to another node."""
        if self.onward is not None and node not in self._links.sessions:
            return self.onward(node, request)
        began_ns = self._traced.now()
        number, answer = self._calls.begin(node)
        with self._links.changed:
            session = self._links.sessions.get(node)
            if session is not None and session.is_open:
                session.call(number, request)
                self._traced.asked(name, began_ns, number)
                self._links.flush(node)
            else:
                session = None
        if session is None:
            self._calls.refuse(
                number,
                f"Node {node} cannot be called (`{name}`): node {self._node_id} is not connected "
                f"to it. Connected are: {[*self._links.connected] or 'none'}.",
            )
        return answer

    def settle(self, peer: int, reply: ReplyArrived, began_ns: int) -> None:
        """Settle a call with the answer of a node."""
        if not self._calls.settle(peer, reply.number, reply.ok, reply.value):
            self._links.reject(f"Node {peer} answers call {reply.number}, which is not pending.")
        self._traced.answer_came(peer, reply, began_ns)

    # -- answering ---------------------------------------------------------------------------

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        """Register the handler of a name, and answer calls that wait for it.

        Raises:
            ConfigError: The name is taken, or `fn` cannot be called.
        """
        self._calls.register(name, fn, quick=quick)
        self._start(self._early.take(name))

    def serve(self, name: str, fn: Handler) -> None:
        """Register a service: it answers in order, on the thread that reads messages.

        `fn` gets the calling node as its first argument; the other arguments are untrusted.
        """
        self._services[name] = fn

    def take(self, peer: int, call: CallArrived, *, asker: int | None = None) -> None:
        """Answer a received call, now or when its handler is registered.

        Args:
            peer: The receiver of the answer.
            call: The call.
            asker: The calling node, if `peer` has only relayed the call.
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
        """Run a service; return a future of its result or exception."""
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
            if session is not None:  # else the node has left meanwhile
                session.reply(number, body)
                self._links.flush(peer)

    # -- deadlines and closing ---------------------------------------------------------------

    def tick(self) -> None:
        """Answer calls that have waited for a handler for too long."""
        self._start(self._early.overdue())

    def forget(self, peer: int) -> None:
        """Fail the calls to a node that is gone, and drop its calls."""
        self._early.forget(peer)
        self._answers.forget(peer)
        self._calls.fail(peer)

    def leave(self) -> None:
        """Answer all calls that wait for a handler."""
        self._start(self._early.close())

    def owes(self, nodes: Container[int]) -> bool:
        """Whether one of these nodes waits for an answer that is done or being computed."""
        return self._answers.has_any_for(nodes)

    def end(self) -> None:
        """Fail all calls of this node: it has disconnected."""
        self._calls.end()

    def close(self) -> None:
        """End the worker threads."""
        self._workers.close()
