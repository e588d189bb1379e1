"""Detect mpirun and mpiexec of Open MPI, MPICH and Intel MPI; needs no MPI library."""

from __future__ import annotations

from collections.abc import Mapping

from ding_lite.parallel.launch.environment.base import Placement, master, names_this_machine, number

_OPEN_MPI = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"
_MPICH = "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"
_JOBS = "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"
"""Variables with the job id of Open MPI; MPICH has none."""


def detect(environ: Mapping[str, str]) -> Placement | None:
    for of_rank, of_size, of_local_size in (_OPEN_MPI, _MPICH):
        node_id, num_nodes = number(environ, of_rank), number(environ, of_size)
        if node_id is None or num_nodes is None or _is_from_srun(environ, of_size, num_nodes):
            continue
        host = master(environ)
        on_one_machine = number(environ, of_local_size) == num_nodes
        return Placement(
            launcher="mpirun",
            node_id=node_id,
            num_nodes=num_nodes,
            job=next((environ[name] for name in _JOBS if environ.get(name)), "without a name"),
            on_one_machine=on_one_machine or names_this_machine(host),
            host=host,
            how_to_tell=(
                "Set MASTER_ADDR to the name of the machine that runs rank 0, on all of them: "
                "`mpirun -x MASTER_ADDR=...` of Open MPI, `mpiexec -genv MASTER_ADDR ...` of MPICH."
            ),
        )
    return None


def _is_from_srun(environ: Mapping[str, str], of_size: str, num_nodes: int) -> bool:
    """Tell whether srun has started MPICH directly; srun's own variables then say more."""
    return of_size == "PMI_SIZE" and number(environ, "SLURM_STEP_NUM_TASKS") == num_nodes
