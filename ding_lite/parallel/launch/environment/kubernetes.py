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
    pod, ending, host = environ.get("HOSTNAME", ""), f"-{node_id}", master(environ)
    job = pod.removesuffix(ending) if pod.endswith(ending) else ""
    return Placement(
        launcher="kubernetes",
        node_id=node_id,
        num_nodes=num_nodes,
        job=job or host or "without a name",
        on_one_machine=names_this_machine(host),
        host=host,
        how_to_tell=(
            f"Set MASTER_ADDR in the pod template to the name of pod 0: {job or 'JOB'}-0.SERVICE, "
            f"where SERVICE is the headless service that is the `subdomain` of the pods."
        ),
    )
