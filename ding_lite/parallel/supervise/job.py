"""A job: what is to run on which nodes, and what the launcher knows of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.supervise.failures import Failure
from ding_lite.parallel.supervise.node_process import RUNNING, STARTING, MakeRouter, Returned, Stage


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to run on which nodes."""

    specs: tuple[NodeSpec, ...]
    main: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    make_router: MakeRouter
    directory: PrivateDirectory
    """Deleted when the job has ended."""
    max_retries: int = 0
    """How often each node is restarted after a failure."""
    preload: tuple[str, ...] = ()
    """Modules that are slow to import and safe to be imported before a fork."""


class NodeRecord:
    """What the launcher knows of one node."""

    def __init__(self, spec: NodeSpec, deadline: Deadline) -> None:
        self.spec = spec
        self.stage: Stage = STARTING
        self.pid: int | None = None
        self.connection: Connection[Any, Any] | None = None
        self.deadline = deadline
        """When it must be running, or, after the end of `main`, have ended."""
        self.start_at: Deadline | None = None
        """When it is to be started again."""
        self.failure: Failure | None = None
        self.returned: Returned | None = None
        self.was_given_up = False
        """Whether the job ends without it; it has no result then."""
        self.was_told_to_finish = False
        self.was_broken_off = False
        """Whether it was told to end before it was running."""
        self.is_over = False
        self.num_restarts = 0

    @property
    def has_ended_main(self) -> bool:
        """Whether `main` has returned or raised, or cannot do either any more."""
        return self.returned is not None or self.failure is not None

    @property
    def has_deadline(self) -> bool:
        """Whether there is something that must come to it in time."""
        if self.is_over or self.start_at is not None:
            return False
        return self.stage != RUNNING or self.has_ended_main or self.was_broken_off


class Nodes(dict[int, NodeRecord]):
    """What the launcher knows of all nodes, by their numbers."""

    def is_ending_around(self, node: NodeRecord) -> bool:
        """Tell whether a peer has returned: a job ends on all nodes or on none."""
        return any(near.returned is not None for near in self.around(node))

    def waits_in_vain(self, node: NodeRecord) -> bool:
        """Tell whether a node waits for a peer that will not come."""
        is_waiting = node.stage != RUNNING and node.returned is None and not node.is_over
        return is_waiting and any(near.was_given_up for near in self.around(node))

    def is_cut_off(self, node: NodeRecord) -> bool:
        """Tell whether nobody is left by whom a running node could hear that the job has ended.

        A node that has returned has told its peers, and they tell theirs. One that was given
        up has told nobody.
        """
        seen, to_see, misses_somebody = {node.spec.node_id}, [node], False
        while to_see:
            for near in self.around(to_see.pop()):
                misses_somebody = misses_somebody or near.was_given_up
                if near.was_given_up or near.spec.node_id in seen:
                    continue
                if near.returned is not None:
                    return False
                seen.add(near.spec.node_id)
                to_see.append(near)
        return misses_somebody

    def around(self, node: NodeRecord) -> list[NodeRecord]:
        """Return the peers of a node."""
        return [self[near] for near in node.spec.peers]
