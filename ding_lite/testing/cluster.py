"""Run a job of several nodes in one process, and inject faults into its links.

Each node has the same router as in a process of its own, on threads of this process. A `Network`
connects the routers; the test can cut, hold and heal its links. There are no sockets, and nothing
is left when the test ends. A cluster cannot simulate a process that is killed while it works,
because threads cannot be killed.
"""

# ruff: noqa: ANN401 - arguments and results of any type, as those of `Parallel.runner`
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock, Deadline
from ding_lite.errors import ConfigError, DeadlineExceeded
from ding_lite.parallel.launch.membership import router_of
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.link.session import HEARTBEAT_S
from ding_lite.parallel.network.topology import NodeSpec, Topology
from ding_lite.parallel.router.node_router import NodeRouter
from ding_lite.parallel.transport.in_process import InprocTransport, Network
from ding_lite.runtime.messaging.inbox import FINISH
from ding_lite.runtime.messaging.router import use_router
from ding_lite.settings.rules import check_all, whole
from ding_lite.testing.clock import ManualClock

RUN_TIMEOUT_S = 60.0
"""Seconds that `run` waits for `main` by default."""
_PATIENCE_S, _PAUSE_S = 0.5, 0.1
"""Seconds of real time before a manual clock is first moved while a cluster closes, and between
further moves."""


class Cluster:
    """Several connected nodes in one process; a context manager.

    Args:
        num_nodes: Number of nodes.
        topology: `star`, `mesh`, `tree`, `alone`, or the pairs of connected nodes.
        roles: One entry per node, as for `Parallel.runner`.
        labels: Labels of all nodes.
        clock: The clock of heartbeats and waits. With a `ManualClock` time passes only when the
            test advances it.

    Raises:
        ConfigError: An argument is wrong.

    Example:
        >>> from ding_lite.runtime.messaging.router import current_router
        >>> def main():
        ...     return sorted(current_router().labels)
        >>> with Cluster(2, "star", roles=["learner", "collector"]) as cluster:
        ...     print(cluster.run(main)[1])
        ['collector', 'collector.0', 'distributed', 'node.1']
    """

    def __init__(
        self,
        num_nodes: int,
        topology: Topology = "mesh",
        *,
        roles: Sequence[str | Iterable[str]] | None = None,
        labels: str | Iterable[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_all(whole(1, num_nodes=num_nodes))
        self.network = Network()
        """The network between the nodes."""
        self._clock = clock
        plan = JobPlan(num_nodes=num_nodes, topology=topology, roles=roles, labels=labels)
        self._specs = [*plan.specs_at([f"inproc://{k}" for k in range(num_nodes)], job="")]
        if num_nodes == 1:
            names = plan.labels_of_nodes(distributed=False)
            self._specs = [replace(self._specs[0], labels=names[0], world=tuple(names))]
        self._routers: list[NodeRouter] = []
        self._mains: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []
        try:
            for spec in self._specs:
                self._routers.append(self._make(spec))
            for router in self._routers:
                router.wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def routers(self) -> tuple[NodeRouter, ...]:
        """The router of each node, by its id."""
        return tuple(self._routers)

    def run(
        self,
        main: Callable[..., Any],
        /,
        *args: Any,
        timeout: float | None = RUN_TIMEOUT_S,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a program on all nodes, as `Parallel.runner` does; return the results, by node.

        Raises:
            DeadlineExceeded: `main` has not ended in time; the message names the nodes.
            Exception: The error of `main` on a node; errors of several nodes are an exception
                group. The tasks of the other nodes are told to finish.
        """
        self.start(main, *args, **kwargs)
        return self.results(timeout=timeout)

    def start(self, main: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Start a program on all nodes; `results` waits for its end.

        Raises:
            ConfigError: A program has already been started.
        """
        if self._mains:
            raise ConfigError("This cluster has a program already; make another one for another.")
        for router in self._routers:
            done: Future[Any] = Future()
            self._mains.append(done)
            self._threads.append(
                threading.Thread(
                    target=_live,
                    args=(router, done, main, args, kwargs),
                    name=f"ding_lite-node-{router.node_id}",
                    daemon=True,  # a test that fails must not wait for a node that hangs
                )
            )
        for thread in self._threads:
            thread.start()

    def results(self, *, timeout: float | None = RUN_TIMEOUT_S) -> list[Any]:
        """Wait until the program has ended on all nodes; return and raise as `run` does.

        Raises:
            ConfigError: No program has been started.
        """
        if not self._mains:
            raise ConfigError("This cluster has no program yet; `start(main)` starts one.")
        deadline = Deadline.after(timeout)
        for thread in self._threads:
            thread.join(deadline.remaining)
        late = [node_id for node_id, done in enumerate(self._mains) if not done.done()]
        if late:
            raise DeadlineExceeded(
                f"`main` has not ended within {timeout:g} s on node {', '.join(map(str, late))}. "
                f"Does it wait for something that no other node sends?"
            )
        errors = [(k, error) for k, done in enumerate(self._mains) if (error := done.exception())]
        for node_id, error in errors:
            error.add_note(f"in `main` of node {node_id}")
        if len(errors) > 1:
            raise BaseExceptionGroup("`main` has raised", [error for _, error in errors])
        for _, error in errors:
            raise error
        return [done.result() for done in self._mains]

    def restart(self, node_id: int) -> NodeRouter:
        """Drop a node without a good-bye, and start its next incarnation; return the new router.

        Raises:
            ConfigError: The node runs a program, which cannot be killed.
        """
        if self._mains:
            raise ConfigError(
                f"Node {node_id} runs a program, and a thread cannot be killed. Restart nodes "
                f"before `start`, or use processes: Parallel.runner(..., auto_recover=True)."
            )
        self.network.remove(node_id)
        self._routers[node_id].close(good_bye=False)
        spec = self._specs[node_id]
        spec = self._specs[node_id] = replace(spec, incarnation=spec.incarnation + 1)
        self._routers[node_id] = self._make(spec)
        return self._routers[node_id]

    def close(self) -> None:
        """Heal the network and close all nodes; a second call does nothing."""
        self.network.heal()
        with self._unfrozen():
            for router in self._routers:
                router.close()
        self._routers.clear()

    @contextmanager
    def _unfrozen(self) -> Iterator[None]:
        """Advance a manual clock during a slow close, so that lost peers reconnect or expire."""
        if not isinstance(self._clock, ManualClock):
            yield
            return
        clock, has_closed = self._clock, threading.Event()

        def move() -> None:
            pause_s = _PATIENCE_S
            while not has_closed.wait(pause_s):
                clock.advance(HEARTBEAT_S)
                pause_s = _PAUSE_S

        thread = threading.Thread(target=move, name="ding_lite-cluster-clock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_closed.set()
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, spec: NodeSpec) -> NodeRouter:
        transport = InprocTransport(self.network, spec.node_id, peers=spec.peers, clock=self._clock)
        return router_of(spec, transport=transport, clock=self._clock)


def _live(
    router: NodeRouter,
    done: Future[Any],
    main: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Run the program on a node, leave the job, and store the result or the error."""
    result, failure = None, None
    try:
        with use_router(router):
            result = main(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - raised where the test waits for it
        failure = error
        router.emit(FINISH)
    try:
        router.close()
    finally:
        if failure is None:
            done.set_result(result)
        else:
            done.set_exception(failure)
