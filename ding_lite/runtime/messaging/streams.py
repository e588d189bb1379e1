"""Streams: each item goes to exactly one receiver, with a bound on unacknowledged items.

The receiver answers when its program takes an item. So the items without an answer are the items in
flight, and their limit bounds the memory. If a receiver has left, another one gets the items that
it has not answered.

If a link breaks, the sender does not know whether the receiver has taken the unanswered items. So
the sender keeps them for that receiver and sends them again when the link is back. The receiver
recognizes by its number an item that it already has, and answers it. So each item has one receiver,
however often links break. There are two exceptions, as silence and death look alike:

- A receiver that comes back in a new incarnation has died. Others get the items that it has not
  answered, which may include an item that it had taken just before.
- A receiver that is away for longer than `UNCERTAIN_S`, or that loses its place in an elastic job
  meanwhile, is considered dead. If it was only cut off, it may have taken such an item, too. The
  items that it has not taken are withdrawn from it when it is back.

Only in these two cases can an item be taken twice. `Item.id` is the same both times.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ding_lite.clock import Clock, Deadline
from ding_lite.errors import CodecError, DeadlineExceeded, PeerLost

logger = logging.getLogger(__name__)

UNCERTAIN_S = 120.0
"""Seconds that items wait for a receiver with a broken link to come back."""

_PAGE = 1024

Until = Callable[[], bool]
"""Ends a wait when it returns True, as the job has ended."""


class ItemId(NamedTuple):
    """The identity of an item within a job; the same each time it is received."""

    node_id: int
    """The node that has sent the item."""
    incarnation: int
    """The incarnation of the sender, which differs after a restart."""
    number: int
    """The number of the item among all items of that incarnation, over all streams."""


class Item(NamedTuple):
    """A received item."""

    node_id: int
    """The node that has sent the item."""
    value: Any
    id: ItemId
    """The identity by which a program can drop an item taken twice; see `Router.send`."""


class Parcel(NamedTuple):
    """An item to send."""

    stream: str
    to: tuple[str, ...]
    number: int
    """The number of the item among all items of this sender, over all streams."""
    body: Any
    """The item as it is sent."""
    in_flight: int
    """The most items of this stream that a receiver may hold before it takes them."""


class _QueuedItem(NamedTuple):
    """An item that the program has not taken yet."""

    item: Item
    taken: Future[None]


class _UncertainParcel(NamedTuple):
    """An item with a lost receiver, which alone knows whether a program has taken it."""

    deadline: Deadline
    node: int
    parcel: Parcel


class Numbers:
    """The numbers of a sender's finished items, however many there are.

    A sender counts its items over all its receivers, and a receiver that hangs keeps old numbers in
    use for as long as it hangs. So each number must take little memory: 1,024 numbers in a row take
    some 200 bytes, and adding a number takes constant time.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        """The bits of 1,024 numbers each, by the quotient of their division by 1,024."""
        self._first_page = 0

    def __contains__(self, number: int) -> bool:
        page = self._pages.get(number // _PAGE)
        return page is not None and bool(page >> number % _PAGE & 1)

    def add(self, number: int) -> None:
        place = number // _PAGE
        self._pages[place] = self._pages.get(place, 0) | 1 << number % _PAGE

    def forget_before(self, oldest: int) -> None:
        """Drop lower numbers, except those in the same row of 1,024."""
        first = oldest // _PAGE
        if first > self._first_page:
            self._first_page = first
            for place in [place for place in self._pages if place < first]:
                del self._pages[place]


class _Sender:
    """The items that one incarnation of another node has sent."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.known: dict[int, Future[None]] = {}
        """The items that wait here to be taken, by number."""
        self.oldest = 0
        """The lowest number that can be new: all items before it have been taken."""
        self.taken = Numbers()
        """The items that were taken here, and that the sender may send again."""

    def forget_before(self, oldest: int) -> None:
        """Drop the items that the sender will not send again."""
        if oldest <= self.oldest:
            return
        self.oldest = oldest
        for number in [number for number in self.known if number < oldest]:
            del self.known[number]
        self.taken.forget_before(oldest)


class Streams:
    """The items that a node has in flight, and the items that wait for its program.

    The future of `carry(node, parcel)` is done when the program there has the item. `withdraw`
    takes back items, by number, that have not been taken; `receivers` returns the reachable nodes.
    """

    def __init__(
        self,
        carry: Callable[[int, Parcel], Future[Any]],
        withdraw: Callable[[int, Sequence[int]], Future[Any]],
        receivers: Callable[[Iterable[str]], list[int]],
        clock: Clock,
    ) -> None:
        self._carry = carry
        self._withdraw = withdraw
        self._receivers = receivers
        self._clock = clock
        self._changed = threading.Condition()

        self._last_number = 0
        self._under_way: dict[int, None] = {}
        """The items of this sender without an answer, by number."""
        self._in_flight: Counter[tuple[str, int]] = Counter()
        """The number of these by stream and receiver; uncertain and stranded ones have none."""
        self._uncertain: list[_UncertainParcel] = []
        self._stranded: list[Parcel] = []
        """Items that no reachable node can receive at the moment."""
        self._reassigned: dict[int, set[int]] = {}
        """Numbers of items that other nodes have got, by the node that may hold them still."""
        self._gone: set[int] = set()
        """Nodes that have left for good."""

        self._arrived: dict[str, deque[_QueuedItem]] = {}
        """The items that wait here, by stream."""
        self._senders: dict[int, _Sender] = {}

    @property
    def num_sent(self) -> int:
        return self._last_number

    @property
    def num_waiting(self) -> int:
        with self._changed:
            return sum(map(len, self._arrived.values()))

    # -- sending ---------------------------------------------------------------------------

    def send(
        self,
        stream: str,
        write: Callable[[int, int], Any],
        to: tuple[str, ...],
        *,
        in_flight: int,
        timeout: float | None,
        until: Until | None,
    ) -> bool:
        """Send an item as soon as a receiver has fewer than `in_flight` of this stream.

        `write` makes its body, given its number and the oldest number in flight. Return False if
        `until` ended the wait; raise DeadlineExceeded if no receiver had room in time.
        """
        chosen: list[int] = []
        with self._changed:

            def can_go() -> bool:
                chosen[:] = self._least_busy(stream, to, in_flight)
                return bool(chosen)

            in_time = Deadline.after(timeout, self._clock).wait(
                self._changed, lambda: can_go() or (until is not None and until())
            )
            if not chosen:
                if in_time:
                    return False
                receivers = self._receivers(to) or "none"
                raise DeadlineExceeded(
                    f"No receiver of stream `{stream}` took an item within {timeout:g} s. "
                    f"Nodes that {list(to)} matches: {receivers}; each may have {in_flight} "
                    f"items in flight. Are they slower than the senders, or gone?"
                )
            self._last_number += 1
            number = self._last_number
            self._under_way[number] = None
            oldest = next(iter(self._under_way))
            self._in_flight[stream, chosen[0]] += 1
        try:
            parcel = Parcel(stream, to, number, write(number, oldest), in_flight)
        except BaseException:
            self._settle(stream, chosen[0], number)
            raise
        self._dispatch(parcel, chosen[0])
        return True

    def _least_busy(self, stream: str, to: tuple[str, ...], in_flight: int) -> list[int]:
        """Return the receivers with room, sorted by the number of their items."""
        busy = {node: self._in_flight[stream, node] for node in self._receivers(to)}
        return sorted((node for node in busy if busy[node] < in_flight), key=busy.__getitem__)

    def _dispatch(self, parcel: Parcel, node: int) -> None:
        def on_done(answer: Future[Any]) -> None:
            error = answer.exception()
            lost = isinstance(error, PeerLost)
            self._settle(parcel.stream, node, None if lost else parcel.number)
            if lost:
                self._mark_uncertain(parcel, node)
            elif error is not None:
                logger.error("node %d took no item of `%s`: %s", node, parcel.stream, error)

        with self._changed:
            self._reassigned.get(node, set()).discard(parcel.number)
        try:
            answer = self._carry(node, parcel)
        except BaseException:
            self._settle(parcel.stream, node, parcel.number)
            raise
        answer.add_done_callback(on_done)

    def _settle(self, stream: str, node: int, number: int | None) -> None:
        with self._changed:
            self._in_flight[stream, node] -= 1
            if number is not None:
                del self._under_way[number]
            self._changed.notify_all()

    def _mark_uncertain(self, parcel: Parcel, node: int) -> None:
        with self._changed:
            if node not in self._gone:
                deadline = Deadline.after(UNCERTAIN_S, self._clock)
                self._uncertain.append(_UncertainParcel(deadline, node, parcel))
                return
        self._send_again(parcel)

    def _send_again(self, parcel: Parcel) -> None:
        with self._changed:
            receivers = self._least_busy(parcel.stream, parcel.to, 2**31)
            if not receivers:
                self._stranded.append(parcel)
                return
            self._in_flight[parcel.stream, receivers[0]] += 1
        self._dispatch(parcel, receivers[0])

    # -- nodes that come and go --------------------------------------------------------------

    def joined(self, node: int, *, is_new_incarnation: bool) -> None:
        """Send unanswered items again; those of a former incarnation may go to any receiver."""
        with self._changed:
            self._gone.discard(node)
            lost = [each.parcel for each in self._uncertain if each.node == node]
            self._uncertain = [each for each in self._uncertain if each.node != node]
            stranded, self._stranded = self._stranded, []
            if is_new_incarnation:
                self._reassigned.pop(node, None)
            moved = self._reassigned.get(node, set())
            held = [parcel for parcel in stranded if parcel.number in moved]
            free = [parcel for parcel in stranded if parcel.number not in moved]
            if is_new_incarnation:
                free = lost + free
            else:  # it may have taken them just before
                held = lost + held
            for parcel in held:
                self._in_flight[parcel.stream, node] += 1
            moved = moved.difference(parcel.number for parcel in held)
            self._changed.notify_all()
        if moved:
            self._withdraw_from(node, sorted(moved))
        for parcel in held:
            self._dispatch(parcel, node)
        for parcel in free:
            self._send_again(parcel)

    def left(self, node: int) -> None:
        """Send the items that a node which has left for good has not taken to other nodes."""
        with self._changed:
            self._gone.add(node)
            self._reassigned.pop(node, None)
        self._resolve(lambda uncertain: uncertain.node == node)

    def resolve_expired(self) -> None:
        """Send the items of nodes that have not come back in time to other nodes."""
        if self._uncertain:
            self._resolve(lambda uncertain: uncertain.deadline.expired)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _withdraw_from(self, node: int, numbers: Sequence[int]) -> None:
        def on_done(answer: Future[Any]) -> None:
            if answer.exception() is None:  # otherwise it is repeated when the node is back
                with self._changed:
                    self._reassigned.get(node, set()).difference_update(numbers)

        self._withdraw(node, numbers).add_done_callback(on_done)

    def _resolve(self, is_over: Callable[[_UncertainParcel], bool]) -> None:
        """Send uncertain items to other nodes."""
        with self._changed:
            over: list[_UncertainParcel] = []
            remaining: list[_UncertainParcel] = []
            for each in self._uncertain:  # asked once each, as a deadline may pass meanwhile
                (over if is_over(each) else remaining).append(each)
            self._uncertain = remaining
            for _, node, parcel in over:
                if node not in self._gone:
                    self._reassigned.setdefault(node, set()).add(parcel.number)
        for each in over:
            self._send_again(each.parcel)

    # -- receiving -------------------------------------------------------------------------

    def arrive(
        self, node_id: int, incarnation: int, stream: str, number: int, oldest: int, value: Any
    ) -> Future[None]:
        """Queue an item of a node; the returned future is done when a program has it.

        The item may have come before; items with numbers below `oldest` will not come again. The
        arguments are untrusted.
        """
        numbers = (incarnation, number, oldest)
        is_whole = all(type(n) is int and n >= 0 for n in numbers)
        if not isinstance(stream, str) or not is_whole or oldest > number:
            raise CodecError("An item has the name of a stream and whole numbers in their order.")
        with self._changed:
            sender = self._sender(node_id, incarnation)
            sender.forget_before(oldest)
            if number in sender.known:
                return sender.known[number]
            taken: Future[None] = Future()
            if number < sender.oldest or number in sender.taken:  # late, or again
                taken.set_result(None)
                return taken
            sender.known[number] = taken
            queue = self._arrived.setdefault(stream, deque())
            item = Item(node_id, value, ItemId(node_id, incarnation, number))
            queue.append(_QueuedItem(item, taken))
            self._changed.notify_all()
        return taken

    def withdraw(self, node_id: int, incarnation: int, numbers: Sequence[int]) -> None:
        """Drop the items among these that no program has taken, as other nodes have got them."""
        if not isinstance(numbers, list | tuple) or not {int}.issuperset(map(type, numbers)):
            raise CodecError("Items are taken back by a list of their numbers.")
        withdrawn = frozenset(numbers)  # a million may come, for each of which items may wait
        with self._changed:
            sender = self._senders.get(node_id)
            if sender is None or sender.incarnation != incarnation:
                return
            for queue in self._arrived.values():
                remaining = []  # not by `queue.remove`: values such as arrays have no single `==`
                for waiting in queue:
                    sent = waiting.item.id
                    if sent[:2] == (node_id, incarnation) and sent.number in withdrawn:
                        sender.known.pop(sent.number, None)
                    else:
                        remaining.append(waiting)
                if len(remaining) < len(queue):
                    queue.clear()
                    queue.extend(remaining)

    def log_left_over(self, node_id: int) -> None:
        """Log the items that wait here when a node leaves; a learner may leave some on purpose."""
        with self._changed:
            left_over = {stream: len(queue) for stream, queue in self._arrived.items() if queue}
        for stream, count in left_over.items():
            logger.info(
                "node %d has left, and has not received all items of stream `%s`; left over: %d. "
                "To have all: `while (item := task.receive(%r)) is not None`, or that after "
                "`task.run()`",
                node_id,
                stream,
                count,
                stream,
            )

    def _sender(self, node_id: int, incarnation: int) -> _Sender:
        sender = self._senders.get(node_id)
        if sender is None or sender.incarnation != incarnation:
            sender = self._senders[node_id] = _Sender(incarnation)
        return sender

    def receive(self, stream: str, *, timeout: float | None, until: Until | None) -> Item | None:
        """Wait for the next item; return None if `until` ended the wait."""
        with self._changed:
            queue = self._arrived.setdefault(stream, deque())
            in_time = Deadline.after(timeout, self._clock).wait(
                self._changed, lambda: bool(queue) or (until is not None and until())
            )
            if not queue:
                if in_time:
                    return None
                raise DeadlineExceeded(
                    f"No item of stream `{stream}` came within {timeout:g} s. Does another node "
                    f"send to the labels of this one, and is it connected to it? In a star only "
                    f"node 0 is connected to all others."
                )
            waiting = queue.popleft()
            sender = self._senders.get(waiting.item.node_id)
            number = waiting.item.id.number
            if sender is not None and sender.known.get(number) is waiting.taken:
                del sender.known[number]
                sender.taken.add(number)
        waiting.taken.set_result(None)
        return waiting.item
