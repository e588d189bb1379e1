"""The task: a pipeline of middleware that runs on a node."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Self

from ding_lite.clock import SYSTEM_CLOCK, Clock
from ding_lite.errors import ConfigError, EnvError, MiddlewareError, kind_of
from ding_lite.interruption import Interruption
from ding_lite.io.importing import refuse_while_importing
from ding_lite.runtime.composition import Composition
from ding_lite.runtime.concurrency import Executor
from ding_lite.runtime.context import Context, ParallelContext, latch_of, set_total_step
from ding_lite.runtime.interrupt import interruptible
from ding_lite.runtime.messaging.labels import check_own_labels, check_patterns, matches
from ding_lite.runtime.messaging.messages import Emission, Listener, Messages
from ding_lite.runtime.messaging.router import Router, current_router, is_helper_thread
from ding_lite.runtime.messaging.streams import Item
from ding_lite.runtime.middleware import Middleware, StepWrapper, resources_of
from ding_lite.runtime.pipeline import Pipeline, parallel, serial
from ding_lite.runtime.resources import Resources
from ding_lite.runtime.saving import load_state, state_of
from ding_lite.runtime.trace.diagram import Diagram, draw
from ding_lite.settings.environment import limit_torch_threads
from ding_lite.settings.rules import at_least, check_all, one_of, whole

logger = logging.getLogger(__name__)
_RUNS_ON: ContextVar[Router | None] = ContextVar("ding_lite_runs_on", default=None)
"""The router of the task that this thread, or middleware of it, runs."""
_BEFORE_A_RUN = (
    "A run keeps the pipeline with which it begins: call it before `task.run`, or between two runs."
)
_STEPS_BY_ITSELF = (
    "A run ends each step, and begins the next one, by itself: leave the call out, or make steps "
    "of your own with `task.forward` between two runs."
)


class Task:
    """Runs middleware step after step; the same file runs on one node and on many.

    A task is a context manager: leaving it ends its threads and closes the resources of its
    middleware. `run` may be called several times and continues where it ended.

    Args:
        async_mode: Run all middleware of a step at the same time, with one barrier at its end.
        n_async_workers: Threads for the plain functions of such a step. With more threads more of
            them may block at the same time; 3 is usual.
        ctx: The first step's context, or values for it.
        labels: Labels of this node in addition to its standard labels.
        attach_callback: Called with the newest ctx of a running job before the first step.
        attach_timeout: Seconds to wait for that ctx; `None` waits for ever.
        clock: Measures the waits.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> def count(ctx):
        ...     ctx.seen = ctx.setdefault("seen", 0) + 1
        ...     ctx.keep("seen")
        >>> with Task() as task:
        ...     _ = task.use(count)
        ...     task.run(max_step=3)
        >>> task.ctx.seen
        3
    """

    # More than 20 methods: programs in the style of DI-engine call all of them on `task`.

    def __init__(
        self,
        *,
        async_mode: bool = False,
        n_async_workers: int = 3,
        ctx: Context | Mapping[str, Any] | None = None,
        labels: str | Iterable[str] | None = None,
        attach_callback: Callable[[ParallelContext], object] | None = None,
        attach_timeout: float | None = 30.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_all(
            one_of((False, True), async_mode=async_mode),
            whole(1, n_async_workers=n_async_workers),
            [] if attach_timeout is None else at_least(0.0, attach_timeout=attach_timeout),
            [f"`ctx` is {ctx!r}; a Context or a dict was expected"]
            if not isinstance(ctx, Mapping | None)
            else [],
            [f"`attach_callback` is {attach_callback!r}; a function of one ctx was expected"]
            if not (attach_callback is None or callable(attach_callback))
            else [],
        )
        self._router = current_router()
        self._labels = self._router.labels | check_own_labels(labels or ())
        self._labels |= {"async"} if async_mode else set()
        self._async_mode = async_mode
        self._attach_callback = attach_callback
        self._attach_timeout = attach_timeout
        self._clock = clock

        self._composition = Composition(self._labels)
        first = ctx if isinstance(ctx, Context) else Context(ctx or {})
        if latch_of(first).is_used:  # that of another task, with a latch of its own
            first = Context(first)
            first.keep(*ctx.kept if isinstance(ctx, Context) else ())
        self._latch = latch_of(first)
        self._executor = Executor(int(n_async_workers), self._latch.step)
        self._is_helper = is_helper_thread()
        self._is_within = False
        """Whether the present run is within a middleware of another task of this node."""
        here = self._router, self._labels, self._latch
        self._messages = Messages(*here, lambda: self._pipeline.ctx, self._is_aside, clock)
        self._executor.messages = self._messages
        self._pipeline = Pipeline(first, self._executor, self._messages)
        self._resources = Resources(self._executor)
        self._is_running = self._has_run = False
        self._is_in_block = False
        """Whether a `with` block closes the task; else each run does."""

    # -- composing -----------------------------------------------------------------------

    def use(
        self,
        fn: Middleware,
        filter_labels: str | Iterable[str] | None = None,
        lock: bool = False,
    ) -> Self:
        """Append a middleware to the pipeline.

        Args:
            fn: A callable of one ctx: function, generator function, coroutine function,
                asynchronous generator function, or an object with `__call__`. An object that
                is also a context manager, or an asynchronous one, is entered when a run begins and
                left when it ends.
            filter_labels: Patterns of the labels of the nodes that run it; all by default.
            lock: Never run it at the same time as another middleware with a lock.

        Raises:
            MiddlewareError: `fn` is no middleware, or the task is running.
            LabelError: A pattern could match no label.
        """
        self._refuse_while_running("use")
        self._composition.use(fn, filter_labels, lock)
        return self

    def at(self, *labels: str) -> LabelFilter:
        """Return an object with a `use` for nodes with labels that match one of these patterns."""
        return LabelFilter(self, check_patterns(labels))

    def use_step_wrapper(self, wrapper: StepWrapper) -> Self:
        """Wrap every middleware, including those used later.

        Raises:
            MiddlewareError: `wrapper` cannot be called, or the task is running.
        """
        self._refuse_while_running("use_step_wrapper")
        self._composition.wrap(wrapper)
        return self

    def serial(self, *fns: Middleware) -> Middleware:
        """Compose middleware into one that runs them in order."""
        return serial(fns, self._executor)

    def sequence(self, *fns: Middleware) -> Middleware:
        """Compose middleware as `serial` does; an older name."""
        return self.serial(*fns)

    def parallel(self, *fns: Middleware) -> Middleware:
        """Compose middleware into one that runs them at the same time and waits for all."""
        return parallel(fns, self._executor.for_composition(max(1, len(fns))))

    def share(self, *keys: str, to: str | Iterable[str] | None = None) -> Self:
        """Share these ctx keys, and no others, with other nodes.

        It may be called several times, for other keys to other nodes. A node gets all of its keys
        of a step together, if one message holds them: 1 MiB beside arrays, and 4,096 arrays.
        Without any call every key that can be encoded is sent, except the batches and metrics of
        the node itself.

        Args:
            *keys: The ctx keys.
            to: Patterns of the labels of the nodes that get them; all by default. A warning says
                if no node of the job has such a label.
        """
        self._messages.share(keys, to)
        return self

    def draw(self) -> Diagram:
        """Return the pipeline as text (what `print` shows) and as a Mermaid diagram."""
        return draw(self._composition.uses, labels=self._labels, concurrent=self._async_mode)

    # -- running -------------------------------------------------------------------------

    def run(self, max_step: int | None = None) -> None:
        """Run step after step until `finish` is set.

        The first Ctrl-C or SIGTERM lets the step end, and after the way out has begun the next one,
        and then raises; a second one raises at once. Ctrl-C ends the job on all nodes, SIGTERM this
        node alone. If an environment fails, or does not answer, while the run ends, the step is
        broken off.

        The end of a run ends the current runs of all nodes. So a second run begins when all nodes
        have ended the first: `World.current().group("node.*").barrier()` waits for that. A run
        within a middleware of another task ends only itself, and its ctx is not sent. So it is with
        the run of a task that was made on a thread of the program, or to answer a call, while
        another task of this node runs.

        Args:
            max_step: The maximum number of steps of this run; reaching it sets `finish`. `None`: no
                limit. A node that has joined an elastic job ends its own run only, as by Ctrl-C.

        Raises:
            LabelError: No middleware matches the labels of this node.
            MiddlewareError: The task is running already.
            ConfigError: `max_step` is no number of steps, or the task was made before the node.
            NodeReplaced: Another process has taken the place of this node.
            PeerLost: All other nodes are gone without a good-bye, for too long.
            BaseException: The exception of a middleware or listener, with a note that says where;
                an exception group if several middleware of one async step have raised.
        """
        self._refuse_while_running("run", "Run another task, or this one again once it has ended.")
        refuse_while_importing()
        self._refuse_outside_of_its_node()
        if max_step is not None:
            check_all(whole(0, max_step=max_step))
            max_step = int(max_step)
        chain = self._composition.chain()
        if not chain and max_step is None:
            raise MiddlewareError(
                "This task has no middleware, and `run()` without `max_step` would never end. "
                "Add a middleware with `task.use(...)`."
            )
        self._pipeline.load(chain, self._composition.names())
        if self._has_run:  # a latch that is set before the first run has ended the job
            self._latch.rearm()
        self._latch.step.reset()
        limit_torch_threads()
        # Interruptible until resources are closed, such as a checkpoint that is saved: else a
        # signal that comes twice would end the program meanwhile.
        interrupts = interruptible(self._end_by, clock=self._clock)
        with interrupts as interruption, self._as_running(interruption):
            self._open()
            try:
                if max_step == 0:
                    self._latch.end_run()
                if not self._latch.is_set:
                    self._pipeline.run(max_step, concurrent=self._async_mode)
                self._latch.wait_until_announced()
                self._messages.deliver()
            except EnvError as error:  # no update is half done then
                if interruption.signum is None:
                    raise
                set_total_step(self.ctx, self.ctx.total_step - 1)  # so that this step is repeated
                logger.warning("the step was broken off: %s", error)
            finally:
                if self._latch.is_set and self._router.running == [self]:
                    self._router._inbox.end_run()
            interruption.raise_if_any()
            self._messages.check()

    @contextmanager
    def _as_running(self, interruption: Interruption) -> Iterator[None]:
        """Make this the task that the thread runs, and close the run after the `with` block."""
        self._is_running = self._has_run = True
        self._is_within = _RUNS_ON.get() is self._router
        token = _RUNS_ON.set(self._router)
        self._router.running.append(self)
        try:
            yield
        except BaseException as error:
            self._close_run(error, interruption)
            raise
        else:
            self._close_run(None, interruption)
        finally:
            self._router.running.remove(self)
            _RUNS_ON.reset(token)
            self._is_running = self._is_within = False

    def _is_aside(self) -> bool:
        """Return whether another task, which runs, speaks for the node to the others."""
        is_helping = self._is_helper and self._router._task_of_node() not in (None, self)
        return self._is_within or is_helping

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next step depends on: kept ctx keys, and stateful middleware.

        Objects that middleware use, such as a policy or envs, are saved separately.
        """
        state = state_of(self.ctx, self._composition.stateful())
        state["total_step"] -= not self._pipeline.is_step_made
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`: the next `run` continues after the step in which it was taken.

        Raises:
            MiddlewareError: The task is running.
            CheckpointError: The state is of a task with other middleware.
        """
        self._refuse_while_running("load_state_dict")
        load_state(self._pipeline.ctx, self._composition.stateful(), state)
        self._pipeline.is_step_made = True

    def forward(self, fn: Middleware, ctx: Context | None = None) -> Self:
        """Run one middleware now, up to its `yield`; in async mode only start it.

        Without a `with` block, the threads and the listeners of the task last as long as its node.
        """
        ctx = self.ctx if ctx is None else ctx
        if not isinstance(ctx, Context):
            raise ConfigError(
                f"`ctx` is {kind_of(ctx)}; a Context was expected, such as `Context(k=1)`."
            )
        given, fn = fn, self._composition.wrapped(fn)
        if self._async_mode:
            self._refuse_while_running("forward")
        self._open()
        self._resources.enter(resources_of(given))
        begin = self._pipeline.start if self._async_mode else self._pipeline.enter
        begin(fn, ctx)
        return self

    def backward(self) -> Self:
        """Resume the open generators after their `yield`, the last one in first."""
        self._refuse_while_running("backward", _STEPS_BY_ITSELF)
        self.sync()
        self._pipeline.leave()
        return self

    def sync(self) -> Self:
        """Wait for all middleware that `forward` has started in async mode."""
        self._refuse_while_running("sync", _STEPS_BY_ITSELF)
        self._open()
        self._pipeline.sync()
        return self

    def renew(self) -> Self:
        """End the step: take its way out, send the ctx to other nodes, begin the next step."""
        self._refuse_while_running("renew", _STEPS_BY_ITSELF)
        self.backward()
        if self._router.has_audience:
            self._messages.publish(self.ctx)
        self._pipeline.renew()
        return self

    @property
    def ctx(self) -> Context:
        """The context of the current step; after a run the context of its last step."""
        return self._pipeline.ctx

    @property
    def finish(self) -> bool:
        """Whether the job ends after this step; set it True from anywhere to end the job.

        It is also True, for the other middleware of a step of async mode, while an error ends the
        step.
        """
        return self._latch.ends_waits

    @finish.setter
    def finish(self, value: bool) -> None:
        if value:
            self._latch.finish()

    # -- events --------------------------------------------------------------------------

    def on(self, event: str, fn: Listener) -> Self:
        """Call `fn` with the arguments of each event of this name, between two middleware."""
        self._messages.on(event, fn)
        return self

    def once(self, event: str, fn: Listener) -> Self:
        """Call `fn` for the next event of this name only."""
        self._messages.on(event, fn, once=True)
        return self

    def off(self, event: str, fn: Listener | None = None) -> Self:
        """Remove one listener of an event, or all of them."""
        self._messages.off(event, fn)
        return self

    def emit(
        self,
        event: str,
        /,
        *args: Any,
        only_local: bool = False,
        only_remote: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Emit an event to its listeners on this node and on all connected ones.

        On the task's own thread the listeners of this node have run when this returns.

        Raises:
            ConfigError: `only_local` and `only_remote` exclude each other, or the event is
                `finish`, which is set and not emitted.
        """
        self._messages.emit(event, args, kwargs, only_local=only_local, only_remote=only_remote)
        return self

    def wait_for(self, event: str, timeout: float | None = None) -> Emission | None:
        """Block until an event comes; other events are delivered meanwhile.

        Args:
            event: The name of the event; only events that are emitted from now on count.
            timeout: Seconds; `None` waits for ever.

        Returns:
            The `args` and `kwargs` of the event, or None if the job ends.

        Raises:
            DeadlineExceeded: The event did not come in time.
        """
        return self._messages.wait_for(event, timeout)

    # -- other nodes ---------------------------------------------------------------------

    def send(
        self,
        stream: str,
        tree: Any,
        *,
        to: str | Iterable[str],
        in_flight: int = 2,
        timeout: float | None = 60.0,
    ) -> bool:
        """Send an item to exactly one of the nodes that label patterns match; see `Router.send`.

        Return False if the job ends before a receiver has room.
        """
        return self._router.send(
            stream,
            tree,
            to=to,
            in_flight=in_flight,
            timeout=timeout,
            until=lambda: self._latch.ends_waits,
        )

    def receive(self, stream: str, *, timeout: float | None = 60.0) -> Item | None:
        """Wait for the next item of a stream that nodes have sent here; see `Router.receive`.

        Return None if the job ends and there is no item left.
        """
        return self._messages.receive(stream, timeout)

    @property
    def labels(self) -> frozenset[str]:
        """The labels of this node."""
        return self._labels

    def match_labels(self, patterns: str | Iterable[str]) -> bool:
        """Return whether one of the patterns matches a label of this node."""
        return matches(self._labels, check_patterns(patterns))

    @property
    def router(self) -> Router:
        """The router, which sends messages to the other nodes."""
        return self._router

    @property
    def parallel_ctx(self) -> ParallelContext:
        """The newest value of each key that other nodes have put on their ctx."""
        self._messages.subscribe()
        return self._messages.parallel_ctx

    def wait_parallel_ctx(
        self, newer_than: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> ParallelContext | None:
        """Block until other nodes have sent values newer than these.

        Args:
            newer_than: For each key, a value that the received value must exceed. Without it,
                any ctx counts.
            timeout: Seconds; `None` waits for ever.

        Returns:
            `parallel_ctx`, or None if the job ends.

        Raises:
            DeadlineExceeded: No such values came in time.
            ConfigError: This node has no peers, so no values can ever come, or values cannot be
                compared.
            PeerLost: All other nodes have left, and no newer values have come before.
        """
        return self._messages.wait_ctx(newer_than or {}, timeout)

    # -- a context manager ---------------------------------------------------------------

    def __enter__(self) -> Self:
        self._is_in_block = True
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._is_in_block = False
        self._close_all(error)

    # -- inside --------------------------------------------------------------------------

    def _end_by(self, signum: int) -> None:
        if signum == signal.SIGTERM:
            self._latch.set(only_here=True)
        else:
            self._latch.end_run()

    def _open(self) -> None:
        self._refuse_outside_of_its_node()
        self._messages.owner = threading.get_ident()
        self._messages.subscribe()
        self._router._inbox.begin_run()
        if self._attach_callback is not None:
            callback, self._attach_callback = self._attach_callback, None
            if (newest := self.wait_parallel_ctx(timeout=self._attach_timeout)) is not None:
                callback(newest)
        self._resources.enter(self._composition.resources())

    def _close_run(self, error: BaseException | None, interruption: Interruption) -> None:
        was_interrupted = error is not None and interruption.signum is not None
        try:
            self._resources.leave(error)
        finally:
            if not self._is_in_block:
                self._close_all(error)
        if not was_interrupted:
            interruption.raise_if_any()

    def _close_all(self, error: BaseException | None) -> None:
        timeout = 1.0 if isinstance(error, KeyboardInterrupt) else None
        with ExitStack() as stack:  # from the last line to the first, whatever raises
            stack.callback(self._latch.step.reset)
            stack.callback(self._executor.close, timeout)
            stack.callback(self._messages.unsubscribe)
            # Waits that a coroutine has begun on a thread, and left, as by `asyncio.wait_for`.
            stack.callback(self._latch.step.cancel, self)
            stack.callback(self._resources.leave, error)
            if error is not None:
                self._latch.step.cancel(self)  # middleware started by `forward` may wait
                self._pipeline.abandon(error)
            else:
                self._pipeline.leave()

    def _refuse_outside_of_its_node(self) -> None:
        here, own = current_router(), self._router.labels
        if "standalone" in own and not here.labels <= own:  # it would never reach another node
            raise ConfigError(
                f"This task was made before its node, probably at the top level of the program: it "
                f"has the labels {sorted(own)}, and the node {sorted(here.labels)}. Make the task "
                f"inside of `main`."
            )

    def _refuse_while_running(self, what: str, mend: str = _BEFORE_A_RUN) -> None:
        if self._is_running:
            raise MiddlewareError(f"`task.{what}` was called while the task runs. {mend}")


class LabelFilter:
    """Uses middleware on nodes that label patterns match: `task.at("learner").use(...)`."""

    def __init__(self, task: Task, patterns: tuple[str, ...]) -> None:
        self._task = task
        self._patterns = patterns

    def use(self, fn: Middleware, lock: bool = False) -> Self:
        """Append a middleware that only these nodes run; see `Task.use`."""
        self._task.use(fn, filter_labels=self._patterns, lock=lock)
        return self
