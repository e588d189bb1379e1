"""Calls between nodes: one asks, another answers, or the asker learns why not.

A call is sent once. If the link breaks before the answer, the asker gets `PeerLost` and decides
by itself whether to ask again; nobody can know whether the other node has done the work.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Container
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, cast

from ding_lite.clock import Clock, Deadline
from ding_lite.errors import (
    CodecError,
    ConfigError,
    NotRegistered,
    PeerLost,
    RemoteError,
    did_you_mean,
)
from ding_lite.foreign import words_of
from ding_lite.parallel.wire.codec import Encoded
from ding_lite.parallel.wire.messages import CallArrived, encode_reply

Handler = Callable[..., Any]
"""Answers a call; may return a `Future` to answer later without holding a thread."""
REGISTRATION_S = 5.0
"""How long a call waits for its handler: the `main` that registers it may not be that far yet."""
MAX_EARLY = 1_000
"""How many calls may wait so at a time."""
_LONGEST_TEXT = 64 * 1024


class Calls:
    """The calls that a node has under way, and the handlers by which it answers others."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._quick: set[str] = set()
        self._under_way: dict[int, tuple[int, Future[Any]]] = {}
        self._last_call = 0
        self._lock = threading.Lock()

    def register(self, name: str, fn: Handler, *, quick: bool = False) -> None:
        """Answer calls of this name with `fn`, which may be `quick`.

        Raises:
            ConfigError: The name is taken by another function, or `fn` cannot be called.
        """
        if not isinstance(name, str) or not name or not callable(fn):
            raise ConfigError(
                f"A handler is a name and a function, not {name!r} and {fn!r}: "
                f'`router.register("sample", replay.sample)`.'
            )
        with self._lock:
            if self._handlers.get(name, fn) != fn:
                raise ConfigError(
                    f"Calls of `{name}` are answered by another function already. "
                    f"Register this one under another name."
                )
            self._handlers[name] = fn
            if quick:
                self._quick.add(name)

    def is_quick(self, name: str) -> bool:
        """Whether the handler of this name was registered as quick."""
        return name in self._quick

    def answers(self, name: str) -> bool:
        """Whether a handler is registered under this name."""
        return name in self._handlers

    @property
    def num_under_way(self) -> int:
        """How many calls of this node wait for their answers."""
        return len(self._under_way)

    def begin(self, node_id: int) -> tuple[int, Future[Any]]:
        """Open a call to a node; return its number and what will hold the answer."""
        answer: Future[Any] = Future()
        with self._lock:
            self._last_call += 1
            self._under_way[self._last_call] = node_id, answer
            return self._last_call, answer

    def forget(self, answer: Future[Any]) -> None:
        """Give up waiting for an answer."""
        with self._lock:
            for number, (_, under_way) in list(self._under_way.items()):
                if under_way is answer:
                    del self._under_way[number]

    def refuse(self, number: int, reason: str) -> None:
        """End a call that cannot be made."""
        with self._lock:
            _, answer = self._under_way.pop(number, (None, None))
        if answer is not None:  # else the node was lost just now, which has ended it
            answer.set_exception(PeerLost(reason))

    def end(self) -> None:
        """End all calls: this node is not connected to anybody any more."""
        with self._lock:
            answers = [answer for _, answer in self._under_way.values()]
            self._under_way.clear()
        for answer in answers:
            answer.set_exception(PeerLost("This node has left before a call was answered."))

    def settle(self, node_id: int, number: int, ok: bool, value: Any) -> bool:
        """Take an answer; return False for one that no call waits for any more."""
        with self._lock:
            asked, answer = self._under_way.get(number, (None, None))
            if answer is None or asked != node_id:
                return False
            del self._under_way[number]
        if ok:
            answer.set_result(value)
        else:
            answer.set_exception(_remote_error(node_id, value))
        return True

    def fail(self, node_id: int) -> None:
        """End the calls that wait for a node which is gone."""
        with self._lock:
            lost = [n for n, (asked, _) in self._under_way.items() if asked == node_id]
            answers = [self._under_way.pop(number)[1] for number in lost]
        for answer in answers:
            answer.set_exception(
                PeerLost(
                    f"Node {node_id} is gone, and with it the answer to a call. "
                    f"It may or may not have done what was asked; ask again once it is back."
                )
            )

    def handle(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Answer a call; the result never raises here, only in whoever asks for it."""
        return self.guard(partial(self._dispatch, name), args, kwargs)

    def _dispatch(self, name: str, *args: Any, **kwargs: Any) -> Any:
        handler = self._handlers.get(name)
        if handler is None:
            raise NotRegistered(
                f"No call is answered under the name `{name}` on this node, nor has been "
                f"registered in time.{did_you_mean(name, self._handlers)} Registered are: "
                f"{', '.join(sorted(self._handlers)) or 'none'}."
            )
        return handler(*args, **kwargs)

    @staticmethod
    def guard(handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Put what a handler returns, or why it does not, into a future."""
        answer: Future[Any] = Future()
        try:
            result = handler(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the asker's to raise, also a SystemExit
            answer.set_exception(error)
        else:
            if issubclass(type(result), Future):  # it may lie about its `__class__`
                return cast("Future[Any]", result)
            answer.set_result(result)
        return answer


class EarlyCalls:
    """Calls that have come before their handlers; each is given back once.

    Args:
        clock: What `REGISTRATION_S` is measured by.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[Deadline, int, CallArrived]] = []
        self._is_open = True
        self._lock = threading.Lock()

    def hold(self, node_id: int, call: CallArrived) -> bool:
        """Let a call wait, if there is room."""
        with self._lock:
            if not self._is_open or len(self._waiting) >= MAX_EARLY:
                return False
            deadline = Deadline.after(REGISTRATION_S, self._clock)
            self._waiting.append((deadline, node_id, call))
            return True

    def take(self, name: str) -> list[tuple[int, CallArrived]]:
        """Give back those of a name, as its handler is there."""
        return self._take(lambda _deadline, _node_id, call: call.name == name)

    def overdue(self) -> list[tuple[int, CallArrived]]:
        """Give back those that have waited long enough."""
        return self._take(lambda deadline, _node_id, _call: deadline.expired)

    def forget(self, node_id: int) -> None:
        """Drop those of a node that is gone."""
        self._take(lambda _deadline, asker, _call: asker == node_id)

    def close(self) -> list[tuple[int, CallArrived]]:
        """Give back all, and hold none from now on."""
        with self._lock:
            self._is_open = False
        return self._take(lambda *_: True)

    def _take(
        self, is_meant: Callable[[Deadline, int, CallArrived], bool]
    ) -> list[tuple[int, CallArrived]]:
        if not self._waiting:
            return []
        with self._lock:
            taken = [entry for entry in self._waiting if is_meant(*entry)]
            self._waiting = [entry for entry in self._waiting if not is_meant(*entry)]
        return [(node_id, call) for _, node_id, call in taken]


class Answers:
    """What a node owes to others that have called it.

    Args:
        send: Sends a node the answer to the call of a number.
    """

    def __init__(self, send: Callable[[int, int, Encoded], object]) -> None:
        self._send = send
        self._owed: dict[tuple[int, int], Future[Any] | None] = {}
        self._lock = threading.Lock()

    def begin(self, node_id: int, number: int) -> None:
        """Note that a call has come, which a handler is about to see."""
        with self._lock:
            self._owed[node_id, number] = None

    def give(self, node_id: int, number: int, answer: Future[Any]) -> None:
        """Send what a handler has returned, as soon as it is there."""
        with self._lock:
            if (node_id, number) not in self._owed:  # the asker is gone
                return
            self._owed[node_id, number] = answer
        answer.add_done_callback(lambda done: self._reply(node_id, number, done))

    def forget(self, node_id: int) -> None:
        """Owe a node nothing any more: its calls have failed, and their numbers may come again."""
        with self._lock:
            for key in [key for key in self._owed if key[0] == node_id]:
                del self._owed[key]

    def has_any_for(self, nodes: Container[int]) -> bool:
        """Whether one of these nodes waits for an answer that is there or being made.

        One that a handler has put off, as a meeting that not all have come to, may never be.
        """
        with self._lock:
            return any(
                node in nodes and (answer is None or answer.done())
                for (node, _), answer in self._owed.items()
            )

    def _reply(self, node_id: int, number: int, answer: Future[Any]) -> None:
        with self._lock:
            if self._owed.get((node_id, number)) is not answer:
                return
        self._send(node_id, number, _encode_answer(answer))
        with self._lock:
            self._owed.pop((node_id, number), None)


def _encode_answer(answer: Future[Any]) -> Encoded:
    error = CancelledError() if answer.cancelled() else answer.exception()
    if error is None:
        try:
            return encode_reply(True, answer.result())
        except CodecError as unsendable:
            error = unsendable
    return encode_reply(False, describe(error))


def describe(error: BaseException) -> list[str]:
    """Put an exception into words that travel, whatever it holds: class, message, traceback."""
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception as raised:  # noqa: BLE001 - the class of an error is the program's own
        trace = words_of(raised)
    return [type(error).__name__, _shorten(words_of(error)), _shorten(trace)]


def _shorten(text: str) -> str:
    """Cut the middle out of a text that is too long to travel, and spell out what is no Unicode."""
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
