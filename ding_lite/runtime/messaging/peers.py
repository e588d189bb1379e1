"""The peers of a task: the values and events that it receives from them and sends to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ding_lite.clock import Clock, Deadline
from ding_lite.errors import ConfigError, PeerLost
from ding_lite.runtime.context import LOCAL_KEYS, Context, Latch, ParallelContext
from ding_lite.runtime.messaging.events import Events
from ding_lite.runtime.messaging.inbox import FINISH, Progress
from ding_lite.runtime.messaging.router import Router


class Peers:
    """The other nodes of a task's job; receives their messages from the router.

    Args:
        router: Connects this node to them.
        events: Gets the events that they emit.
        latch: Ends the job: set here when a peer ends it, and announced to peers when set here.
        ctx: Returns the context that the task is at.
        clock: Measures the waits.
    """

    def __init__(
        self,
        router: Router,
        events: Events,
        latch: Latch,
        ctx: Callable[[], Context],
        clock: Clock,
    ) -> None:
        self.parallel_ctx = ParallelContext()
        """Key by key the newest value that any of them has put on its ctx."""
        self._router = router
        self._events = events
        self._latch = latch
        self._ctx = ctx
        self._clock = clock
        self._shares: list[tuple[tuple[str, ...], tuple[str, ...] | None]] = []
        self._leave: Callable[[], None] | None = None
        # Also while no node is connected: it waits for those that come back.
        latch.listen(lambda: router.emit(FINISH), of_job=True)
        latch.listen(self._announce_end)
        latch.step.listen(self._wake_waits)
        latch.may_leave = lambda: router.may_leave
        self._failure: Exception | None = None

    def subscribe(self) -> None:
        """Receive their messages from now on."""
        if self._leave is None:
            self._leave = self._router.join(self)

    def unsubscribe(self) -> None:
        """Stop receiving their messages."""
        if self._leave is not None:
            self._leave()
            self._leave = None

    def check(self) -> None:
        """Raise an error if this node has been cut off from its job.

        Raises:
            NodeReplaced: Another process has taken its place.
            PeerLost: All others are gone without a good-bye, for too long.
        """
        if self._failure is not None:
            raise self._failure

    # -- to peers --------------------------------------------------------------------------

    def share(self, keys: tuple[str, ...], to: tuple[str, ...] | None) -> None:
        """Send these keys, and no unshared ones, to the nodes that patterns match."""
        self._shares.append((keys, to))

    def publish(self, ctx: Context) -> None:
        """Publish the shared keys of a context to them."""
        if not self._shares:
            self._router.publish_ctx({k: v for k, v in ctx.items() if k not in LOCAL_KEYS})
        for keys, to in self._shares:
            self._router.publish_ctx({key: ctx[key] for key in keys if key in ctx}, to=to)

    def _announce_end(self) -> None:
        """Post `finish` to the task's listeners; called once, on the thread that sets the latch."""
        self._events.post(FINISH, (), {})
        self._wake_waits()

    def _wake_waits(self) -> None:
        """Wake all blocked calls: the job ends, or their step has failed."""
        self._router.wake()
        self._events.wake()
        self.parallel_ctx.wake()

    # -- from peers ------------------------------------------------------------------------

    def wait_ctx(
        self, newer_than: Mapping[str, Any], timeout: float | None
    ) -> ParallelContext | None:
        """Block until they have sent values newer than these, or the job is to end.

        Raises:
            DeadlineExceeded: They did not come in time.
            ConfigError: There are no others.
            PeerLost: All of them have left.
        """
        self.subscribe()
        router, latch = self._router, self._latch
        deadline = Deadline.after(timeout, self._clock)
        newest = self.parallel_ctx.wait(
            newer_than, deadline, lambda: latch.ends_waits or not router.has_audience
        )
        if newest is not None or latch.ends_waits:
            return newest
        if len(router.world) == 1:
            raise ConfigError(
                "`wait_parallel_ctx` waits for other nodes, but this task runs alone. Start it "
                "with `Parallel.runner(...)`, or ask `task.router.is_active` first."
            )
        raise PeerLost(
            "`wait_parallel_ctx` waits for other nodes, but all of them have left, and what they "
            "have sent is not newer. A node leaves when its `main` has returned."
        )

    def receive_event(self, node_id: int, event: str, args: tuple[Any, ...], kwargs: Any) -> None:
        """Take an event that a node has emitted; called by the router."""
        if event == FINISH:
            self._latch.set()
        else:
            self._events.post(event, args, kwargs)

    def receive_failure(self, error: Exception) -> None:
        """End the run with an error, as this node is cut off; called by the router."""
        if not self._latch.is_set:
            self._failure = error
            self._latch.set(only_here=True)

    def receive_ctx(self, node_id: int, values: Mapping[str, Any]) -> None:
        """Take what a node has put on its ctx; called by the router."""
        self.parallel_ctx.receive(node_id, values)

    def progress(self) -> Progress:
        """Return the progress of the task; called on the router's thread."""
        ctx = self._ctx()
        return Progress(
            total_step=ctx["total_step"],
            env_step=ctx.get("env_step"),
            num_waiting=len(self._events.pending),
            finish=self._latch.is_set,
            thread=self._events.owner,
        )
