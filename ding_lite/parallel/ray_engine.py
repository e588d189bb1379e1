"""Ray as what starts the nodes: it places each of them, and starts it again when it has died.

Each node is an actor. This module is the launcher's side: it asks Ray for the actors, tells each
where the others listen, waits for the results, and passes on the new address of an actor that Ray
has started anew, maybe on another machine. Ray decides where; what a node asks for, by its
labels, is passed on as it is.

What is ugly here and why: a node that Ray starts again is known to its neighbours by its number
and its life, but it listens at another address, so those who dial it must be told. And Ray itself
is only as safe as it was started: who reaches one without authentication can run anything, so
that is refused here unless it is on the loopback interface.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ding_lite.clock import SYSTEM_CLOCK, Deadline
from ding_lite.errors import (
    ConfigError,
    DeadlineExceeded,
    DingLiteError,
    MissingExtraError,
    did_you_mean,
)
from ding_lite.log import speaking_as
from ding_lite.parallel.address import is_loopback
from ding_lite.parallel.failure import Failure, verdict
from ding_lite.parallel.node import RUNNING, STARTING, Stage, Work
from ding_lite.parallel.plan import Plan
from ding_lite.parallel.ray_node import RayNode
from ding_lite.parallel.router import NodeRouter
from ding_lite.parallel.security import SECRET_BYTES, load_key
from ding_lite.parallel.topology import NodeSpec
from ding_lite.runtime.labels import matches
from ding_lite.settings import process_environ

logger = logging.getLogger(__name__)

WANTED = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector")
"""What a node may ask Ray for, by the names that Ray has for it."""
END_GRACE_S = 1.5
"""Seconds that nodes have to end in order when another one has failed."""
CALLS_AT_ONCE = 8
"""How many calls an actor takes at a time: `main`, and what it is told meanwhile."""

Resources = Mapping[str, Mapping[str, Any]]


def run_on_ray(
    plan: Plan,
    main: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    max_retries: int,
    resources: Resources,
) -> list[Any]:
    """Run a job on the nodes that Ray places, and return what `main` returned, node by node.

    It uses the Ray that this process is connected to, else that of `RAY_ADDRESS`, and else starts
    one on this machine for as long as the job takes.

    Args:
        plan: The nodes.
        main: What each of them runs.
        args: Its arguments.
        kwargs: Its named arguments.
        max_retries: How often each node is started again.
        resources: What nodes ask for, by patterns of their labels.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: Whoever reaches this Ray could run anything on it, or what nodes ask for is
            not what Ray has.
        NodeFailed: A node has raised or died; its error is the cause.
        DeadlineExceeded: Ray has not placed all nodes in time.
    """
    wanted = wanted_by_nodes(plan.labels_of_nodes(distributed=True), resources)
    ray = _ray()
    num_cpus = sum(float(asked["num_cpus"]) for asked in wanted)
    with _connected(ray, num_cpus) as head, speaking_as("launcher"):
        crew = _Crew(ray, plan, head, _Call(main, args, dict(kwargs)), max_retries)
        try:
            crew.start(wanted)
            return crew.results()
        finally:
            crew.dismiss()


def wanted_by_nodes(labels: Sequence[frozenset[str]], resources: Resources) -> list[dict[str, Any]]:
    """Return what each node asks Ray for: all that is said for one of its labels, and a core.

    Raises:
        ConfigError: Ray has no such thing, or no node has such a label.

    Example:
        >>> wanted_by_nodes([frozenset({"learner"}), frozenset()], {"learner": {"num_gpus": 1}})
        [{'num_cpus': 1, 'num_gpus': 1}, {'num_cpus': 1}]
    """
    for pattern, wanted in resources.items():
        for name in set(wanted) - {*WANTED}:
            raise ConfigError(
                f"`resources` asks for {name!r} for {pattern!r}.{did_you_mean(name, WANTED)} A "
                f"node may ask for {', '.join(WANTED)}."
            )
        if not any(matches(of_node, [pattern]) for of_node in labels):
            known = sorted(frozenset().union(*labels))
            raise ConfigError(
                f"`resources` says what {pattern!r} needs, and no node has such a label. The "
                f"nodes have {', '.join(known)}."
            )
    found = []
    for of_node in labels:
        asked: dict[str, Any] = {"num_cpus": 1}
        for pattern, wanted in resources.items():
            if matches(of_node, [pattern]):
                asked |= wanted
        found.append(asked)
    return found


@dataclass(frozen=True)
class _Call:
    """What all nodes run."""

    main: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass
class _Node:
    """What the launcher knows of a node."""

    spec: NodeSpec
    actor: Any
    address: str = ""
    stage: Stage = STARTING
    num_restarts: int = 0
    has_returned: bool = False
    result: Any = None
    back_by: Deadline = field(default_factory=lambda: Deadline.after(None))
    """When Ray must have started it again."""


@dataclass
class _Crew:
    """The actors of a job, and what each of them is at."""

    ray: ModuleType
    plan: Plan
    head: str
    """Where Ray's head listens."""
    call: _Call
    max_retries: int
    _secret: bytes = b""
    _name: str = field(default_factory=lambda: f"ray {secrets.token_hex(4)}")
    _nodes: list[_Node] = field(default_factory=list)
    _under_way: dict[Any, tuple[str, _Node]] = field(default_factory=dict)
    """What was asked of which node and has not been answered, by Ray's reference."""
    _failures: list[Failure] = field(default_factory=list)

    def start(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Let Ray place all nodes, and let them begin."""
        own_key = self.plan.key_file
        self._secret = secrets.token_bytes(SECRET_BYTES) if own_key is None else _secret(own_key)
        make = self.ray.remote(RayNode)
        nowhere = [""] * self.plan.num_nodes
        for spec, asked in zip(self.plan.specs_at(nowhere, job=self._name), wanted, strict=True):
            actor = make.options(
                max_restarts=self.max_retries, max_concurrency=CALLS_AT_ONCE, **asked
            ).remote()
            self._nodes.append(_Node(spec, actor))
        places = self._places(wanted)
        for node, spec in zip(self._nodes, self.plan.specs_at(places, job=self._name), strict=True):
            node.spec, node.address = spec, places[spec.node_id]
            self._let_run(node)

    def _places(self, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
        asked = [self._ask_place(node) for node in self._nodes]
        timeout = self.plan.startup_timeout
        _, late = self.ray.wait(asked, num_returns=len(asked), timeout=timeout)
        if late:
            names = [node for node, ref in enumerate(asked) if ref in late]
            wishes = "; ".join(f"node {node} asks for {dict(wanted[node])}" for node in names)
            raise DeadlineExceeded(
                f"Ray has not placed the nodes {names} within {timeout:g} s: {wishes}. The "
                f"cluster has {_shown(self.ray.cluster_resources())} in all, of which "
                f"{_shown(self.ray.available_resources())} is free. Ask for less with "
                f"`resources=`, or add machines."
            )
        return [str(self.ray.get(ref)) for ref in asked]

    def _ask_place(self, node: _Node) -> Any:
        # It may be asked while Ray is still starting the actor again.
        return node.actor.place.options(max_task_retries=-1).remote(self.head)

    def _let_run(self, node: _Node) -> None:
        node.stage = RUNNING
        call = self.call
        work = Work(node.spec, NodeRouter, call.main, call.args, call.kwargs)
        self._under_way[node.actor.run.remote(work, self._secret)] = ("run", node)

    def results(self) -> list[Any]:
        """Wait for the end of all nodes; return what they returned."""
        while self._under_way:
            ready, _ = self.ray.wait(
                [*self._under_way], num_returns=1, timeout=self._seconds_to_next_deadline()
            )
            if not ready:
                self._give_up_waiting()
                continue
            [ref] = ready
            what, node = self._under_way.pop(ref)
            try:
                answer = self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as error:
                self._fail(node, _raised(node, error), is_alive=True)
            except self.ray.exceptions.RayError as error:
                self._fail(node, _died(node, error), is_alive=False)
            else:
                if what == "run":
                    self._note_end(node, answer)
                else:
                    self._go_on(node, str(answer))
        return [node.result for node in self._nodes if node.has_returned]

    def _seconds_to_next_deadline(self) -> float | None:
        remaining = [node.back_by.remaining for _, node in self._under_way.values()]
        return min((seconds for seconds in remaining if seconds is not None), default=None)

    def _give_up_waiting(self) -> None:
        """Fail where Ray has not started a node again in time, for want of room maybe."""
        late = [node for _, node in self._under_way.values() if node.back_by.expired]
        for node in late:
            what = (
                f"died, and Ray has not started it again within {self.plan.startup_timeout:g} s. "
                f"The cluster has {_shown(self.ray.available_resources())} that is free"
            )
            self._failures.append(
                Failure(spec=node.spec, stage=STARTING, at=SYSTEM_CLOCK.now(), what=what)
            )
        if late:
            raise self._verdict()

    def _note_end(self, node: _Node, result: object) -> None:
        """Note that `main` has returned on a node: the job ends on all of them or on none."""
        node.has_returned, node.result = True, result
        for other in self._nodes:
            if other.stage != RUNNING:
                self._give_up(other)

    def _give_up(self, node: _Node) -> None:
        """Let the job end without a node; its neighbours may have nobody else to tell them so."""
        waiting = [ref for ref, asked in self._under_way.items() if asked[1] is node]
        for ref in waiting:  # Ray may never start it again, and nobody needs it any more
            del self._under_way[ref]
        for near in node.spec.neighbours:
            other = self._nodes[near]
            if other.stage == RUNNING and not other.has_returned:
                other.actor.finish.remote()

    def _fail(self, node: _Node, failure: Failure, *, is_alive: bool) -> None:
        """Start a node again that has failed, if it may; else end the job."""
        if self.max_retries and any(other.has_returned for other in self._nodes):
            self._give_up(node)
            return
        if node.num_restarts >= self.max_retries:
            self._failures.append(failure)
            raise self._verdict()
        logger.warning("node %d %s; Ray starts it again", node.spec.node_id, failure.what)
        node.num_restarts += 1
        node.stage = STARTING
        node.back_by = Deadline.after(self.plan.startup_timeout)
        node.spec = replace(node.spec, epoch=node.spec.epoch + 1)
        if is_alive:
            self.ray.kill(node.actor, no_restart=False)
        self._under_way[self._ask_place(node)] = ("place", node)

    def _go_on(self, node: _Node, address: str) -> None:
        """Let a node that Ray has started again begin, and tell who dials it where it is now."""
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

    def _verdict(self) -> Exception:
        """End the other nodes in order, and hear what else has gone wrong in the same second."""
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
        return verdict(self._failures)

    def dismiss(self) -> None:
        """End all actors; those that still run `main` as well."""
        leaving = [node.actor.leave.remote() for node in self._nodes if node.has_returned]
        if leaving:
            self.ray.wait(leaving, num_returns=len(leaving), timeout=END_GRACE_S)
        for node in self._nodes:
            self.ray.kill(node.actor)


def _raised(node: _Node, error: Any) -> Failure:
    """Make the failure of a node whose `main` has raised."""
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
    """Make the failure of a node whose process has died, or its machine."""
    said = str(error).strip().splitlines()[0]
    what = f"(an actor of Ray) has died while {node.stage}: {said}"
    return Failure(spec=node.spec, stage=node.stage, at=SYSTEM_CLOCK.now(), what=what)


def _secret(key_file: str) -> bytes:
    return load_key(key_file).secret


def _shown(resources: Mapping[str, float]) -> str:
    """Name what a user can ask for among the resources of a cluster."""
    shown = [f"{name} {value:g}" for name, value in resources.items() if name in ("CPU", "GPU")]
    return ", ".join(shown) or "nothing"


def _ray() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            'The engine "ray" needs a package that is not installed. Install it: '
            'pip install "ding-lite[ray]".'
        ) from error


@contextmanager
def _connected(ray: ModuleType, num_cpus: float) -> Iterator[str]:
    """Be connected to Ray, with so many cores at least if it is started here; yield its head."""
    is_ours = not ray.is_initialized()
    if is_ours:
        # Without an address Ray may find the marks of a cluster that is gone, and fail.
        address = process_environ().get("RAY_ADDRESS")
        if address is None:  # nodes share the cores of one machine, as without Ray
            num_cpus = max(os.cpu_count() or 1, math.ceil(num_cpus))
            ray.init(address="local", num_cpus=num_cpus, include_dashboard=False)
        else:
            ray.init(address=address)
    try:
        head = str(ray.get_runtime_context().gcs_address)
        _check_guarded(head)
        yield head
    finally:
        if is_ours:
            with suppress(KeyboardInterrupt):  # what has ended `main` has been heard already
                ray.shutdown()


def _check_guarded(head: str) -> None:
    """Refuse a Ray that any machine could use to run anything as this user."""
    host = head.rpartition(":")[0].strip("[]")
    if is_loopback(host) or process_environ().get("RAY_AUTH_MODE") == "token":
        return
    raise ConfigError(
        f"Ray's head listens on {head} and asks nobody who they are, so that whoever reaches it "
        f"can run programs as you. Start Ray with RAY_AUTH_MODE=token, here and on all its "
        f"machines (docs.ray.io/en/latest/ray-security/token-auth.html), or on 127.0.0.1."
    )
