"""A job as its supervisor sees it: the state of each node, and the engine that runs the nodes.

An engine makes no decisions: `supervisor` decides which node is restarted, when a node is late, and
how the job ends. The engines are `local`, with a fork server on this machine, and `ray`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from ding_lite.clock import Deadline
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.failures import Failure
from ding_lite.parallel.supervise.node_process import (
    RUNNING,
    STARTING,
    Command,
    Entered,
    Exited,
    Failed,
    Returned,
    Stage,
    Stopped,
)

END_GRACE_S = 1.5
"""Seconds that nodes have to end in order when another node has failed."""


class NodeRecord:
    """The state of one node, as the launcher knows it."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.stage: Stage = STARTING
        self.deadline = Deadline.after(None)
        """When the node must run `main`, or must have exited after `main` has ended."""
        self.start_at: Deadline | None = None
        self.stopped_pid: int | None = None
        """The node's process while it is stopped by SIGSTOP."""
        self.must_continue = False
        """Whether the job waits for this stopped process alone."""
        self.failure: Failure | None = None
        self.returned: Returned | None = None
        self.was_given_up = False
        """Whether the job ends without a result of this node."""
        self.was_told_to_finish = False
        self.was_broken_off = False
        """Whether a signal has ended the node before it ran `main`."""
        self.is_over = False
        self.num_restarts = 0

    @property
    def has_ended_main(self) -> bool:
        """Whether `main` has returned or raised, or the node's process has ended."""
        return self.returned is not None or self.failure is not None

    @property
    def has_deadline(self) -> bool:
        if self.is_over or self.start_at is not None:
            return False
        has_begun_end = self.has_ended_main or self.was_broken_off or self.must_continue
        return self.stage != RUNNING or has_begun_end


class Nodes(dict[int, NodeRecord]):
    """The states of all nodes, by id."""

    def has_returned_peer(self, node: NodeRecord) -> bool:
        """Tell whether a peer has returned: a job ends on all nodes or on none."""
        return any(near.returned is not None for near in self.peers_of(node))

    def waits_for_lost_peer(self, node: NodeRecord) -> bool:
        is_waiting = node.stage != RUNNING and node.returned is None and not node.is_over
        return is_waiting and any(near.was_given_up for near in self.peers_of(node))

    def is_cut_off(self, node: NodeRecord) -> bool:
        """Tell whether the end of the job cannot reach a running node.

        A node that has returned has sent FINISH to its peers, which relay it. A node that was given
        up has sent nothing.
        """
        seen, to_see, has_lost_peer = {node.spec.node_id}, [node], False
        while to_see:
            for near in self.peers_of(to_see.pop()):
                has_lost_peer = has_lost_peer or near.was_given_up
                if near.was_given_up or near.spec.node_id in seen:
                    continue
                if near.returned is not None:
                    return False
                seen.add(near.spec.node_id)
                to_see.append(near)
        return has_lost_peer

    def peers_of(self, node: NodeRecord) -> list[NodeRecord]:
        return [self[near] for near in node.spec.peers]


Report: TypeAlias = Entered | Returned | Failed | Stopped | Exited


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
