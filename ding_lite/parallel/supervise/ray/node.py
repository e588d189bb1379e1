"""The Ray actor of a node.

Ray starts its process on a machine with the requested resources; each incarnation of a node is a
separate actor. Ray transfers `main`, its arguments, its result and the key of the job over its own
connections. Messages between nodes use connections of this package, encrypted with that key.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from ding_lite.log import named_in_logs
from ding_lite.parallel.launch.membership import router_of
from ding_lite.parallel.memory.segments import remove_left_over
from ding_lite.parallel.network.address import Address, PrivateDirectory, free_ports
from ding_lite.parallel.network.interfaces import interface_towards
from ding_lite.parallel.network.security import save_key
from ding_lite.parallel.network.topology import NodeSpec
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.supervise.node_process import (
    Call,
    Command,
    call_main,
    execute,
    leaving,
    node_of,
)
from ding_lite.runtime.messaging.labels import describe_node


class RayNode:
    """The process of one incarnation of a node; the launcher calls all methods through Ray."""

    def __init__(self) -> None:
        self._directory = PrivateDirectory()
        self._router: NodeRouter | None = None
        self._early: list[Command] = []
        self._lock = threading.Lock()

    def place(self, head: str) -> str:
        """Return an address on which this node can listen."""
        remove_left_over()  # the shared memory of an earlier incarnation
        own = interface_towards(Address.parse(f"tcp://{head}"))
        [free] = free_ports(own, 1)
        return str(Address("tcp", own, free))

    def run(self, spec: NodeSpec, call: Call, secret: bytes) -> object:
        """Connect, run `main` and return its result; on an error leave without a good-bye."""
        key_file = self._directory.path / "job.key"
        save_key(key_file, secret)
        directory = str(self._directory.path)
        spec = replace(spec, key_file=str(key_file), directory=directory)
        with named_in_logs(describe_node(spec.node_id, spec.labels)):
            try:
                return self._run(spec, call)
            except SystemExit as error:
                # Ray would take it for the end of the actor, and report no error.
                raise RuntimeError(f"`main` has called `sys.exit({error.code!r})`.") from error
            finally:
                self.leave()

    def _run(self, spec: NodeSpec, call: Call) -> Any:
        with leaving(router_of(spec)) as router:
            with self._lock:
                self._router = router
                for command in self._early:
                    execute(router, command)
            router.wait_ready()
            with node_of(router):
                return call_main(call)

    def send(self, command: Command) -> None:
        """Carry out a command of the launcher, as soon as there is a router."""
        with self._lock:
            if self._router is None:
                self._early.append(command)
            else:
                execute(self._router, command)

    def leave(self) -> None:
        self._directory.remove()
