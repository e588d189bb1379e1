"""Routing without relays: a node sends to its peers and receives from them only."""

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
    """Route messages between this node and its peers; `Relay` extends it to a tree.

    Args:
        links: The links to the peers.
        endpoint: Answers calls.
    """

    passes_on = False
    """Whether nodes beyond the peers can be reached."""

    def __init__(self, links: Links, endpoint: CallEndpoint) -> None:
        self._links = links
        self._endpoint = endpoint

    @property
    def far(self) -> list[int]:
        """The reachable nodes beyond the peers."""
        return []

    @property
    def labels(self) -> dict[int, frozenset[str]]:
        """The known labels of nodes beyond the peers."""
        return {}

    def reaches(self, patterns: Iterable[str]) -> list[int]:
        """Return the reachable nodes beyond the peers with matching labels."""
        return []

    def leads_to(self, peer: int, patterns: Iterable[str]) -> bool:
        """Tell whether the labels of a peer match, or those of a node behind it."""
        return matches(self._links.labels_of(peer), patterns)

    def addressed(self, slots: Mapping[str, Any], to: Sequence[str] | None) -> Mapping[str, Any]:
        """Return slots under the keys that are sent to these labels."""
        return slots

    def take_state(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the received ctx values for this node, by sender."""
        return {peer: values}

    def take_event(self, peer: int, came: EventArrived) -> tuple[int, EventArrived] | None:
        """Return the sender of a received event, and the event; None if it is dropped."""
        return peer, came

    def take_call(self, peer: int, call: CallArrived) -> None:
        """Answer a received call."""
        self._endpoint.take(peer, call)

    def serve(self, streams: Streams) -> None:
        """Set the streams of which to send items."""

    def send_item(self, node: int, parcel: Parcel) -> Future[Any]:
        """Send an item to a node beyond the peers; return a future of its acknowledgement."""
        answer: Future[Any] = Future()
        answer.set_exception(PeerLost(f"Node {node} is no peer of this one."))
        return answer

    def joined(self, peer: int, *, is_new_incarnation: bool) -> None:
        """Handle a peer that has connected."""

    def gone(self, peer: int) -> None:
        """Handle a peer that has left or was lost."""

    def stay(self) -> None:
        """Block until no other node needs this one as a relay."""

    def tick(self) -> None:
        """Handle expired deadlines."""
