"""Detect the launcher that has started this process, unless settings take precedence."""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment import kubernetes, mpi, slurm, torchrun
from ding_lite.parallel.launch.environment.base import Placement
from ding_lite.settings.environment import Settings

LAUNCHERS = (torchrun.detect, mpi.detect, slurm.detect, kubernetes.detect)
"""Launchers from the innermost to the outermost: srun may start mpirun or torchrun, and a pod any
of them."""


def detect(environ: Mapping[str, str]) -> Placement | None:
    """Return the placement by the innermost launcher; None without one or with one process."""
    found = (of_one(environ) for of_one in LAUNCHERS)
    place = next((place for place in found if place is not None), None)
    return None if place is None or place.num_nodes == 1 else place


def placement_of(settings: Settings, environ: Mapping[str, str]) -> Placement | None:
    """Return the placement by a launcher, unless a node's place, an engine or an address is set."""
    is_whole = settings.node_id is not None and settings.num_nodes is not None
    if is_whole or settings.engine is not None or settings.attach_to:
        return None
    place = detect(environ)
    if place is None:
        return None
    for variable, ours, found in (
        ("DING_LITE_NUM_NODES", settings.num_nodes, place.num_nodes),
        ("DING_LITE_NODE_ID", settings.node_id, place.node_id),
    ):
        if ours not in (None, found):
            raise ConfigError(
                f"{variable} is {ours}, but {place.launcher} has started this process as node "
                f"{place.node_id} of {place.num_nodes}. Unset it, or set both DING_LITE_NUM_NODES "
                f"and DING_LITE_NODE_ID, and {place.launcher} is not asked."
            )
    return place


def node_of_process(settings: Settings, environ: Mapping[str, str]) -> int | None:
    """Return the node of this process; None unless each node of a job was started by itself."""
    place = placement_of(settings, environ)
    return settings.node_id if place is None else place.node_id
