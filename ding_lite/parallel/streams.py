"""Streams: items of which each goes to exactly one receiver, and never too many at a time.

A stream is made of calls. The receiver answers when its program takes the item, so the number
of calls under way is what is in flight, and a call that fails because the receiver is gone
tells which items must go to another one.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ding_lite.clock import Clock, Deadline
from ding_lite.errors import DeadlineExceeded, PeerLost
from ding_lite.parallel.codec import Encoded

SERVICE = "ding_lite.stream"
"""The name under which nodes call each other with an item."""


class Item(NamedTuple):
    """One item that has come."""

    node_id: int
    """Who has sent it."""
    value: Any


class _Parcel(NamedTuple):
    """One item on its way."""

    stream: str
    body: Encoded
    to: tuple[str, ...]


class Streams:
    """The items that a node has under way, and those that wait for its program.

    Args:
        ask: Calls a node with an item; see `NodeRouter`.
        receivers: Returns the connected nodes that label patterns match.
        clock: What waits are measured by.
    """

    def __init__(
        self,
        ask: Callable[[int, str, Encoded], Future[Any]],
        receivers: Callable[[Iterable[str]], list[int]],
        clock: Clock,
    ) -> None:
        self._ask = ask
        self._receivers = receivers
        self._clock = clock
        self._changed = threading.Condition()
        self._in_flight: Counter[tuple[str, int]] = Counter()
        self._stranded: deque[_Parcel] = deque()
        self._arrived: dict[str, deque[tuple[Item, Future[None]]]] = {}

    # -- sending ---------------------------------------------------------------------------

    def send(
        self,
        stream: str,
        body: Encoded,
        to: tuple[str, ...],
        *,
        in_flight: int,
        timeout: float | None,
    ) -> None:
        """Send an item as soon as a receiver has fewer than `in_flight` of this stream.

        Raises:
            DeadlineExceeded: None had, or there was none.
        """
        parcel = _Parcel(stream, body, to)
        with self._changed:
            chosen: list[int] = []

            def can_go() -> bool:
                chosen[:] = self._least_busy(parcel, in_flight)
                return bool(chosen)

            if not Deadline.after(timeout, self._clock).wait(self._changed, can_go):
                receivers = self._receivers(to) or "none"
                raise DeadlineExceeded(
                    f"No receiver of stream `{stream}` took an item within {timeout:g} s. "
                    f"Nodes that {list(to)} matches: {receivers}; each may have {in_flight} "
                    f"items in flight. Are they slower than the senders, or gone?"
                )
            self._in_flight[stream, chosen[0]] += 1
        self._dispatch(parcel, chosen[0])

    def peers_changed(self) -> None:
        """Look again for receivers: one has come, gone or got room."""
        with self._changed:
            waiting, self._stranded = list(self._stranded), deque()
            self._changed.notify_all()
        for parcel in waiting:
            self._send_again(parcel)

    def _least_busy(self, parcel: _Parcel, in_flight: int) -> list[int]:
        """Return the receivers with room, the one with the fewest items first."""
        busy = {node: self._in_flight[parcel.stream, node] for node in self._receivers(parcel.to)}
        return sorted((node for node in busy if busy[node] < in_flight), key=busy.__getitem__)

    def _dispatch(self, parcel: _Parcel, node: int) -> None:
        def on_done(answer: Future[Any]) -> None:
            with self._changed:
                self._in_flight[parcel.stream, node] -= 1
                self._changed.notify_all()
            if isinstance(answer.exception(), PeerLost):
                self._send_again(parcel)

        self._ask(node, parcel.stream, parcel.body).add_done_callback(on_done)

    def _send_again(self, parcel: _Parcel) -> None:
        """Send what a lost receiver has not taken to another one, now or when one comes."""
        with self._changed:
            receivers = self._least_busy(parcel, 2**31)
            if not receivers:
                self._stranded.append(parcel)
                return
            self._in_flight[parcel.stream, receivers[0]] += 1
        self._dispatch(parcel, receivers[0])

    # -- receiving -------------------------------------------------------------------------

    def arrive(self, node_id: int, stream: str, value: Any) -> Future[None]:
        """Take an item from another node; the returned future is done when a program has it."""
        taken: Future[None] = Future()
        with self._changed:
            self._arrived.setdefault(stream, deque()).append((Item(node_id, value), taken))
            self._changed.notify_all()
        return taken

    def receive(self, stream: str, timeout: float | None) -> Item:
        """Wait for the next item.

        Raises:
            DeadlineExceeded: None came in time.
        """
        with self._changed:
            queue = self._arrived.setdefault(stream, deque())
            if not Deadline.after(timeout, self._clock).wait(self._changed, lambda: bool(queue)):
                raise DeadlineExceeded(
                    f"No item of stream `{stream}` came within {timeout:g} s. Does another node "
                    f"send to the labels of this one?"
                )
            item, taken = queue.popleft()
        taken.set_result(None)
        return item
