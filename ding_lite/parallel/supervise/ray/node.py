"""A node that Ray has placed: the actor in whose process it lives.

Ray starts the process, on whatever machine has what the node needs; each incarnation of the node
has one of its own. Ray carries `main`, its arguments, its result and the key of the job, over its
own connections. What the nodes say to each other goes over ours, encrypted with that key.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from ding_lite.log import speaking_as
from ding_lite.parallel.memory.segments import remove_left_over
from ding_lite.parallel.network.address import Address, PrivateDirectory, free_ports
from ding_lite.parallel.network.interfaces import interface_towards
from ding_lite.parallel.network.security import save_key
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.supervise.node_process import Work
from ding_lite.parallel.tree.router import make_router
from ding_lite.runtime.messaging.labels import describe_node
from ding_lite.runtime.messaging.router import use_router


class RayNode:
    """The process of one incarnation of a node; the launcher calls it through Ray."""

    def __init__(self) -> None:
        """Take a private directory, and remove those of former incarnations on this machine."""
        remove_left_over()
        self._directory = PrivateDirectory()
        self._router: NodeRouter | None = None
        self._moved: dict[int, str] = {}
        self._has_ended = False
        self._lock = threading.Lock()

    def place(self, head: str) -> str:
        """Return where this node can listen.

        Args:
            head: Where Ray's head listens, as `host:port`. The interface by which this machine
                reaches it is the one by which the other nodes reach this machine.
        """
        own = interface_towards(Address.parse(f"tcp://{head}"))
        [free] = free_ports(own, 1)
        return str(Address("tcp", own, free))

    def run(self, work: Work, secret: bytes) -> object:
        """Connect, run `main` and return its result.

        Args:
            work: What the node is to do.
            secret: The key of the job.

        Raises:
            Exception: What `main` has raised; a node that does leaves without a good-bye.
        """
        key_file = self._directory.path / "job.key"
        save_key(key_file, secret)
        directory = str(self._directory.path)
        spec = replace(work.spec, key_file=str(key_file), directory=directory)
        with speaking_as(describe_node(spec.node_id, spec.labels)):
            try:
                return self._run(replace(work, spec=spec))
            finally:
                self.leave()

    def _run(self, work: Work) -> object:
        router = make_router(work.spec)
        good_bye = False
        try:
            self._take(router)
            router.wait_ready()
            with router.deferred_sigint.installed(), use_router(router):
                result: Any = work.main(*work.args, **work.kwargs)
            good_bye = True
        finally:
            router.close(good_bye=good_bye)
        return result

    def _take(self, router: NodeRouter) -> None:
        """Catch up with what the launcher has said before there was a router."""
        with self._lock:
            self._router = router
            for peer, address in self._moved.items():
                router.redial(peer, address)
            if self._has_ended:
                router.finish()

    def redial(self, peer: int, address: str) -> None:
        """Dial a peer where it listens from now on."""
        with self._lock:
            self._moved[peer] = address
            if self._router is not None:
                self._router.redial(peer, address)

    def finish(self) -> None:
        """End the job on this node, as if another one had ended it."""
        with self._lock:
            self._has_ended = True
            if self._router is not None:
                self._router.finish()

    def leave(self) -> None:
        """Give up the private directory; the process ends next, whatever `main` does."""
        self._directory.remove()
