"""Routing without relays, and the interface by which a tree reaches nodes beyond the peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ding_lite.parallel.link.links import Links
from ding_lite.parallel.router.calls import Calls
from ding_lite.parallel.wire.messages import ITEM, CallArrived, EventArrived
from ding_lite.runtime.messaging.labels import matches
from ding_lite.runtime.messaging.streams import Parcel


class Routing:
    """The ways of messages between a node and its peers, which pass nothing on.

    `Relay` overrides them for the nodes of a tree.
    """

    reaches_beyond_peers = False
    """Whether peers relay messages."""

    def __init__(self, links: Links, calls: Calls) -> None:
        self._links = links
        self._calls = calls

    @property
    def far(self) -> list[int]:
        """The reachable nodes beyond the peers."""
        return []

    @property
    def labels(self) -> dict[int, frozenset[str]]:
        """The labels of nodes, as far as they are known without a handshake."""
        return {}

    def reaches(self, patterns: Iterable[str]) -> list[int]:
        """Return the reachable nodes beyond the peers with matching labels."""
        return []

    def leads_to(self, peer: int, patterns: Iterable[str]) -> bool:
        """Tell whether the labels of a peer, or of a node behind it, match."""
        return matches(self._links.sessions[peer].labels, patterns)

    def addressed(self, slots: Mapping[str, Any], to: Sequence[str] | None) -> Mapping[str, Any]:
        """Return slots under the keys by which they are sent."""
        return slots

    def take_state(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Relay received values; return the values for this node, by sender."""
        return {peer: values}

    def take_event(self, peer: int, came: EventArrived) -> tuple[int, EventArrived] | None:
        """Relay a received event; return its sender and the event, or None if it is dropped."""
        return peer, came

    def take_call(self, peer: int, call: CallArrived) -> None:
        """Answer a call to this node; relay a call to another."""
        self._calls.take_call(peer, call)

    def send_item(self, node: int, parcel: Parcel) -> Future[Any]:
        """Send an item to another node; return a future of its acknowledgement."""
        return self._calls.send(node, ITEM, parcel.body)

    def joined(self, peer: int, *, is_new_incarnation: bool) -> None:
        """Relay everything queued for a connected peer and the nodes behind it."""

    def gone(self, peer: int) -> None:
        """Keep the items for a lost peer; give up the items for a peer that has left."""

    def stay(self) -> None:
        """Block until all children have left, as long as the parent is connected."""

    def tick(self) -> None:
        """Give up items of peers lost for too long, and retry nodes after their pause."""
