"""Collective operations of groups of nodes."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

from ding_lite.errors import ConfigError

COLLECTIVE = "ding_lite.meet"
"""The call by which a member sends its value to the coordinator of its group."""


class Collectives:
    """The collective operations that a node coordinates or takes part in."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[dict[int, Any], Future[list[Any]]]] = {}
        self._rounds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def next_round(self, key: str) -> int:
        """Count this node's collective operations in a group; all members have the same count."""
        with self._lock:
            self._rounds[key] += 1
            return self._rounds[key]

    def repeat_round(self, key: str) -> None:
        """Take back the last operation of a group, to which this node could not contribute."""
        with self._lock:
            self._rounds[key] -= 1

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
