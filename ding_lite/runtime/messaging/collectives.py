"""Collective operations of groups of nodes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ding_lite.errors import CodecError, ConfigError

COLLECTIVE = "ding_lite.collective"
"""The call by which a member sends its value to the coordinator of its group."""


class _Operation(NamedTuple):
    kind: str
    members: list[int]
    values: dict[int, Any]
    """The values that have come, by rank."""
    answer: Future[list[Any] | int | str]


class Collectives:
    """The collective operations that a node coordinates or takes part in."""

    def __init__(self) -> None:
        self._open: dict[str, _Operation] = {}
        self._gone: set[int] = set()
        self._rounds: Counter[tuple[int, ...]] = Counter()
        self._lock = threading.Lock()

    def next_round(self, members: Sequence[int]) -> int:
        """Count this node's collective operations in a group; all members have the same count."""
        with self._lock:
            self._rounds[*members] += 1
            return self._rounds[*members]

    def repeat_round(self, members: Sequence[int]) -> None:
        """Take back the last operation of a group, to which this node could not contribute."""
        with self._lock:
            self._rounds[*members] = max(0, self._rounds[*members] - 1)  # 0 after `left`

    def contribute(
        self, key: str, kind: str, members: list[int], rank: int, value: object
    ) -> Future[list[Any] | int | str]:
        """Add a member's value; all members share one future.

        It gets the values of all, by rank, or the number of a member that has left before, or a
        sentence if the members have called operations of different kinds.
        """
        # It comes from a peer, and a wrong one that is kept would fail when a node leaves.
        if not (
            isinstance(key, str)
            and isinstance(kind, str)
            and isinstance(members, list)
            and {int}.issuperset(map(type, members))
            and type(rank) is int
        ):
            raise CodecError(
                "A collective operation has a key, a kind, the ids of its members, and a rank."
            )
        with self._lock:
            operation = self._open.setdefault(key, _Operation(kind, members, {}, Future()))
            of_others, expected, values, answer = operation
            if members != expected or not 0 <= rank < len(members):
                raise ConfigError(
                    f"Rank {rank} of {len(members)} does not belong to {key}. Do all members call "
                    f"the same collective operations in the same order?"
                )
            values[rank] = value  # a second value is from a restarted node behind a relay
            found: list[Any] | int | str | None
            found = next((node for node in members if node in self._gone), None)
            if kind != of_others:
                found = f"node {members[rank]} calls `{kind}`, and others call `{of_others}`"
            elif found is None and len(values) == len(members):
                found = [values[k] for k in range(len(members))]
            if found is None:
                return answer
            del self._open[key]
        answer.set_result(found)
        return answer

    def joined(self, node: int, *, is_new_incarnation: bool) -> None:
        """Note that a node is here; a restarted one sends the values of open operations again."""
        with self._lock:
            self._gone.discard(node)
            if is_new_incarnation:
                for _, members, values, _ in self._open.values():
                    if node in members:
                        values.pop(members.index(node), None)

    def left(self, node: int) -> None:
        """End the operations of groups with a node that has left the job.

        In an elastic job another node may get its number, and begins with operation 1.
        """
        with self._lock:
            self._gone.add(node)
            ended = [key for key, each in self._open.items() if node in each.members]
            answers = [self._open.pop(key).answer for key in ended]
            for members in [members for members in self._rounds if node in members]:
                del self._rounds[members]
        for answer in answers:
            answer.set_result(node)
