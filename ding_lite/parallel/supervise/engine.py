"""The engine of a supervisor: it starts the nodes of a job, reports on them, and ends them.

An engine makes no decisions: `supervisor` decides which node is restarted, when a node is late, and
how the job ends. The engines are `local`, with a fork server on this machine, and `ray`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from ding_lite.parallel.supervise.job import NodeRecord
from ding_lite.parallel.supervise.node_process import Command, Entered, Exited, Failed, Returned

END_GRACE_S = 1.5
"""Seconds that nodes have to end in order when another node has failed."""

Report: TypeAlias = Entered | Returned | Failed | Exited


class EngineLost(Exception):
    """The engine has died, and no reports on the nodes will come."""


class Engine(Protocol):
    """Starts the nodes of a job as processes; used on one thread, except for `wake`."""

    name: str
    """The engine's name as the subject of a sentence."""
    forwards_signals: bool
    """Whether a signal to the launcher is raised in `main` as well."""

    def open(self) -> None: ...

    def start(self, node: NodeRecord) -> None: ...

    def wait(self, timeout: float | None) -> Sequence[tuple[int, Report]]:
        """Wait for reports or `wake`; return all reports that have come, by node id.

        The cause of a report is returned before that report, or together with it.

        Raises:
            EngineLost: No more reports will come.
        """
        ...

    def wake(self) -> None:
        """Make `wait` return soon; safe from any thread, and at any time."""
        ...

    def send(self, node_id: int, command: Command) -> None:
        """Send a command to a node, unless it has ended."""
        ...

    def interrupt(self, signum: int) -> None: ...

    def end(self, grace: float) -> None:
        """End all nodes in order, and kill those that still run after `grace` seconds."""
        ...

    def kill(self, node_id: int) -> None:
        """Kill a node; it is reported as any other exit."""
        ...

    def startup_error(self, late: Sequence[NodeRecord], ready: Sequence[int]) -> Exception: ...

    def close(self) -> None:
        """Kill all remaining nodes, and release all resources; safe at any time."""
        ...
