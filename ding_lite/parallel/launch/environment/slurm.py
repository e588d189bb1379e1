"""Detect SLURM: the tasks of one `srun`.

Only `srun` starts a process for each task and sets the variables of a job step. The SLURM
variables of a batch script or of a `salloc` shell describe an allocation, not this process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ding_lite.errors import ConfigError
from ding_lite.parallel.launch.environment.base import Placement, number

_FIRST_NAME = re.compile(r"(?:[^\[\],\s]|\[\d[\d,-]*\])+")
"""A name with lists of numbers, as in `r[1-2]n[08-10,12]`."""
_NUMBERS = re.compile(r"\[(\d+)[^\]]*\]")


def detect(environ: Mapping[str, str]) -> Placement | None:
    node_id, num_nodes = number(environ, "SLURM_PROCID"), number(environ, "SLURM_STEP_NUM_TASKS")
    step = environ.get("SLURM_STEP_ID")
    if not step or node_id is None or num_nodes is None:
        return None
    machines = environ.get("SLURM_STEP_NODELIST", "").strip()
    host = first_name(machines)
    return Placement(
        launcher="srun",
        node_id=node_id,
        num_nodes=num_nodes,
        job=f"{environ.get('SLURM_JOB_ID')}.{step}",
        on_one_machine=host == machines != "" or number(environ, "SLURM_STEP_NUM_NODES") == 1,
        host=host,
        how_to_tell="SLURM_STEP_NODELIST should name the machines of the step; was it unset?",
    )


def first_name(machines: str) -> str:
    """Return the first name of a SLURM list of host names, which is that of task 0.

    Example:
        >>> first_name("gpu[08-10,12],login"), first_name("r[1-2]n[1-2]"), first_name("")
        ('gpu08', 'r1n1', '')
    """
    found = _FIRST_NAME.match(machines)
    if machines and (found is None or machines[found.end() : found.end() + 1] not in ("", ",")):
        raise ConfigError(
            f"SLURM_STEP_NODELIST is {machines!r}, which cannot be read; expected was something "
            f"like 'gpu[08-10,12]', as srun sets it."
        )
    return "" if found is None else _NUMBERS.sub(r"\1", found[0])
