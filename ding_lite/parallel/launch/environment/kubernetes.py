"""Detect Kubernetes: the pods of an indexed job.

Kubernetes gives a pod its index only. The pod template must set the number of pods, as
`DING_LITE_NUM_NODES` (without it the pods are separate jobs), and the host name of pod 0, as
`MASTER_ADDR`, since it contains the name of the headless service.
"""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.parallel.launch.environment.base import Placement, master, names_this_machine, number


def detect(environ: Mapping[str, str]) -> Placement | None:
    node_id = number(environ, "JOB_COMPLETION_INDEX")
    num_nodes = number(environ, "DING_LITE_NUM_NODES")
    if node_id is None or num_nodes is None:
        return None
    job = _job(environ, node_id)
    hosts = _hosts(job, master(environ), num_nodes)
    return Placement(
        launcher="kubernetes",
        node_id=node_id,
        num_nodes=num_nodes,
        job=job or hosts.get(0, "without a name"),
        on_one_machine=names_this_machine(hosts.get(0)),
        hosts=hosts,
        how_to_tell=(
            f"Set MASTER_ADDR in the pod template to the name of pod 0: {job or 'JOB'}-0.SERVICE, "
            f"where SERVICE is the headless service that is the `subdomain` of the pods."
        ),
    )


def _job(environ: Mapping[str, str], node_id: int) -> str:
    pod, ending = environ.get("HOSTNAME", ""), f"-{node_id}"
    return pod.removesuffix(ending) if pod.endswith(ending) else ""


def _hosts(job: str, zero: Mapping[int, str], num_nodes: int) -> dict[int, str]:
    """Return the host names of all pods if pod 0 has the usual name, else only its name."""
    name, _, service = zero.get(0, "").partition(".")
    if not job or name != f"{job}-0":
        return dict(zero)
    ending = f".{service}" if service else ""
    return {node: f"{job}-{node}{ending}" for node in range(num_nodes)}
