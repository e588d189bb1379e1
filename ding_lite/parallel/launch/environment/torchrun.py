"""Detect torchrun and its relatives: `accelerate launch`, `torch.distributed.run`."""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.parallel.launch.environment.base import Placement, master, names_this_machine, number


def detect(environ: Mapping[str, str]) -> Placement | None:
    node_id, num_nodes = number(environ, "RANK"), number(environ, "WORLD_SIZE")
    run_id = environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None or node_id is None or num_nodes is None:
        return None
    host = master(environ)
    on_one_machine = number(environ, "LOCAL_WORLD_SIZE") == num_nodes
    return Placement(
        launcher="torchrun",
        node_id=node_id,
        num_nodes=num_nodes,
        job=f"{run_id} {host}:{environ.get('MASTER_PORT')}",
        on_one_machine=on_one_machine or names_this_machine(host),
        host=host,
        how_to_tell="Set MASTER_ADDR to the name of its machine.",
    )
