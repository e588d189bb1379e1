"""The Ray engine: place each node as a Ray actor, and replace actors that have died.

This module is the launcher's side: it requests the actors, sends each the addresses of the
others, waits for the results, and announces the new address of a replaced actor, maybe on another
machine. Ray chooses the machine; the resources of a node, by its labels, are passed on unchanged.

What is ugly here and why: each incarnation of a node is an actor of its own. An actor that Ray
restarts by itself answers only some seconds after its start, and one that is unreachable for a
moment looks like a dead one; a new actor answers at once. The next incarnation keeps the node id,
but has another address, so the peers that dial it must be told.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.errors import DeadlineExceeded, DingLiteError
from ding_lite.log import speaking_as
from ding_lite.parallel.launch.membership import ElasticRouter
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.security import SECRET_BYTES, load_key
from ding_lite.parallel.network.topology import HUB, NodeSpec
from ding_lite.parallel.supervise.failures import Failure, root_failure_error
from ding_lite.parallel.supervise.node_process import RUNNING, STARTING, Stage, Work
from ding_lite.parallel.supervise.ray.cluster import (
    Resources,
    connected_to,
    load_ray,
    shown,
    wanted_by_nodes,
    without_rays_handler,
)
from ding_lite.parallel.supervise.ray.node import RayNode
from ding_lite.parallel.tree.router import make_router
from ding_lite.runtime.interrupt import interruptible

logger = logging.getLogger(__name__)

END_GRACE_S = 1.5
"""Seconds that nodes have to end in order when another node has failed."""
CALLS_AT_ONCE = 8
"""Concurrent calls of an actor: `main`, and commands meanwhile."""


def run_on_ray(
    plan: JobPlan,
    main: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    max_retries: int,
    resources: Resources,
) -> list[Any]:
    """Run a job on nodes that Ray places, and return the results of `main` by node.

    It uses the Ray that this process is connected to, else that of `RAY_ADDRESS`, and else starts
    one on this machine for the duration of the job.

    Args:
        plan: The nodes.
        main: The function that each node runs.
        args: Its arguments.
        kwargs: Its named arguments.
        max_retries: How often each node is started again.
        resources: Requested resources by patterns of labels.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: This Ray has no authentication, or a requested resource does not exist.
        NodeFailed: A node has raised or died; its error is the cause.
        DeadlineExceeded: Ray has not placed all nodes in time.
        KeyboardInterrupt: This process got SIGINT, and the nodes have ended their step.
        SystemExit: The same after SIGTERM.
    """
    wanted = wanted_by_nodes(plan.labels_of_nodes(distributed=True), resources)
    ray = load_ray()
    num_cpus = sum(float(asked["num_cpus"]) for asked in wanted)
    with connected_to(ray, num_cpus) as head, speaking_as("launcher"):
        job = _RayJob(ray, plan, head, _Call(main, args, dict(kwargs)), max_retries)
        try:
            job.start(wanted)
            with without_rays_handler(), interruptible(lambda _: job.end()) as interruption:
                try:
                    results = job.results()
                except SystemExit:  # of a second signal; Ray gives it a code of its own
                    interruption.raise_if_any()
                    raise
            interruption.raise_if_any()
            return results
        finally:
            job.dismiss()


@dataclass(frozen=True)
class _Call:
    """`main` and its arguments."""

    main: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass
class _Node:
    """The state of a node, as the launcher knows it."""

    spec: NodeSpec
    wanted: Mapping[str, Any]
    """Requested resources."""
    actor: Any = None
    """The actor of the current incarnation."""
    address: str = ""
    stage: Stage = STARTING
    num_restarts: int = 0
    has_returned: bool = False
    result: Any = None
    back_by: Deadline = field(default_factory=lambda: Deadline.after(None))
    """When Ray must have replaced its actor."""


@dataclass
class _RayJob:
    """The nodes of a job on Ray."""

    ray: ModuleType
    plan: JobPlan
    head: str
    """The address of Ray's head."""
    call: _Call
    max_retries: int
    _secret: bytes = b""
    _name: str = field(default_factory=lambda: f"ray {secrets.token_hex(4)}")
    _nodes: list[_Node] = field(default_factory=list)
    _under_way: dict[Any, tuple[str, _Node]] = field(default_factory=dict)
    """Unanswered calls and their nodes, by Ray's reference."""
    _failures: list[Failure] = field(default_factory=list)
    _is_ending: bool = False
    """Whether a signal has requested the end."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the handling of answers: `end` is called on another thread."""

    def start(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Place all nodes, and start `main` on them."""
        own_key = self.plan.key_file
        self._secret = secrets.token_bytes(SECRET_BYTES) if own_key is None else _secret(own_key)
        nowhere = [""] * self.plan.num_nodes
        for spec, asked in zip(self.plan.specs_at(nowhere, job=self._name), wanted, strict=True):
            self._nodes.append(_Node(spec, asked))
        places = self._places([self._live(node) for node in self._nodes])
        for node, spec in zip(self._nodes, self.plan.specs_at(places, job=self._name), strict=True):
            node.spec, node.address = spec, places[spec.node_id]
            self._let_run(node)
        if self.plan.elastic:  # nodes log it too, but Ray shows that only where they configure logs
            logger.info("further nodes join by DING_LITE_ATTACH_TO=%s", places[HUB])

    def _places(self, asked: Sequence[Any]) -> list[str]:
        timeout = self.plan.startup_timeout
        _, late = self.ray.wait([*asked], num_returns=len(asked), timeout=timeout)
        if late:
            nodes = [node for node, ref in zip(self._nodes, asked, strict=True) if ref in late]
            names = [node.spec.node_id for node in nodes]
            wishes = "; ".join(f"node {n.spec.node_id} asks for {dict(n.wanted)}" for n in nodes)
            raise DeadlineExceeded(
                f"Ray has not placed the nodes {names} within {timeout:g} s: {wishes}. The "
                f"cluster has {shown(self.ray.cluster_resources())} in all, of which "
                f"{shown(self.ray.available_resources())} is free. Ask for less with "
                f"`resources=`, or add machines."
            )
        return [str(self.ray.get(ref)) for ref in asked]

    def _live(self, node: _Node) -> Any:
        """Place an incarnation of a node; return a reference to its address."""
        actor = self.ray.remote(RayNode).options(max_concurrency=CALLS_AT_ONCE, **node.wanted)
        node.actor = actor.remote()
        return node.actor.place.remote(self.head)

    def _let_run(self, node: _Node) -> None:
        node.stage = RUNNING
        call = self.call
        make = ElasticRouter if node.spec.growth else make_router
        work = Work(node.spec, make, call.main, call.args, call.kwargs)
        self._under_way[node.actor.run.remote(work, self._secret)] = ("run", node)

    def end(self) -> None:
        """End all nodes after their step; kill those that do not run `main` yet."""
        with self._lock:
            self._is_ending = True
            for node in self._nodes:
                if node.stage != RUNNING:  # it has no address yet
                    self.ray.kill(node.actor)
                elif not node.has_returned:
                    node.actor.finish.remote()

    def results(self) -> list[Any]:
        """Wait for all nodes; return their results, None for one that was given up."""
        while self._under_way:
            ready, _ = self.ray.wait(
                [*self._under_way], num_returns=1, timeout=self._seconds_to_next_deadline()
            )
            with self._lock:
                if ready:
                    self._handle_answer(ready[0])
                else:
                    self._give_up_waiting()
        return [node.result for node in self._nodes]

    def _handle_answer(self, ref: Any) -> None:
        what, node = self._under_way.pop(ref)
        try:
            answer = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            self._fail(node, _raised(node, error))
        except self.ray.exceptions.RayError as error:
            self._fail(node, _died(node, error))
        else:
            if what == "run":
                self._note_end(node, answer)
            elif self._is_ending:
                self._give_up(node)
            else:
                self._go_on(node, str(answer))

    def _seconds_to_next_deadline(self) -> float | None:
        remaining = [node.back_by.remaining for _, node in self._under_way.values()]
        return min((seconds for seconds in remaining if seconds is not None), default=None)

    def _give_up_waiting(self) -> None:
        """Raise where Ray has not replaced a node in time, maybe for lack of resources."""
        late = [node for _, node in self._under_way.values() if node.back_by.expired]
        for node in late:
            what = (
                f"died, and Ray has not started it again within {self.plan.startup_timeout:g} s. "
                f"The cluster has {shown(self.ray.available_resources())} that is free"
            )
            self._failures.append(
                Failure(spec=node.spec, stage=STARTING, at=SYSTEM_CLOCK.now(), what=what)
            )
        if late:
            raise self._end_with_error()

    def _note_end(self, node: _Node, result: object) -> None:
        """Record the result of a node: the job ends on all nodes or on none."""
        node.has_returned, node.result = True, result
        self.ray.kill(node.actor)  # which also breaks its connections
        for other in self._nodes:
            if other.stage != RUNNING:
                self._give_up(other)

    def _give_up(self, node: _Node) -> None:
        """End the job without a node, and tell its peers, which may have no other source."""
        waiting = [ref for ref, asked in self._under_way.items() if asked[1] is node]
        for ref in waiting:  # Ray may never replace it
            del self._under_way[ref]
        for near in node.spec.peers:
            other = self._nodes[near]
            if other.stage == RUNNING and not other.has_returned:
                other.actor.finish.remote()

    def _fail(self, node: _Node, failure: Failure) -> None:
        """Replace a failed node if restarts are left; else end the job."""
        has_ended = any(other.has_returned for other in self._nodes)
        if (self.max_retries and has_ended) or (self._is_ending and node.stage != RUNNING):
            self._give_up(node)
            return
        if self._is_ending or node.num_restarts >= self.max_retries:
            self._failures.append(failure)
            raise self._end_with_error()
        logger.warning("node %d %s; Ray starts it again", node.spec.node_id, failure.what)
        node.num_restarts += 1
        node.stage = STARTING
        node.back_by = Deadline.after(self.plan.startup_timeout)
        node.spec = replace(node.spec, incarnation=node.spec.incarnation + 1)
        self.ray.kill(node.actor)  # it has raised, or may only be unreachable
        self._under_way[self._live(node)] = ("place", node)

    def _go_on(self, node: _Node, address: str) -> None:
        """Start `main` on a replaced node, and send its new address to the peers that dial it."""
        node.address, node.back_by = address, Deadline.after(None)
        me = node.spec.node_id
        where = {other.spec.node_id: other.address for other in self._nodes}
        dials = {peer: where[peer] for peer in node.spec.dials}
        listen = None if node.spec.listen is None else address
        node.spec = replace(node.spec, listen=listen, dials=dials)
        for other in self._nodes:
            if me in other.spec.dials:
                known = {**other.spec.dials, me: address}
                other.spec = replace(other.spec, dials=known)
                if other.stage == RUNNING and not other.has_returned:
                    other.actor.redial.remote(me, address)
        self._let_run(node)

    def _end_with_error(self) -> Exception:
        """End the other nodes in order, collect their failures, and return the error to raise."""
        running = [ref for ref, (what, _) in self._under_way.items() if what == "run"]
        for _, node in self._under_way.values():
            node.actor.finish.remote()
        ended = []
        if running:
            ended, _ = self.ray.wait(running, num_returns=len(running), timeout=END_GRACE_S)
        for ref in ended:
            _, node = self._under_way[ref]
            try:
                self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as error:
                self._failures.append(_raised(node, error))
            except self.ray.exceptions.RayError as error:
                self._failures.append(_died(node, error))
        return root_failure_error(self._failures)

    def dismiss(self) -> None:
        """Kill all actors, including those that still run `main`."""
        left = [node for node in self._nodes if node.actor is not None and not node.has_returned]
        leaving = [node.actor.leave.remote() for node in left if node.stage == RUNNING]
        if leaving:
            self.ray.wait(leaving, num_returns=len(leaving), timeout=END_GRACE_S)
        for node in left:
            self.ray.kill(node.actor)


def _raised(node: _Node, error: Any) -> Failure:
    """Make the failure of a node with an error in `main`."""
    cause = getattr(error, "cause", None)
    cause = cause if isinstance(cause, BaseException) else error
    kind = type(cause).__qualname__
    said = f": {cause}" if str(cause) else ""
    return Failure(
        spec=node.spec,
        stage=node.stage,
        at=SYSTEM_CLOCK.now(),
        what=f"failed while {node.stage}: {kind}{said}",
        kind=kind,
        traceback="" if isinstance(cause, DingLiteError) else str(error),
        error=cause,
    )


def _died(node: _Node, error: Exception) -> Failure:
    """Make the failure of a node with a dead process or machine."""
    said = str(error).strip().splitlines()[0]
    what = f"(an actor of Ray) has died while {node.stage}: {said}"
    return Failure(spec=node.spec, stage=node.stage, at=SYSTEM_CLOCK.now(), what=what)


def _secret(key_file: str) -> bytes:
    return load_key(key_file).secret
