"""Collective operations of groups of nodes, and named values that other nodes may fetch."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

from ding_lite.errors import ConfigError, did_you_mean

COLLECTIVE = "ding_lite.meet"
"""The call by which a member sends its value to the coordinator of its group."""
PAIRED = "ding_lite.paired"
"""The call that fetches a named value of a node."""


class Collectives:
    """The collective operations that a node coordinates or takes part in, and its named values."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[dict[int, Any], Future[list[Any]]]] = {}
        self._rounds: Counter[str] = Counter()
        self._named: dict[str, Any] = {}
        self._lock = threading.Lock()

    def next_round(self, key: str) -> int:
        """Count this node's collective operations in a group; all members have the same count."""
        with self._lock:
            self._rounds[key] += 1
            return self._rounds[key]

    def contribute(self, key: str, size: int, rank: int, value: object) -> Future[list[Any]]:
        """Add a member's value; all members share one future, of the values of all, by rank."""
        with self._lock:
            values, answer = self._open.setdefault(key, ({}, Future()))
            if rank in values or not 0 <= rank < size:
                raise ConfigError(
                    f"Rank {rank} of {size} came twice, or does not belong, to {key}. Do all "
                    f"members call the same collective operations in the same order?"
                )
            values[rank] = value
            if len(values) < size:
                return answer
            del self._open[key]
        answer.set_result([values[k] for k in range(size)])
        return answer

    def pair(self, name: str, value: object) -> None:
        """Give a value of this node a name by which other nodes may fetch it."""
        with self._lock:
            self._named[name] = value

    def unpair(self, name: str) -> None:
        """Remove the name of a value.

        Raises:
            ConfigError: There is no such name on this node.
        """
        with self._lock:
            if name not in self._named:
                raise ConfigError(
                    f"No value of this node is named {name!r}.{did_you_mean(name, self._named)}"
                )
            del self._named[name]

    def paired(self, name: str) -> tuple[bool, Any]:
        """Return whether a value has this name here, and the value."""
        with self._lock:
            return name in self._named, self._named.get(name)
