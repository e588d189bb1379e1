"""`Parallel.runner(...)(main)`: run one `main` on the nodes of a job.

With one worker `main` runs in this process, under the labels of a single node; use this to debug a
distributed program. With more workers, each node is a child process and this process is their
supervisor. Under an external launch no process is started: if the environment, a launcher such as
torchrun, or `attach_to` makes this process one node of a job, `place` determines which one.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ding_lite.errors import ConfigError
from ding_lite.interruption import postponed
from ding_lite.io.files import limit_of
from ding_lite.io.importing import refuse_while_importing
from ding_lite.io.memory import check_fits
from ding_lite.log import named_in_logs
from ding_lite.parallel.launch.connect import connected
from ding_lite.parallel.launch.environment import Placement, placement_of
from ding_lite.parallel.launch.join import first_elastic_node, joining_node
from ding_lite.parallel.launch.main_function import (
    check_arguments,
    check_importable,
    check_kind,
)
from ding_lite.parallel.launch.place import (
    asks_for_number,
    attached_node,
    node_of_environment,
    node_of_launcher,
    port_of_hub,
    tcp_only,
)
from ding_lite.parallel.launch.plan import JobPlan
from ding_lite.parallel.network.address import PrivateDirectory
from ding_lite.parallel.network.topology import NodeSpec, Topology
from ding_lite.parallel.supervise.local_engine import LocalEngine
from ding_lite.parallel.supervise.node_process import Call, NodeProcess
from ding_lite.parallel.supervise.supervisor import run_job
from ding_lite.runtime.messaging.labels import describe_node, several
from ding_lite.runtime.messaging.local_router import LocalRouter, labels_of_environment
from ding_lite.runtime.messaging.router import Router, current_router, use_router_in_process
from ding_lite.settings.environment import Settings, limit_torch_threads, process_environ
from ding_lite.settings.rules import check_all, one_of, whole

ENGINES = ("local", "ray")
_BYTES_OF_A_NODE = 16 << 20
"""Least memory of a node process, without the pages that it shares with the others."""
SLOW_TO_IMPORT = ("numpy", "torch", "gymnasium")
"""Modules that the fork server imports for all nodes, if this process has imported them."""

ResultT = TypeVar("ResultT")
Runner: TypeAlias = Callable[..., list[ResultT]]
Start: TypeAlias = Callable[[Call], list[Any]]
_RUNS_HERE: ContextVar[bool] = ContextVar("ding_lite_runs_here", default=False)


class Parallel:
    """The nodes of a job.

    `Parallel.runner` starts them. Inside of `main`, and of threads that it starts, `Parallel()` is
    this node's router, the same object as `task.router`; older programs read `is_active` and
    `node_id` from it.
    """

    def __new__(cls) -> Router:  # type: ignore[misc]
        return current_router()

    @staticmethod
    def runner(  # noqa: PLR0913 - all of a job; all but two by name, and few at a time
        n_parallel_workers: int,
        topology: Topology | None = None,
        *,
        protocol: str | None = None,
        address: str | None = None,
        ports: int | Sequence[int] | None = None,
        attach_to: str | Sequence[str] | None = None,
        elastic: bool | None = None,
        labels: str | Iterable[str] | None = None,
        roles: Sequence[str | Iterable[str]] | None = None,
        node_ids: Sequence[int] | None = None,
        auto_recover: bool = False,
        max_retries: int = 3,
        key_file: str | os.PathLike[str] | None = None,
        engine: str | None = None,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        startup_timeout: float | None = 60.0,
    ) -> Runner[Any]:
        """Return a function that runs a `main` on every node of a job.

        An argument that is None is read from the environment (`DING_LITE_TOPOLOGY` and so on), or
        has its default. With `DING_LITE_NUM_NODES` set no process is started: this process is node
        `DING_LITE_NODE_ID` of that many, `n_parallel_workers` and `ports` are ignored, and
        `DING_LITE_ROLES` replaces `roles`. Under torchrun, srun, mpirun or an indexed job of
        Kubernetes no process is started either, as the launcher has started one for each node;
        their number replaces `n_parallel_workers`.

        Args:
            n_parallel_workers: The number of nodes. A single node runs in this process. Several
                nodes run in a process each, which imports the program again to find `main`.
            topology: Which nodes are connected: `star` (all to node 0), `mesh` (each to each,
                the default), `tree` (each to one of few hubs, which relay), `alone`, or pairs
                of node ids such as [(0, 1), (1, 2)].
            protocol: `ipc`, the default, or `tcp`.
            address: With `tcp`, the interface to listen on; 127.0.0.1 by default.
            ports: With `tcp`, the port of each node, or the port of node 0, which the others
                count up from; free ports by default.
            attach_to: One or several addresses of the nodes 0, 1, ... of a running job. `main`
                runs in this process, as the node of the job that `node_ids` names. For an elastic
                job the address of node 0 is enough, and node 0 assigns the number.
            elastic: Let further nodes join the running job, by `attach_to`, and leave it again.
                `n_parallel_workers` (or DING_LITE_NUM_NODES) is the minimum then. It needs a star
                or a mesh over tcp. With `attach_to`, this node joins an elastic job.
            labels: Labels of all nodes in addition to their standard labels.
            roles: One entry per node: a role, or a set of roles.
            node_ids: With `attach_to`, a list with the number of the place to take, which a node of
                the job has left or lost. Not supported without `attach_to`.
            auto_recover: Restart a failed node under the same number.
                Without it a failure ends the job.
            max_retries: The maximum number of restarts of each node.
            key_file: The key that the nodes of a job share over `tcp`. The default is a key of
                this user on this machine, which is enough on the loopback interface.
            engine: `local` to start the nodes from this process, even if a launcher has started
                it; or `ray` to make each node an actor that Ray places.
            resources: With `ray`, resources of nodes by patterns of their labels:
                {"learner": {"num_gpus": 1}, "collector": {"num_cpus": 2}}. A core each by default.
            startup_timeout: Seconds within which all nodes must be connected, also after a
                restart; None waits for ever.

        Returns:
            A function of `main` and its arguments that returns the nodes' results, by node;
            under an external launch, this node's result only. If a node fails, the function ends
            the others and raises NodeFailed with the traceback of the first error, and that error
            as its cause.

        Raises:
            ConfigError: An argument is out of range, or not supported.
        """
        settings = Settings.from_environ()
        starter = _check_engine(engine or settings.engine or "local", resources)
        check_all(
            [] if max_retries == math.inf else whole(0, max_retries=max_retries),
            one_of((True, False), auto_recover=auto_recover),
            one_of((True, False, None), elastic=elastic),
            _text("an IP address", address=address),
            _text("a path", key_file=key_file),
        )
        attach_to = several(settings.attach_to if attach_to is None else attach_to)
        place = None if engine or attach_to else placement_of(settings, process_environ())
        elastic = settings.elastic if elastic is None else elastic
        joins = bool(attach_to) and asks_for_number(
            settings, node_ids, elastic=elastic, is_one=len(attach_to) == n_parallel_workers == 1
        )
        is_external = place is None and settings.num_nodes is not None and not joins
        is_here = place is not None or is_external or bool(attach_to)
        is_over_tcp = is_here or elastic or starter == "ray"
        num_nodes = place.num_nodes if place else settings.num_nodes or n_parallel_workers
        if is_external or joins:  # DING_LITE_PORTS is then the port of this node alone
            ports = None
        elif ports is None:
            ports = _ports_of_environment(settings)
        if joins:
            num_nodes, roles = 1, _role_of_joining_node(roles, settings)
            settings = replace(settings, roles=())
        if not is_here and starter == "local":
            _check_processes_fit(n_parallel_workers)
        plan = JobPlan(
            num_nodes=num_nodes,
            topology=topology,
            protocol=tcp_only(protocol or settings.protocol) if is_over_tcp else protocol,
            address=address,
            ports=ports,
            labels=labels,
            roles=roles,
            key_file=None if key_file is None else os.fspath(key_file),
            startup_timeout=startup_timeout,
            elastic=elastic,
            settings=settings,
        )
        if place is not None:
            return _run_where_launched(plan, place)
        if joins:
            return _runner(partial(_join, plan, attach_to, node_ids))
        if settings.num_nodes == 1 and not attach_to and not elastic:
            return _run_alone(plan)
        if is_external:
            return _run_as_node(plan, node_of_environment(plan, attach_to))
        if attach_to:
            return _run_as_node(plan, attached_node(plan, attach_to, node_ids))
        _refuse_a_place_in_no_job(node_ids, settings)
        max_retries = max_retries if auto_recover else 0
        if starter == "ray":
            return _run_on_ray(plan, max_retries=max_retries, resources=resources or {})
        if plan.num_nodes > 1:
            return _runner(partial(_run_on_processes, plan, max_retries))
        return _run_as_node(plan, first_elastic_node(plan)) if elastic else _run_alone(plan)


def _ports_of_environment(settings: Settings) -> int | tuple[int, ...] | None:
    if not settings.ports:
        return None
    [first, *others] = settings.ports
    return settings.ports if others else first  # a single port is the first of a range


def _role_of_joining_node(
    roles: Sequence[str | Iterable[str]] | None, settings: Settings
) -> list[Iterable[str]] | None:
    """Return the role of a joining node: the last one of the environment, or of the call."""
    if settings.roles:
        return [settings.roles[-1].split("+")]
    return [several(roles[-1])] if roles else None


def _runner(start: Start) -> Runner[Any]:
    def run(main: Callable[..., ResultT], /, *args: object, **kwargs: object) -> list[ResultT]:
        _refuse_nesting()
        check_kind(main)
        check_arguments(main, args, kwargs)
        refuse_while_importing()
        try:
            return start(partial(main, *args, **kwargs))
        except Exception as error:
            if limit := limit_of(error):
                error.add_note(limit)
            raise

    run.__qualname__ = "Parallel.runner(...)"  # in the TypeError for a call without `main`
    return run


def _run_here(
    node_id: int,
    labels: frozenset[str],
    connect: Callable[[], AbstractContextManager[object]],
    call: Call,
) -> list[Any]:
    token = _RUNS_HERE.set(True)
    try:
        with named_in_logs(describe_node(node_id, labels)), connect():
            limit_torch_threads()
            return [call()]
    finally:
        _RUNS_HERE.reset(token)


def _run_alone(plan: JobPlan) -> Runner[Any]:
    [labels] = plan.labels_of_nodes(distributed=False)
    router = LocalRouter(labels=labels | labels_of_environment())
    connect = partial(use_router_in_process, router)
    return _runner(partial(_run_here, router.node_id, router.labels, connect))


def _run_where_launched(plan: JobPlan, place: Placement) -> Runner[Any]:
    advice = (
        f"{place.launcher} has started this process as node {place.node_id} of "
        f"{place.num_nodes}; the port of node 0 is {port_of_hub(plan, place)}, and DING_LITE_PORTS "
        f"chooses another one. DING_LITE_ENGINE=local lets this process start the nodes instead."
    )
    spec = node_of_launcher(plan, place)
    return _run_as_node(plan, spec, starter=place.launcher, advice=advice)


def _run_as_node(
    plan: JobPlan, spec: NodeSpec, *, starter: str = "hand", advice: str = ""
) -> Runner[Any]:
    own = plan.settings
    spec = replace(spec, linger=own.linger, peer_timeout=own.peer_timeout or None)
    connect = partial(connected, spec, starter=starter, advice=advice)
    return _runner(partial(_run_here, spec.node_id, spec.labels, connect))


def _join(
    plan: JobPlan, attach_to: Sequence[str], node_ids: Sequence[int] | None, call: Call
) -> list[Any]:
    return _run_as_node(plan, joining_node(plan, attach_to, node_ids))(call)


def _run_on_processes(plan: JobPlan, max_retries: int, call: Call) -> list[Any]:
    check_importable(call.func)
    with ExitStack() as stack:
        with postponed():  # an interrupt here would leave the directory behind
            directory = PrivateDirectory()
            stack.callback(directory.remove)
        specs = plan.specs(directory)
        engine = LocalEngine(call, directory, preload=slow_to_import())
        with named_in_logs("launcher"):
            return run_job(specs, engine, max_retries=max_retries)


def _run_on_ray(plan: JobPlan, **how: Any) -> Runner[Any]:
    for name, value in (("address", plan.address), ("ports", plan.ports)):
        if value:
            raise ConfigError(
                f"`{name}` is {value!r}, but Ray places the nodes, and each chooses its own "
                f"address. Leave it out."
            )

    def start(call: Call) -> list[Any]:
        from ding_lite.parallel.supervise.ray.engine import run_on_ray

        return run_on_ray(plan, call, **how)

    return _runner(start)


def slow_to_import() -> tuple[str, ...]:
    """Return the modules that this process has imported and that every node imports as well."""
    ours = sorted(name for name in sys.modules if name.split(".")[0] == "ding_lite")
    return (*(name for name in SLOW_TO_IMPORT if name in sys.modules), *ours)


# -- refusals ------------------------------------------------------------------------------


def _text(expected: str, **named: object) -> list[str]:
    return [
        f"`{name}` is {value!r}; {expected} was expected"
        for name, value in named.items()
        if not isinstance(value, str | os.PathLike | None)
    ]


def _check_processes_fit(num_nodes: int) -> None:
    if isinstance(num_nodes, int) and num_nodes > 1:
        needed = num_nodes * _BYTES_OF_A_NODE
        check_fits(needed, what="Starting processes", n_parallel_workers=num_nodes)


def _check_engine(engine: str, resources: object) -> str:
    check_all(one_of(ENGINES, engine=engine))
    if resources is not None and engine != "ray":
        raise ConfigError(
            f"`resources` is {resources!r}, but this process starts the nodes itself, next to each "
            f"other. Leave it out, or let Ray place them: engine='ray' (or DING_LITE_ENGINE=ray)."
        )
    return engine


def _refuse_a_place_in_no_job(node_ids: object, settings: Settings) -> None:
    if node_ids is not None:
        raise ConfigError(
            f"`node_ids` is {node_ids!r}, the place to take in a running job, but `attach_to` does "
            f"not say which job. Add it, or leave both out: the nodes that are started here are "
            f"numbered from 0 on."
        )
    if settings.node_id is not None:
        raise ConfigError(
            f"DING_LITE_NODE_ID is {settings.node_id}, so this process is to be one node of a job, "
            f"but DING_LITE_NUM_NODES does not say of how many. Set it, or unset both."
        )


def _refuse_nesting() -> None:
    process = multiprocessing.current_process()
    if isinstance(process, NodeProcess) and process.is_importing:
        raise ConfigError(
            "The program starts nodes while a node imports it: the call of "
            "`Parallel.runner(...)(main)` is at the top level of the file. Put it below "
            '`if __name__ == "__main__":`.'
        )
    if isinstance(process, NodeProcess) or _RUNS_HERE.get():
        raise ConfigError(
            "`Parallel.runner(...)(main)` was called within a `main` that a runner has started. "
            "A node cannot have nodes of its own: give the outer runner more workers."
        )
