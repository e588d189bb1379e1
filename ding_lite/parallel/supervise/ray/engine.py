"""The engine `ray`: each incarnation of a node is an actor that Ray places.

Ray chooses the machine; the resources of a node, by its labels, are passed on unchanged. The nodes
run `main` when all have been placed, since only then their addresses are known.

Each incarnation of a node is a separate actor. An actor that Ray restarts answers only some seconds
after its start, and an actor that is unreachable for a moment looks like a dead one; a new actor
answers at once. The next incarnation keeps the node id, but has another address, so the peers that
dial it must get its address.
"""

from __future__ import annotations

import logging
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from ding_lite.clock import Deadline
from ding_lite.errors import DeadlineExceeded, DingLiteError
from ding_lite.log import named_in_logs
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.security import SECRET_BYTES, load_key
from ding_lite.parallel.network.topology import HUB
from ding_lite.parallel.supervise.job import END_GRACE_S, NodeRecord, Report
from ding_lite.parallel.supervise.node_process import (
    RUNNING,
    STARTING,
    Call,
    Command,
    Entered,
    Exited,
    Failed,
    Finish,
    Moved,
    Returned,
    Stage,
)
from ding_lite.parallel.supervise.ray.cluster import (
    Resources,
    connected_to,
    load_ray,
    resources_of_nodes,
    shown,
    without_rays_handler,
)
from ding_lite.parallel.supervise.ray.node import RayNode
from ding_lite.parallel.supervise.supervisor import run_job

logger = logging.getLogger(__name__)

CALLS_AT_ONCE = 8
"""Concurrent calls of an actor: `main`, and the commands that arrive meanwhile."""


def run_on_ray(
    plan: JobPlan,
    call: Call,
    *,
    max_retries: int,
    resources: Resources,
) -> list[Any]:
    """Run a job on nodes that Ray places, and return the results of `main` by node.

    It uses the Ray cluster that this process is connected to, else the one at `RAY_ADDRESS`, and
    else starts one on this machine for the duration of the job.
    """
    wanted = resources_of_nodes(plan.labels_of_nodes(), resources)
    ray = load_ray()
    num_cpus = sum(float(asked["num_cpus"]) for asked in wanted)
    with connected_to(ray, num_cpus) as head, named_in_logs("launcher"), without_rays_handler():
        specs = plan.specs_at([""] * plan.num_nodes, job=f"ray {secrets.token_hex(4)}")
        engine = RayEngine(ray, head, plan, call, wanted)
        return run_job(specs, engine, max_retries=max_retries)


@dataclass
class _Actor:
    """The actor of one incarnation of a node."""

    node: NodeRecord
    handle: Any
    address: str = ""
    is_running: bool = False
    has_ended: bool = False


class RayEngine:
    """Starts the nodes of a job as actors."""

    name = "Ray"
    forwards_signals = False

    def __init__(
        self,
        ray: ModuleType,
        head: str,
        plan: JobPlan,
        call: Call,
        wanted: Sequence[Mapping[str, Any]],
    ) -> None:
        self._ray = ray
        self._head = head
        self._plan = plan
        self._call = call
        self._wanted = wanted
        self._secret = secrets.token_bytes(SECRET_BYTES)
        if plan.key_file is not None:
            self._secret = load_key(plan.key_file).secret
        self._actors: dict[int, _Actor] = {}
        self._addresses: dict[int, str] = {}
        self._answers: SimpleQueue[tuple[_Actor, Future[Any]] | None] = SimpleQueue()
        self._reports: list[tuple[int, Report]] = []
        self._kill_at = Deadline.after(None)
        self._has_begun = False
        """Whether all nodes have been placed once."""

    def open(self) -> None:
        """Do nothing: this process is connected to Ray already."""

    def start(self, node: NodeRecord) -> None:
        node_id = node.spec.node_id
        wanted = self._wanted[node_id]
        make = self._ray.remote(RayNode).options(max_concurrency=CALLS_AT_ONCE, **wanted)
        actor = self._actors[node_id] = _Actor(node, make.remote())
        self._ask(actor, actor.handle.place.remote(self._head))

    def wait(self, timeout: float | None) -> Sequence[tuple[int, Report]]:
        with suppress(Empty):
            if not self._reports:
                limits = [s for s in (timeout, self._kill_at.remaining) if s is not None]
                self._take(self._answers.get(timeout=min(limits, default=None)))
            while True:
                self._take(self._answers.get_nowait())
        if self._kill_at.expired:
            self._kill_at = Deadline.after(None)
            for node_id in self._actors:
                self.kill(node_id)
        reports, self._reports = self._reports, []
        return reports

    def wake(self) -> None:
        self._answers.put(None)

    def send(self, node_id: int, command: Command) -> None:
        """Send a command to a node that runs `main`."""
        actor = self._actors[node_id]
        if actor.is_running:
            actor.handle.send.remote(command)

    def interrupt(self, signum: int) -> None:
        """End all nodes after their step; kill those that do not run `main` yet."""
        for node_id, actor in self._actors.items():
            if actor.is_running:
                self.send(node_id, Finish())
            else:
                self.kill(node_id)

    def end(self, grace: float) -> None:
        self.interrupt(signal.SIGTERM)
        self._kill_at = Deadline.after(grace)

    def kill(self, node_id: int) -> None:
        actor = self._actors[node_id]
        if not actor.has_ended:
            self._drop(actor, Exited("(an actor of Ray) was killed", signum=signal.SIGTERM))

    def startup_error(self, late: Sequence[NodeRecord], ready: Sequence[int]) -> Exception:
        names = [n.spec.node_id for n in late if not self._actors[n.spec.node_id].address]
        wishes = "; ".join(f"node {name} asks for {dict(self._wanted[name])}" for name in names)
        return DeadlineExceeded(
            f"Ray has not placed the nodes {names} within {self._plan.startup_timeout:g} s: "
            f"{wishes}. The cluster has {shown(self._ray.cluster_resources())} in all, of which "
            f"{shown(self._ray.available_resources())} is free. Ask for less with `resources=`, or "
            f"add machines."
        )

    def close(self) -> None:
        """Kill all actors, including those that still run `main`."""
        left = [actor for actor in self._actors.values() if not actor.has_ended]
        leaving = [actor.handle.leave.remote() for actor in left if actor.is_running]
        if leaving:
            self._ray.wait(leaving, num_returns=len(leaving), timeout=END_GRACE_S)
        for actor in left:
            self._ray.kill(actor.handle)

    def _ask(self, actor: _Actor, ref: Any) -> None:
        ref.future().add_done_callback(lambda answer: self._answers.put((actor, answer)))

    def _report(self, actor: _Actor, report: Report) -> None:
        self._reports.append((actor.node.spec.node_id, report))

    def _take(self, answered: tuple[_Actor, Future[Any]] | None) -> None:
        if answered is None or answered[0].has_ended:
            return
        actor, answer = answered
        error = answer.exception()
        if isinstance(error, self._ray.exceptions.RayTaskError):
            self._report(actor, _failed(error, RUNNING if actor.is_running else STARTING))
        if error is not None:
            more = f": {str(error).strip().splitlines()[0]}"
            self._drop(actor, Exited("(an actor of Ray) has died", more))
        elif actor.is_running:
            self._report(actor, Returned(answer.result()))
            self._drop(actor, Exited("(an actor of Ray) has returned"))
        else:
            actor.address = self._addresses[actor.node.spec.node_id] = str(answer.result())
            self._run_placed(actor)

    def _drop(self, actor: _Actor, exited: Exited) -> None:
        """Kill an actor, which may only be unreachable; that also breaks its connections."""
        actor.is_running, actor.has_ended = False, True
        self._ray.kill(actor.handle)
        self._report(actor, exited)

    def _run_placed(self, actor: _Actor) -> None:
        if self._has_begun:
            self._announce(actor)
            self._run(actor)
        elif len(self._addresses) == self._plan.num_nodes:
            self._has_begun = True
            places = [self._addresses[node_id] for node_id in range(self._plan.num_nodes)]
            for spec in self._plan.specs_at(places, job=actor.node.spec.job):
                actor = self._actors[spec.node_id]
                actor.node.spec = replace(spec, incarnation=actor.node.spec.incarnation)
                self._run(actor)
            if self._plan.elastic:  # nodes log it too, but Ray shows that only where they log
                logger.info("further nodes join by DING_LITE_ATTACH_TO=%s", places[HUB])

    def _announce(self, moved: _Actor) -> None:
        spec = moved.node.spec
        dials = {peer: self._addresses[peer] for peer in spec.dials}
        listen = None if spec.listen is None else moved.address
        moved.node.spec = replace(spec, listen=listen, dials=dials)
        for node_id, other in self._actors.items():
            known = other.node.spec
            if spec.node_id in known.dials:
                dials = {**known.dials, spec.node_id: moved.address}
                other.node.spec = replace(known, dials=dials)
                self.send(node_id, Moved(spec.node_id, moved.address))

    def _run(self, actor: _Actor) -> None:
        actor.is_running = True
        self._report(actor, Entered(RUNNING))
        # The program of an actor's process is one of Ray.
        spec = replace(actor.node.spec, program=Path(*sys.argv[:1]).name)
        self._ask(actor, actor.handle.run.remote(spec, self._call, self._secret))


def _failed(error: Any, stage: Stage) -> Failed:
    cause = getattr(error, "cause", None)
    cause = cause if isinstance(cause, BaseException) else error
    traceback = "" if isinstance(cause, DingLiteError) else str(error)
    return Failed(stage, type(cause).__qualname__, str(cause), traceback, cause)
