"""Named weights that one node publishes and the others fetch, by version.

Publishing sends them to every connected node, on one machine through shared memory, and the newest
version wins. So fetching takes no message, whether there is a new version or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ding_lite.clock import Deadline
from ding_lite.distributed.half_precision import HalfPrecision
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.parallel.router.group import World


class Model(NamedTuple):
    """Published weights, with their version."""

    version: int
    weights: Mapping[str, Any]


class ModelServer:
    """The newest version of some weights, which one node publishes and all may fetch.

    Args:
        world: The nodes that share the weights; this node's job by default.
        name: Distinguishes these weights from others.

    Example:
        >>> server = ModelServer(name="actor")
        >>> server.publish({"w": Tensor([1.0, 1.0])})
        1
        >>> server.fetch().version, server.fetch(newer_than=1)
        (1, None)
    """

    def __init__(self, world: World | None = None, *, name: str = "model") -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"`name` is {name!r}; a name such as `actor` was expected.")
        self._router = (world or World.current()).group(["node.*"]).router
        self._key = f"model {name}"
        self._watch = self._router.watch(self._key)
        self._half_precision = HalfPrecision()
        self._version = 0
        self._incarnation = int.from_bytes(os.urandom(6), "little")
        self._fetched_incarnation = 0

    def publish(self, weights: Mapping[str, Tensor], *, half: bool = False) -> int:
        """Offer weights to all connected nodes; neither waits for them nor keeps old versions.

        Args:
            weights: Tensors by name, on any device. They are copied: they may change at once.
            half: Send 32-bit numbers in 16 bits: half the bytes, about three digits of each.

        Returns:
            Their version, counted from 1.
        """
        given = (
            self._half_precision(weights)
            if half
            else {name: w.cpu() for name, w in weights.items()}
        )
        version = self._version + 1
        self._router.publish_ctx(
            {self._key: {"incarnation": self._incarnation, "version": version, "weights": given}}
        )
        self._version = version
        return version

    def fetch(self, *, newer_than: int | None = None) -> Model | None:
        """Return the newest weights that have come; None where there are none.

        The node that publishes fetches its own: what it has offered, copied now.

        Args:
            newer_than: The version that was fetched before: that one is not returned again.
        """
        if self._version:
            if self._version == newer_than:
                return None
            own = self._router.published(self._key)
            return Model(own["version"], own["weights"])
        newest = self._watch.newest.get(self._key)
        if newest is None:
            return None
        # A restarted publisher counts from 1 again: the same version may be new weights.
        if newest["version"] == newer_than and newest["incarnation"] == self._fetched_incarnation:
            return None
        self._fetched_incarnation = newest["incarnation"]
        return Model(newest["version"], newest["weights"])

    def wait(
        self,
        *,
        newer_than: int | None = None,
        timeout: float | None = 60.0,
        until: Callable[[], bool] = lambda: False,
    ) -> Model | None:
        """Wait for weights of another version; return None if `until()` ended the wait.

        Raises:
            DeadlineExceeded: No other version was published in time.
        """
        found: list[Model] = []

        def has_come(_: Mapping[str, Any]) -> bool:
            model = self.fetch(newer_than=newer_than)
            found.extend([model] if model is not None else [])
            return bool(found)

        in_time = self._watch.wait(has_come, Deadline.after(timeout), until)
        if not in_time:
            raise DeadlineExceeded(
                f"No version of `{self._key}` other than {newer_than} has come within "
                f"{timeout:g} s. Does a connected node publish it?"
            )
        return found[0] if found else None
