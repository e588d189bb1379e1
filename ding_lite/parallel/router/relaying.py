"""The interface of a relay, by which the router of a tree reaches nodes beyond its peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ding_lite.parallel.wire.messages import CallArrived, EventArrived
from ding_lite.runtime.messaging.streams import Parcel


class Relaying(ABC):
    """The messages of a node to nodes beyond its peers, and the messages that it relays."""

    @property
    @abstractmethod
    def far(self) -> list[int]:
        """The reachable nodes beyond the peers."""

    @property
    @abstractmethod
    def labels(self) -> dict[int, frozenset[str]]:
        """The known labels of the nodes."""

    @abstractmethod
    def reaches(self, patterns: Iterable[str]) -> list[int]:
        """Return the reachable nodes beyond the peers with matching labels."""

    @abstractmethod
    def leads_to(self, peer: int, patterns: Iterable[str]) -> bool:
        """Tell whether the labels of a peer, or of a node behind it, match."""

    @abstractmethod
    def addressed(self, slots: Mapping[str, Any], to: Sequence[str] | None) -> dict[str, Any]:
        """Return slots under keys that include the sender and the labels of the receivers."""

    @abstractmethod
    def take_state(self, peer: int, values: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Relay received values; return the values for this node, by sender."""

    @abstractmethod
    def take_event(self, peer: int, came: EventArrived) -> tuple[int, EventArrived] | None:
        """Relay a received event; return its sender and the event, or None if it is dropped."""

    @abstractmethod
    def take_call(self, peer: int, call: CallArrived) -> None:
        """Answer a call to this node; relay a call to another."""

    @abstractmethod
    def send_item(self, node: int, parcel: Parcel) -> Future[Any]:
        """Send an item to a node beyond the peers; return a future of its acknowledgement."""

    @abstractmethod
    def joined(self, peer: int, *, is_new_incarnation: bool) -> None:
        """Relay everything queued for a connected peer and the nodes behind it."""

    @abstractmethod
    def gone(self, peer: int) -> None:
        """Keep the items for a lost peer; give up the items for a peer that has left."""

    @abstractmethod
    def stay(self) -> None:
        """Block until all children have left, as long as the parent is connected."""

    @abstractmethod
    def tick(self) -> None:
        """Give up items of peers lost for too long, and retry nodes after their pause."""
