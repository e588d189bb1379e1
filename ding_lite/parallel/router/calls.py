"""Remote procedure calls between nodes: calls of this node, and answers to other nodes' calls.

A call is sent at most once. If the link breaks before the answer, the caller gets `PeerLost` and
decides whether to call again; it is unknown whether the other node has done the work.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from concurrent.futures import CancelledError, Future
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

from ding_lite.clock import LOOK_UP_S, Clock, Deadline
from ding_lite.errors import (
    CodecError,
    ConfigError,
    NotRegistered,
    PeerLost,
    RemoteError,
    did_you_mean,
)
from ding_lite.interruption import words_of
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.wire.arrays import shorten
from ding_lite.parallel.wire.codec import Encoded, decode
from ding_lite.parallel.wire.messages import CallArrived, ReplyArrived, encode_call, encode_reply
from ding_lite.runtime.messaging.base import check_handler, guard
from ding_lite.runtime.messaging.collectives import COLLECTIVE
from ding_lite.runtime.messaging.router import Router, answering
from ding_lite.runtime.threads import Workers

logger = logging.getLogger(__name__)

Handler = Callable[..., Any]
"""Answers a call; may return a `Future` to answer later without holding a thread."""
NUM_WORKERS = 2
"""Worker threads that answer the calls of one node; more while their handlers call, too."""
REGISTRATION_S = 5.0
"""Seconds that a call waits for its handler, which a `main` may register later."""
MAX_EARLY = 1_000
"""The most calls that wait for a handler."""
_LONGEST_TEXT = 64 * 1024


class Calls:
    """Call other nodes, and answer their calls; within handlers `router` is the current router."""

    def __init__(
        self, node_id: int, links: Links, traced: MessageTrace, clock: Clock, router: Router
    ) -> None:
        self._node_id = node_id
        self._links = links
        self._traced = traced
        self._router = router
        self._last_number = 0
        self._pending: dict[int, _PendingCall] = {}
        """The calls of this node without an answer, by number."""
        self._owed: dict[tuple[int, int], Future[Any] | None] = {}
        """The calls of other nodes without an answer, by node and number; None while a handler
        computes it."""
        self._early: dict[tuple[int, int], tuple[Deadline, CallArrived]] = {}
        """Those that have come before their handlers, in the order of their arrival."""
        self._is_leaving = False
        self._clock = clock
        self._workers = defaultdict[int, Workers](partial(Workers, NUM_WORKERS))
        """The threads that answer each node: handlers that hang affect its own calls only."""
        self._ending: list[threading.Thread] = []
        """Threads that answered nodes which are gone, and end with the handlers that they run."""
        self._collective_worker = Workers(1)  # so that no slow handler delays a barrier
        self._thread = threading.local()
        self._services: dict[str, Handler] = {}
        self._handlers: dict[str, Handler] = {}
        self._quick: set[str] = set()
        self._lock = threading.Lock()
        self.onward: Callable[[int, Encoded], Future[Any]] | None = None
        """Calls nodes beyond the peers over relays; None without relays."""

    # -- calling -----------------------------------------------------------------------------

    def ask(self, node: int, name: str, args: tuple[Any, ...], kwargs: Any) -> Future[Any]:
        """Call a node, which may be this one, without waiting."""
        node, request = _id_of(node), encode_call(name, args, kwargs)
        return self._call_own(request) if node == self._node_id else self.send(node, name, request)

    def _call_own(self, request: Encoded) -> Future[Any]:
        """Call a handler of this node; caller and handler get copies, as they do over a link."""
        answer: Future[Any] = Future()
        name, kwargs, *args = _copied(request)

        def settle(done: Future[Any]) -> None:
            try:
                answer.set_result(_copied(encode_reply(True, done.result()))[1])
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                remote = _remote_error(self._node_id, describe(error))
                remote.__cause__ = error
                answer.set_exception(remote)

        guard(partial(self._handle, name), (*args,), kwargs or {}).add_done_callback(settle)
        return answer

    def send(self, node: int, name: str, request: Encoded) -> Future[Any]:
        if self.onward is not None and node not in self._links.sessions:
            return self.onward(node, request)
        began_ns = self._traced.now()
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # it cannot be cancelled, only settled here
        with self._lock:
            self._last_number = number = self._last_number + 1
            self._pending[number] = _PendingCall(node, answer)
        with self._links.lock:
            session = self._links.sessions.get(node)
            if session is not None and session.is_open:
                session.call(number, request)
                self._traced.asked(name, began_ns, number)
                self._links.flush(node)
            else:
                session = None
        if session is None:
            self.fail(
                f"Node {node!r} cannot be called (`{name}`): node {self._node_id} is not connected "
                f"to it. Connected are: {[*self._links.connected] or 'none'}.",
                lambda pending: pending.answer is answer,
            )
        return answer

    def settle(self, peer: int, reply: ReplyArrived, began_ns: int) -> None:
        with self._lock:
            pending = self._pending.get(reply.number)
            is_meant = pending is not None and pending.node_id == peer
            if is_meant:
                del self._pending[reply.number]
            is_late = pending is None and 0 < reply.number <= self._last_number
        if is_late:
            logger.debug(
                "node %d answers call %d too late: the caller has given up", peer, reply.number
            )
        elif pending is None or not is_meant:
            self._links.dropped.add(
                f"Node {peer} answers call {reply.number}, which is not pending."
            )
        elif reply.ok:
            pending.answer.set_result(reply.value)
        else:
            pending.answer.set_exception(_remote_error(peer, reply.value))
        self._traced.answer_came(peer, reply, began_ns)

    def give_up(self, answer: Future[Any]) -> None:
        self._take_pending(lambda pending: pending.answer is answer)

    def count_pending(self) -> int:
        return len(self._pending)

    def fail(self, reason: str, is_meant: Callable[[_PendingCall], bool]) -> None:
        """Fail calls that no node will answer; each fails once."""
        for pending in self._take_pending(is_meant):
            pending.answer.set_exception(PeerLost(reason))

    def _take_pending(self, is_meant: Callable[[_PendingCall], bool]) -> list[_PendingCall]:
        with self._lock:
            numbers = [number for number, each in self._pending.items() if is_meant(each)]
            return [self._pending.pop(number) for number in numbers]

    # -- answering ---------------------------------------------------------------------------

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        """Register the handler of a name, and answer calls that wait for it."""
        check_handler(name, fn)
        with self._lock:
            if self._handlers.get(name, fn) != fn:
                raise ConfigError(
                    f"Calls of `{name}` are answered by another function already. "
                    f"Register this one under another name."
                )
            self._handlers[name] = fn
            if quick:
                self._quick.add(name)
        self._start_early(name)

    def serve(self, name: str, fn: Handler) -> None:
        """Register a service: its handler gets the caller first, and runs on the reading thread."""
        self._services[name] = fn

    def take_call(self, peer: int, call: CallArrived, *, asker: int | None = None) -> None:
        """Answer a call to `peer`, also once it has a handler; `asker` is behind a relay."""
        sender = peer if asker is None else asker
        with self._lock:
            self._owed[peer, call.number] = None
        service = self._services.get(call.name)
        if service is not None:
            began_ns = self._traced.now()
            answer = guard(service, (sender, *call.args), call.kwargs)
            if answer.done() and isinstance(error := answer.exception(), CodecError):
                self._links.dropped.add(f"Node {sender} calls `{call.name}`: {error}")
            self._traced.item_came(sender, call.args, answer, began_ns)
            self._give(peer, call.number, answer, by_hub=True)
        elif call.name in self._quick:
            self._answer(peer, call)
        elif call.name in self._handlers or not self._hold(peer, call):
            self._start([(peer, call)])
        elif call.name in self._handlers:  # registered just now
            self._start_early(call.name)

    def _hold(self, peer: int, call: CallArrived) -> bool:
        """Keep a call until it is started; return False if too many are kept, or at the end."""
        with self._lock:
            has_room = not self._is_leaving and len(self._early) < MAX_EARLY
            if has_room:
                until = Deadline.after(REGISTRATION_S, self._clock)
                self._early[peer, call.number] = until, call
            return has_room

    def _start_early(self, name: str) -> None:
        self._start(self._taken(lambda _, call: call.name == name))

    def _taken(
        self, is_meant: Callable[[Deadline, CallArrived], bool]
    ) -> list[tuple[int, CallArrived]]:
        if not self._early:
            return []
        with self._lock:
            taken = [place for place, kept in self._early.items() if is_meant(*kept)]
            return [(place[0], self._early.pop(place)[1]) for place in taken]

    def _start(self, calls: Iterable[tuple[int, CallArrived]]) -> None:
        for peer, call in calls:
            with self._lock:  # `forget` must not release workers that get a call just now
                is_collective = call.name == COLLECTIVE
                workers = self._collective_worker if is_collective else self._workers[peer]
                workers.submit(partial(self._work, workers, peer, call))

    def _work(self, workers: Workers, peer: int, call: CallArrived) -> None:
        self._thread.workers = workers
        self._answer(peer, call)

    def _answer(self, peer: int, call: CallArrived) -> None:
        began_ns = self._traced.now()
        with answering(self._router):
            answer = guard(partial(self._handle, call.name), call.args, call.kwargs)
        self._traced.answered(peer, call, began_ns)
        self._give(peer, call.number, answer)

    def _handle(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        handler = self._handlers.get(name)
        if handler is None:
            raise NotRegistered(
                f"No call is answered under the name `{name}` on this node, and no handler "
                f"was registered in time.{did_you_mean(name, self._handlers)} Registered are: "
                f"{', '.join(sorted(self._handlers)) or 'none'}."
            )
        return handler(*args, **kwargs)

    def _give(self, peer: int, number: int, answer: Future[Any], *, by_hub: bool = False) -> None:
        """Send the answer of a handler, or that a hub has got, as soon as its future is done."""
        with self._lock:
            if (peer, number) not in self._owed:  # the caller is gone
                return
            self._owed[peer, number] = answer
        answer.add_done_callback(lambda done: self._reply(peer, number, done, by_hub))

    def _reply(self, peer: int, number: int, answer: Future[Any], by_hub: bool) -> None:
        with self._lock:
            if self._owed.get((peer, number)) is not answer:
                return
        body = _encode_answer(answer, by_hub)
        with self._links.lock:
            session = self._links.sessions.get(peer)
            if session is not None:  # else the node has left meanwhile
                session.reply(number, body)
                self._links.flush(peer)
        with self._lock:
            self._owed.pop((peer, number), None)

    # -- deadlines and closing ---------------------------------------------------------------

    def tick(self) -> None:
        """Answer calls that have waited for a handler for too long."""
        self._start(self._taken(lambda deadline, _: deadline.expired))

    def forget(self, peer: int) -> None:
        """Fail the calls to a node that is gone, and drop its calls: it may reuse their numbers."""
        with self._lock:
            for calls in (self._owed, self._early):
                for place in [place for place in calls if place[0] == peer]:
                    del calls[place]
            if (workers := self._workers.pop(peer, None)) is not None:
                running = [thread for thread in self._ending if thread.is_alive()]
                self._ending = running + workers.release()
        self.fail(
            f"Node {peer} is gone before it has answered a call. It may or may not have done the "
            f"work; call again once it is back.",
            lambda pending: pending.node_id == peer,
        )

    def leave(self) -> None:
        """Answer all calls that wait for a handler."""
        with self._lock:
            self._is_leaving = True
        self._start(self._taken(lambda *_: True))

    def begin_wait(self) -> None:
        """Note that this thread waits, which must not keep other calls from being answered."""
        workers: Workers | None = getattr(self._thread, "workers", None)
        if workers is not None:
            workers.begin_wait()

    def has_unanswered(self, nodes: Container[int]) -> bool:
        """Return whether one of these nodes waits for an answer that is done or being computed.

        An answer that a handler has deferred (a pending future) does not count: a collective
        without all its members may never complete.
        """
        with self._lock:
            return any(
                node in nodes and (answer is None or answer.done())
                for (node, _), answer in self._owed.items()
            )

    def close(self, deadline: Deadline) -> None:
        """Wait for the handlers that still run, until the deadline or a signal."""
        with self._lock:
            for workers in (*self._workers.values(), self._collective_worker):
                self._ending += workers.release()
        for thread in self._ending:
            while thread.is_alive() and not (deadline.expired or self._links.is_drain_cancelled):
                thread.join(LOOK_UP_S)
        if any(thread.is_alive() for thread in self._ending):
            logger.warning(
                "node %d has left, and a handler of a call still runs: its caller gets no answer",
                self._node_id,
            )


def _id_of(node: object) -> int:
    """Return the id of a node as an int, which numpy's integers are not."""
    if type(node) is not bool and isinstance(node, Integral):
        return int(node)
    raise ConfigError(
        f"`node` is {shorten(node)}; the id of a node was expected, such as one of `router.peers`."
    )


def _copied(sent: Encoded) -> Any:
    """Decode what a call or an answer holds; its arrays can be written to, as if received."""
    return decode(sent.meta, [memoryview(bytearray(buffer)) for buffer in sent.buffers])


class _PendingCall(NamedTuple):
    node_id: int
    answer: Future[Any]


def _encode_answer(answer: Future[Any], by_hub: bool) -> Encoded:
    error = CancelledError() if answer.cancelled() else answer.exception()
    if error is None:
        try:
            return encode_reply(True, answer.result(), by_hub=by_hub)
        except CodecError as unsendable:
            error = unsendable
    return encode_reply(False, describe(error))


def describe(error: BaseException) -> list[str]:
    """Return the class name, message and traceback of any exception as strings."""
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception as raised:  # noqa: BLE001 - the class of an error is the program's own
        trace = words_of(raised)
    return [type(error).__name__, _shorten(words_of(error)), _shorten(trace)]


def _shorten(text: str) -> str:
    if len(text) > _LONGEST_TEXT:
        half = _LONGEST_TEXT // 2
        text = f"{text[:half]} [...] {text[-half:]}"
    return text.encode(errors="backslashreplace").decode()


def _remote_error(node_id: int, value: object) -> RemoteError:
    texts = value if isinstance(value, list) else [value]
    kind, message, text = [str(part) for part in [*texts, "", "", ""][:3]]
    return RemoteError(
        f"{kind} on node {node_id}: {message}", node_id=node_id, kind=kind, remote_traceback=text
    )
