"""Watches: the newest values of some ctx keys of other nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ding_lite.clock import Deadline


class Watch:
    """The newest values of some ctx keys, of the node that sent one of them last.

    It takes nothing away from the node's task, and needs none: what came before the task began
    is seen as well.

    Args:
        keys: The ctx keys.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)
        self._of_node: dict[int, dict[str, Any]] = {}
        self._newest: dict[str, Any] = {}
        self._changed = threading.Condition()

    @property
    def newest(self) -> Mapping[str, Any]:
        """Key by key what that node sent last; empty until one has sent something."""
        return self._newest

    @property
    def of_nodes(self) -> Mapping[int, Mapping[str, Any]]:
        """The same by node, of all that have sent something."""
        with self._changed:
            return dict(self._of_node)

    def wait(
        self,
        ready: Callable[[Mapping[str, Any]], bool],
        deadline: Deadline,
        until: Callable[[], bool],
    ) -> bool:
        """Wait until `ready(newest)` or `until()`; return whether that came in time."""
        with self._changed:
            return deadline.wait(self._changed, lambda: until() or ready(self._newest))

    def put(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Take what a node has put on its ctx; called by the router."""
        seen = {key: values[key] for key in self._keys if key in values}
        if seen:
            with self._changed:
                # A new dict each time: a reader of the old one keeps values that belong together.
                self._newest = self._of_node[node_id] = self._of_node.get(node_id, {}) | seen
                self._changed.notify_all()

    def wake(self) -> None:
        """Let every wait ask its `until` again."""
        with self._changed:
            self._changed.notify_all()
