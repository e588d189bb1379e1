"""What a node does with what comes, and whom it reaches, where nobody passes anything on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ding_lite.errors import PeerLost
from ding_lite.parallel.link.links import Links
from ding_lite.parallel.router.call_endpoint import CallEndpoint
from ding_lite.parallel.wire.messages import CallArrived, EventArrived
from ding_lite.runtime.messaging.labels import matches
from ding_lite.runtime.messaging.streams import Parcel, Streams


class DirectRouting:
    """Speaks to the peers, and to nobody else; `Relay` does more.

    Args:
        links: Whom this node is connected to.
        endpoint: By what it calls them.
    """

    passes_on = False
    """Whether there are nodes beyond the peers that can be reached."""

    def __init__(self, links: Links, endpoint: CallEndpoint) -> None:
        self._links = links
        self._endpoint = endpoint

    @property
    def far(self) -> list[int]:
        """The nodes beyond the peers to whom there is a way."""
        return []

    @property
    def labels(self) -> dict[int, frozenset[str]]:
        """The labels of those that this node was told of."""
        return {}

    def reaches(self, patterns: Iterable[str]) -> list[int]:
        """Return those of them whose labels match."""
        return []

    def leads_to(self, peer: int, patterns: Iterable[str]) -> bool:
        """Tell whether a peer's labels match, or those of a node behind it."""
        return matches(self._links.labels_of(peer), patterns)

    def signed(self, slots: Mapping[str, Any], to: Sequence[str] | None) -> Mapping[str, Any]:
        """Return this node's slots under the keys by which they travel to such labels."""
        return slots

    def take_ctx(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return those ctx values that are for this node, by who has sent them."""
        return {peer: values}

    def take_event(self, peer: int, came: EventArrived) -> tuple[int, EventArrived] | None:
        """Return who has emitted an event, and the event itself; None if it is none."""
        return peer, came

    def take_call(self, peer: int, call: CallArrived) -> None:
        """Have a call answered."""
        self._endpoint.take(peer, call)

    def serve(self, streams: Streams) -> None:
        """Carry items for these streams."""

    def carry(self, node: int, parcel: Parcel) -> Future[Any]:
        """Take an item to a node beyond the peers; the future is done when it is taken."""
        answer: Future[Any] = Future()
        answer.set_exception(PeerLost(f"Node {node} is no peer of this one."))
        return answer

    def joined(self, peer: int, *, is_new_incarnation: bool) -> None:
        """Note that a peer is there."""

    def gone(self, peer: int) -> None:
        """Note that a peer has left, or is lost."""

    def stay(self) -> None:
        """Wait until nobody needs this node any more to reach others."""

    def turn(self) -> None:
        """Do what is due."""
