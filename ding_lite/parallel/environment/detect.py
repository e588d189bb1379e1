"""Which launcher has started this process, if any, and when that counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ding_lite.errors import ConfigError
from ding_lite.parallel.environment import kubernetes, mpi, slurm, torchrun
from ding_lite.parallel.environment.base import Place
from ding_lite.settings import Settings

Detect = Callable[[Mapping[str, str]], Place | None]

LAUNCHERS: tuple[Detect, ...] = (
    torchrun.detect,
    mpi.detect,
    slurm.detect,
    kubernetes.detect,
)
"""From the inside out: srun starts mpirun or torchrun, a pod starts any of them."""


def detect(environ: Mapping[str, str]) -> Place | None:
    """Return the place that the innermost launcher has given this process.

    None where there is no launcher, and where it has started one process only: that one may
    start nodes of its own.

    Raises:
        ConfigError: What a launcher says contradicts itself.
    """
    found = (of_one(environ) for of_one in LAUNCHERS)
    place = next((place for place in found if place is not None), None)
    return None if place is None or place.num_nodes == 1 else place


def place_of(settings: Settings, environ: Mapping[str, str]) -> Place | None:
    """Return the place of this process, if a launcher gives it one and the settings do not.

    Args:
        settings: What `DING_LITE_*` says. Both numbers there, an engine, or an address to attach
            to each mean that no launcher is asked.
        environ: All environment variables.

    Raises:
        ConfigError: What the launcher says contradicts itself or the settings.
    """
    is_whole = settings.node_id is not None and settings.num_nodes is not None
    if is_whole or settings.engine is not None or settings.attach_to:
        return None
    place = detect(environ)
    if place is None:
        return None
    for variable, ours, told in (
        ("DING_LITE_NUM_NODES", settings.num_nodes, place.num_nodes),
        ("DING_LITE_NODE_ID", settings.node_id, place.node_id),
    ):
        if ours not in (None, told):
            raise ConfigError(
                f"{variable} is {ours}, but {place.launcher} has started this process as node "
                f"{place.node_id} of {place.num_nodes}. Unset it, or set both DING_LITE_NUM_NODES "
                f"and DING_LITE_NODE_ID, and {place.launcher} is not asked."
            )
    return place


def as_settings(place: Place) -> dict[str, object]:
    """Return what a launcher says in place of which settings, as `ding-lite env` shows it."""
    return {"num_nodes": place.num_nodes, "node_id": place.node_id, "ports": (place.port,)}
