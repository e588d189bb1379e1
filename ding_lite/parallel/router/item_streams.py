"""Send stream items between nodes, as calls that are answered when the item is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from ding_lite.clock import Clock
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.observe.message_trace import MessageTrace
from ding_lite.parallel.router.call_endpoint import CallEndpoint
from ding_lite.parallel.router.routing import DirectRouting
from ding_lite.parallel.wire.codec import Encoded, decode
from ding_lite.parallel.wire.messages import encode_call
from ding_lite.runtime.messaging.labels import matches
from ding_lite.runtime.messaging.streams import Parcel, Streams, Until

ITEM = "ding_lite.item"
"""The call that sends an item of a stream."""
WITHDRAW = "ding_lite.withdraw"
"""The call that withdraws items."""


class ItemStreams:
    """Send the items of a node's streams to other nodes, and receive theirs.

    Args:
        spec: The place of this node.
        links: Its links.
        endpoint: Makes and answers calls.
        traced: Records messages for a timeline.
        clock: Measures timeouts.
        routing: Reaches nodes beyond the peers.
    """

    def __init__(
        self,
        spec: NodeSpec,
        links: Links,
        endpoint: CallEndpoint,
        traced: MessageTrace,
        clock: Clock,
        routing: DirectRouting,
    ) -> None:
        self._spec = spec
        self._links = links
        self._endpoint = endpoint
        self._traced = traced
        self._routing = routing
        self.streams = Streams(self._send_to, self._withdraw, self._receivers, clock)
        """Unacknowledged items, and received items that the program has not taken."""
        endpoint.serve(ITEM, self.streams.arrive)
        endpoint.serve(WITHDRAW, self.streams.withdraw)
        routing.serve(self.streams)

    def send(
        self,
        stream: str,
        tree: Any,
        to: tuple[str, ...],
        *,
        in_flight: int,
        timeout: float | None,
        until: Until | None,
    ) -> bool:
        """Send a snapshot of an item to one matching node, once it has room.

        Raises:
            DeadlineExceeded: No receiver had room in time.
            CodecError: The item cannot be encoded.
        """
        began_ns, number, at_ns = self._traced.now(), 0, 0

        def write(own_number: int, oldest: int) -> Encoded:
            nonlocal number, at_ns
            number, at_ns = own_number, self._traced.now()
            return encode_call(ITEM, (self._spec.incarnation, stream, number, oldest, tree), {})

        is_sent = self.streams.send(
            stream, write, to, in_flight=in_flight, timeout=timeout, until=until
        )
        self._traced.item_sent(stream, began_ns, number, at_ns)
        return is_sent

    def _send_to(self, node: int, parcel: Parcel) -> Future[Any]:
        if node != self._spec.node_id and node not in self._links.sessions:
            return self._routing.send_item(node, parcel)
        if node != self._spec.node_id:
            return self._endpoint.send(node, ITEM, parcel.body)
        _, _, *args = decode(parcel.body.meta, parcel.body.buffers)
        return self._endpoint.guard(self.streams.arrive, node, args)

    def _withdraw(self, node: int, numbers: Sequence[int]) -> Future[Any]:
        request = encode_call(WITHDRAW, (self._spec.incarnation, [*numbers]), {})
        return self._endpoint.send(node, WITHDRAW, request)

    def _receivers(self, patterns: Iterable[str]) -> list[int]:
        """Return the connected nodes with matching labels."""
        me = [self._spec.node_id] if matches(self._spec.labels, patterns) else []
        near = [
            peer for peer in self._links.connected if matches(self._links.labels_of(peer), patterns)
        ]
        return me + near + self._routing.reaches(patterns)
