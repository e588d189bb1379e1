"""A job: what is to run on which nodes, and what the launcher knows of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.parallel.address import PrivateDirectory
from ding_lite.parallel.failure import Failure
from ding_lite.parallel.node import STARTING, MakeRouter, Returned, Stage
from ding_lite.parallel.topology import NodeSpec


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
        """When it must be running, or, with its result there, have ended."""
        self.start_at: Deadline | None = None
        """When it is to be started again."""
        self.failure: Failure | None = None
        self.returned: Returned | None = None
        self.is_over = False
        self.num_restarts = 0
